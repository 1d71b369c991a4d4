//! Columns for people.

/// A header and its rows, in columns as wide as they need to be. The last column has no trailing blanks.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let header = header.map(str::to_owned);
    let all = || std::iter::once(&header).chain(rows);
    let width = |column: usize| {
        let cells = all().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A line that is not longer than the terminal is wide.
pub(crate) fn cut(line: &str, columns: usize) -> String {
    match line.char_indices().nth(columns) {
        Some(_) => line
            .chars()
            .take(columns.saturating_sub(1))
            .chain(['…'])
            .collect(),
        None => line.to_owned(),
    }
}

/// How wide the terminal of stdout is, if it says so.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// To the unit that matters: `45s`, `12m`, `3h`, `2d`.
pub(crate) fn rough(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long something took: `1.5s`, `2m05s`.
pub(crate) fn took(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        _ => format!("{}m{:02}s", ms / 60_000, ms % 60_000 / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [
            ["ä".to_owned(), "long one".to_owned()],
            ["bbbb".to_owned(), String::new()],
        ];
        assert_eq!(table(["A", "B"], &rows), "A     B\nä     long one\nbbbb\n");
        assert_eq!(table(["A", "B"], &[]), "A  B\n");
    }

    #[test]
    fn a_line_ends_where_the_terminal_does() {
        for (columns, text) in [(6, "äbcde"), (5, "äbcde"), (4, "äbc…"), (1, "…")] {
            assert_eq!(cut("äbcde", columns), text);
        }
    }

    #[test]
    fn times_are_short() {
        for (ms, text) in [
            (0, "0.0s"),
            (1549, "1.5s"),
            (59_999, "59.9s"),
            (125_000, "2m05s"),
        ] {
            assert_eq!(took(ms), text);
        }
        for (seconds, text) in [(59, "59s"), (60, "1m"), (7200, "2h"), (400_000, "4d")] {
            assert_eq!(rough(seconds), text);
        }
    }
}

//! Formatting shared by commands: tables, paths, durations, and escaping of untrusted text.

use std::path::Path;

use sbx_api::{Status, Workspace};

/// Where it is on the host, and inside if that is elsewhere.
pub(crate) fn workspace(workspace: &Workspace) -> String {
    match &workspace.target {
        Some(target) => format!("{} -> {target}", workspace.path),
        None => workspace.path.clone(),
    }
}

pub(crate) fn status(status: Status) -> &'static str {
    match status {
        Status::Creating => "creating",
        Status::Running => "running",
        Status::Stopped => "stopped",
        Status::Removing => "removing",
    }
}

/// Columns as wide as their widest cell; no spaces at the end of a line.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

/// The path on one line, with the home directory as `~`.
pub(crate) fn path(path: &str, home: Option<&Path>) -> String {
    let short = match home.map(|home| Path::new(path).strip_prefix(home)) {
        Some(Ok(rest)) if rest.as_os_str().is_empty() => "~".to_owned(),
        Some(Ok(rest)) => format!("~/{}", rest.display()),
        _ => path.to_owned(),
    };
    one_line(&short)
}

/// Characters that can change what a terminal shows around them: control characters, bidirectional overrides and
/// invisible ones.
pub(crate) fn is_unsafe_to_print(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Escapes untrusted text for one line of a terminal or table.
pub(crate) fn one_line(text: &str) -> String {
    escaped(text, is_unsafe_to_print)
}

/// Escapes untrusted text, keeping line breaks and tabs.
pub(crate) fn lines(text: &str) -> String {
    escaped(text, |c| is_unsafe_to_print(c) && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, unwanted: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if unwanted(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// `1.5 GiB`, with one digit after the point.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // In tenths of the unit.
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while tenths >= 10_240
        && let Some(next) = units.next()
    {
        tenths /= 1024;
        unit = Some(next);
    }
    let unit = unit.copied().unwrap_or_default();
    match tenths % 10 {
        0 => format!("{} {unit}", tenths / 10),
        tenth => format!("{}.{tenth} {unit}", tenths / 10),
    }
}

/// `1.5`, of thousandths of a CPU.
pub(crate) fn cpus(millis: u32) -> String {
    let number = format!("{}.{:03}", millis / 1000, millis % 1000);
    number
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

/// `3d 4h`, `5m 6s`: the two largest units.
pub(crate) fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = units
        .iter()
        .position(|(count, _)| *count > 0)
        .unwrap_or(units.len() - 1);
    let parts: Vec<String> = units
        .iter()
        .skip(first)
        .take(2)
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if parts.is_empty() {
        "0s".to_owned()
    } else {
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (size, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1 << 30, "1 GiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(bytes(size), shown);
        }
    }

    #[test]
    fn durations() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3661, "1h 1m"),
            (90_000, "1d 1h"),
            (-5, "0s"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn paths_are_short_and_on_one_line() {
        let home = Some(Path::new("/home/me"));
        assert_eq!(path("/home/me/src/a", home), "~/src/a");
        assert_eq!(path("/home/me", home), "~");
        assert_eq!(path("/home/meow", home), "/home/meow");
        assert_eq!(path("/a\nb", home), "/a\\nb");
        assert_eq!(path("/a\u{202e}\u{e9}", home), "/a\\u{202e}\u{e9}");
        assert_eq!(lines("a\u{1b}[1m\r\n\tb"), "a\\u{1b}[1m\\r\n\tb");
    }

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(
            table(&[row(["A", "B"]), row(["long", "x"]), row(["y", ""])]),
            ["A     B", "long  x", "y"]
        );
    }
}

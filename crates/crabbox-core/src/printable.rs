//! Untrusted text on a terminal: control characters and bidirectional overrides are escaped, so that a repository or an
//! engine cannot move the cursor or reorder what the user reads.

/// Safe to print on one line.
pub fn printable(text: &str) -> String {
    escape(text, unsafe_to_print)
}

/// Safe to print, on the lines that it has.
pub fn printable_lines(text: &str) -> String {
    escape(text, |c| unsafe_to_print(c) && !matches!(c, '\n' | '\t'))
}

fn escape(text: &str, unwanted: impl Fn(char) -> bool) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = unwanted(c).then(|| c.escape_default());
            let plain = escaped.is_none().then_some(c);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

/// Control characters, and those that change the direction of the text around them.
pub(crate) fn unsafe_to_print(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_draws_is_escaped() {
        let hostile = "a\u{1b}]0;x\u{7}\tb\u{202e}\r\nc";
        assert_eq!(printable(hostile), r"a\u{1b}]0;x\u{7}\tb\u{202e}\r\nc");
        assert_eq!(
            printable_lines(hostile),
            "a\\u{1b}]0;x\\u{7}\tb\\u{202e}\\r\nc"
        );
    }
}

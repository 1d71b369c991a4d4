//! How output becomes events.
//!
//! The official daemon sends lines: `\n`, `\r` and `\r\n` end one and are dropped, an empty line is sent as `"\n"`, bytes
//! that are not UTF-8 become U+FFFD, and a last line without a terminator looks the same as one with it. Clients that need
//! the exact bytes use another transport, so this daemon loses the same things and tests can rely on it.

/// The longest text of one event; a longer line is split.
pub const MAX_TEXT: usize = 64 * 1024;

#[derive(Debug, Default)]
pub struct LineSplitter {
    line: Vec<u8>,
    /// The last byte was `\r`: a `\n` that follows belongs to it.
    after_return: bool,
}

impl LineSplitter {
    /// The texts of the events that `bytes` complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut texts = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    texts.push(self.take());
                }
                _ => {
                    self.after_return = false;
                    self.line.push(*byte);
                    if self.line.len() >= MAX_TEXT {
                        texts.extend(self.split_long());
                    }
                }
            }
        }
        texts
    }

    /// The text of a last line without a terminator.
    pub fn finish(&mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> String {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return "\n".to_owned();
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Splits before an incomplete character, so that a cut does not damage text.
    fn split_long(&mut self) -> Option<String> {
        let keep = match std::str::from_utf8(&self.line) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Ok(_) | Err(_) => self.line.len(),
        };
        let rest = self.line.split_off(keep);
        let text = std::mem::replace(&mut self.line, rest);
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(bytes: &[u8]) -> Vec<String> {
        let mut splitter = LineSplitter::default();
        let mut texts = splitter.push(bytes);
        texts.extend(splitter.finish());
        texts
    }

    #[test]
    fn lines_lose_their_terminators() {
        assert_eq!(texts(b"a\nb"), ["a", "b"]);
        assert_eq!(texts(b"a\r\nb\n"), ["a", "b"]);
        assert_eq!(texts(b"10%\r20%\r"), ["10%", "20%"]);
        assert_eq!(texts(b"a\n\nb\n"), ["a", "\n", "b"]);
        assert_eq!(texts(b"\xff\n"), ["\u{fffd}"]);
        assert_eq!(texts(b""), Vec::<String>::new());
    }

    #[test]
    fn a_split_keeps_characters_whole() {
        let line = "é".repeat(MAX_TEXT);
        let texts = texts(line.as_bytes());
        assert!(texts.len() > 1);
        assert_eq!(texts.concat(), line);
    }

    proptest! {
        #[test]
        fn chunking_does_not_matter(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..200), cut in 0usize..200) {
            let cut = cut.min(bytes.len());
            let mut splitter = LineSplitter::default();
            let mut split = splitter.push(&bytes[..cut]);
            split.extend(splitter.push(&bytes[cut..]));
            split.extend(splitter.finish());
            prop_assert_eq!(split, texts(&bytes));
        }
    }
}

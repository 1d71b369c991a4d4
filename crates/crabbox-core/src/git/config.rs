//! What a configuration file of git says, without git: nothing is included, nothing is started.

/// Every setting in its order: `section.name` or `section.Sub.name`, in lower case but for the part in between. One
/// without a value is true. The error is the line that is not understood.
pub(super) fn parse(text: &[u8]) -> Result<Vec<(String, Vec<u8>)>, usize> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut reader = Reader { text, at: 0 };
    reader.all().ok_or_else(|| reader.line())
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    fn all(&mut self) -> Option<Vec<(String, Vec<u8>)>> {
        let mut settings = Vec::new();
        let mut section = None;
        while let Some(byte) = self.next() {
            match byte {
                b'#' | b';' => while !matches!(self.next(), None | Some(b'\n')) {},
                b'[' => section = Some(self.section()?),
                byte if byte.is_ascii_whitespace() => {}
                byte if byte.is_ascii_alphabetic() => {
                    self.at -= 1;
                    let name = self.name(|byte| byte == b'-');
                    let value = self.value()?;
                    settings.push((format!("{}.{name}", section.as_ref()?), value));
                }
                _ => return None,
            }
        }
        Some(settings)
    }

    /// The next byte; a line may end with CR and LF.
    fn next(&mut self) -> Option<u8> {
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        if byte == b'\r' && self.text.get(self.at) == Some(&b'\n') {
            self.at += 1;
            return Some(b'\n');
        }
        Some(byte)
    }

    fn line(&self) -> usize {
        let read = self.text.get(..self.at.saturating_sub(1));
        1 + read
            .unwrap_or_default()
            .iter()
            .filter(|b| **b == b'\n')
            .count()
    }

    fn name(&mut self, also: impl Fn(u8) -> bool) -> String {
        let mut name = String::new();
        while let Some(&byte) = self.text.get(self.at)
            && (byte.is_ascii_alphanumeric() || also(byte))
        {
            name.push(char::from(byte.to_ascii_lowercase()));
            self.at += 1;
        }
        name
    }

    fn blanks(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t')) {
            self.at += 1;
        }
    }

    /// Behind its bracket.
    fn section(&mut self) -> Option<String> {
        let name = self.name(|byte| matches!(byte, b'-' | b'.'));
        self.blanks();
        let below = match self.next()? {
            b']' => return Some(name),
            b'"' => self.quoted()?,
            _ => return None,
        };
        (self.next()? == b']').then(|| format!("{name}.{below}"))
    }

    fn quoted(&mut self) -> Option<String> {
        let mut name = Vec::new();
        loop {
            match self.next()? {
                b'"' => return Some(String::from_utf8_lossy(&name).into_owned()),
                b'\n' => return None,
                b'\\' => name.push(self.next().filter(|byte| *byte != b'\n')?),
                byte => name.push(byte),
            }
        }
    }

    /// Behind its name.
    fn value(&mut self) -> Option<Vec<u8>> {
        self.blanks();
        match self.next() {
            None | Some(b'\n') => return Some(b"true".to_vec()),
            Some(b'=') => {}
            Some(_) => return None,
        }
        self.blanks();
        let (mut value, mut quoted, mut comment) = (Vec::new(), false, false);
        // Blanks at the end, outside of quotes, are not part of it.
        let mut end = 0;
        loop {
            match self.next() {
                None | Some(b'\n') if quoted => return None,
                None | Some(b'\n') => break,
                Some(_) if comment => continue,
                Some(b'#' | b';') if !quoted => comment = true,
                Some(b'"') => quoted = !quoted,
                Some(b'\\') => match self.next() {
                    None | Some(b'\n') => continue,
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(8),
                    Some(b'n') => value.push(b'\n'),
                    Some(byte @ (b'\\' | b'"')) => value.push(byte),
                    Some(_) => return None,
                },
                Some(byte @ (b' ' | b'\t')) if !quoted => {
                    value.push(byte);
                    continue;
                }
                Some(byte) => value.push(byte),
            }
            if !comment {
                end = value.len();
            }
        }
        value.truncate(end);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_read_as_git_reads_it() {
        let text = b"\xef\xbb\xbf; c\n[core] bare = false # c\n\tFileMode\r\n  x = a  b \t ; c\n y = \" a \\\"# \" b \\\n c\n\
            [Remote \"O \\\"r\"]\nURL = git@h:x\n[branch.Main]\nmerge=\\tz\nempty =\n[a \"b.c\"]k-1=1";
        let expected: [(&str, &[u8]); 8] = [
            ("core.bare", b"false"),
            ("core.filemode", b"true"),
            ("core.x", b"a  b"),
            ("core.y", b" a \"#  b  c"),
            ("remote.O \"r.url", b"git@h:x"),
            ("branch.main.merge", b"\tz"),
            ("branch.main.empty", b""),
            ("a.b.c.k-1", b"1"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.to_vec()))
            .collect();
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line() {
        for (text, line) in [
            ("x = 1", 1),
            ("[a]\n\n?", 3),
            ("[a\nb]", 1),
            ("[a \"b\nc\"]", 1),
            ("[a]\nb = \"c\nd = e", 2),
            ("[a]\nb c", 2),
            ("[a]\nb = \\q", 2),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(line), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a\\[\\]\"\\\\=#; \\n\\r.-]{0,40}") {
            drop(parse(text.as_bytes()));
        }
    }
}

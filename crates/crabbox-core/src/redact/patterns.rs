//! What secrets look like: headers, named values, URLs, keys.
//!
//! Each rule gives the spans to hide. Spans begin and end beside ASCII bytes or at the ends of the text, so that they
//! never split a character.

use std::ops::Range;

use super::MARK;

/// Names of secrets, without case and separators. A name may end with one: `GITHUB_TOKEN`, `db-password`.
const NAMES: [&str; 9] = [
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
];
/// What only a URL calls so.
const QUERY_NAMES: [&str; 4] = ["signature", "sig", "key", "code"];
const QUERY_PREFIXES: [&str; 2] = ["x-amz-", "x-goog-"];
/// Words that reports use in the place of a secret, and that need no redaction.
const NOT_SECRET: [&str; 6] = ["true", "false", "null", "none", "set", "empty"];
/// After "bearer": a sentence about it.
const BEARER_PROSE: [&str; 4] = ["token", "tokens", "auth", "authentication"];
/// No name is longer.
const NAME_WINDOW: usize = 64;

/// Everything that looks like a secret and is not hidden yet.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let text = Text {
        bytes: text.as_bytes(),
        lower: text.to_ascii_lowercase(),
    };
    let mut spans = Vec::new();
    text.headers(&mut spans);
    text.named_values(&mut spans);
    text.flags(&mut spans);
    text.queries(&mut spans);
    text.user_infos(&mut spans);
    text.bearers(&mut spans);
    text.private_keys(&mut spans);
    spans.retain(|span| {
        let value = text.bytes.get(span.clone()).unwrap_or_default();
        !value.is_empty() && value != MARK.as_bytes()
    });
    spans
}

struct Text<'a> {
    bytes: &'a [u8],
    lower: String,
}

impl Text<'_> {
    fn at(&self, index: usize) -> Option<u8> {
        self.bytes.get(index).copied()
    }

    /// Where the run of bytes that satisfy `is` ends.
    fn run(&self, from: usize, is: impl Fn(u8) -> bool) -> usize {
        let rest = self.bytes.get(from..).unwrap_or_default();
        from + rest
            .iter()
            .position(|byte| !is(*byte))
            .unwrap_or(rest.len())
    }

    fn occurrences<'t>(&'t self, needle: &'t str) -> impl Iterator<Item = usize> + 't {
        self.lower.match_indices(needle).map(|(at, _)| at)
    }

    /// `Authorization: ...` and `Proxy-Authorization: ...`, to the end of the line, and of those that continue it: a line
    /// that begins with a blank is folded into the one before (RFC 9112, 5.2).
    fn headers(&self, spans: &mut Vec<Range<usize>>) {
        for at in self.occurrences("authorization") {
            // The name may be quoted, in a JSON text that may itself be quoted.
            let separator = self.run(at + "authorization".len(), |byte| {
                is_blank(byte) || matches!(byte, b'"' | b'\'' | b'\\')
            });
            if !matches!(self.at(separator), Some(b':' | b'=')) {
                continue;
            }
            let value = self.run(separator + 1, is_blank);
            if matches!(self.at(value), Some(b'"' | b'\'' | b'\\')) {
                spans.extend(self.value(value));
            } else {
                spans.push(value..self.folded_end(value));
            }
        }
    }

    /// The end of a line and of the lines that are folded into it.
    fn folded_end(&self, from: usize) -> usize {
        let is_line = |byte: u8| !matches!(byte, b'\n' | b'\r');
        let mut end = self.run(from, is_line);
        loop {
            let next = match (self.at(end), self.at(end + 1)) {
                (Some(b'\r'), Some(b'\n')) => end + 2,
                (Some(b'\n' | b'\r'), _) => end + 1,
                (_, _) => return end,
            };
            let text = self.run(next, is_blank);
            let more = self.run(text, is_line);
            if text == next || more == text {
                return end;
            }
            end = more;
        }
    }

    /// `name=value` and `name: value`, in JSON too, where the end may be missing.
    fn named_values(&self, spans: &mut Vec<Range<usize>>) {
        for (at, byte) in self.bytes.iter().enumerate() {
            if matches!(byte, b'=' | b':')
                && is_secret_name(&self.name_before(at))
                && !(*byte == b'=' && self.is_parameter(at))
            {
                spans.extend(self.value(at + 1));
            }
        }
    }

    /// Whether the name before this `=` is that of a parameter, which [`Self::queries`] knows more about.
    fn is_parameter(&self, equals: usize) -> bool {
        let start = equals.saturating_sub(NAME_WINDOW);
        let before = self.bytes.get(start..equals).unwrap_or_default();
        let name = before
            .iter()
            .rev()
            .take_while(|byte| is_parameter_name(**byte));
        let name = name.count();
        let sign = before.len().checked_sub(name + 1);
        let sign = sign.and_then(|at| before.get(at));
        name > 0 && matches!(sign, Some(b'?' | b'&'))
    }

    /// `--name value`.
    fn flags(&self, spans: &mut Vec<Range<usize>>) {
        for at in self.occurrences("--") {
            let end = self.run(at + 2, |byte| {
                byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
            });
            let value = self.run(end, is_blank);
            if value > end
                && is_secret_name(&normalize_name(self.lower.get(at..end).unwrap_or_default()))
            {
                spans.extend(self.value(value));
            }
        }
    }

    /// `?name=value` and `&name=value`.
    fn queries(&self, spans: &mut Vec<Range<usize>>) {
        for (at, byte) in self.bytes.iter().enumerate() {
            if !matches!(byte, b'?' | b'&') {
                continue;
            }
            let end = self.run(at + 1, is_parameter_name);
            let name = self.lower.get(at + 1..end).unwrap_or_default();
            let secret = QUERY_NAMES.contains(&name)
                || QUERY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                || is_secret_name(&normalize_name(name));
            if secret && self.at(end) == Some(b'=') {
                spans.push(end + 1..self.parameter_end(end + 1));
            }
        }
    }

    /// The end of a parameter's value: the next parameter. A `&` or `#` that no parameter follows is part of a value that
    /// was not encoded.
    fn parameter_end(&self, value: usize) -> usize {
        let mut end = value;
        loop {
            end = self.word_end(end, |byte| matches!(byte, b'&' | b'<' | b'>'));
            let name = self.run(end + 1, is_parameter_name);
            let is_next = self.at(name) == Some(b'=') && name > end + 1;
            if self.at(end) != Some(b'&') || is_next {
                return end;
            }
            end += 1;
        }
    }

    /// The end of a word without quotes around it. `, } ; ' & #` are a part of it, unless they end it.
    fn word_end(&self, start: usize, stop: impl Fn(u8) -> bool) -> usize {
        let end = self.run(start, |byte| {
            !byte.is_ascii_whitespace() && !matches!(byte, b'"' | b'`') && !stop(byte)
        });
        let word = self.bytes.get(start..end).unwrap_or_default();
        let rest = word.iter().rev();
        // `'token=abc'` and `{token: abc}`: what closes the text around the word; and a quote that is escaped.
        let closing = rest
            .take_while(|byte| matches!(byte, b'\'' | b'\\'))
            .count();
        end - closing
    }

    /// `scheme://user:password@host`.
    fn user_infos(&self, spans: &mut Vec<Range<usize>>) {
        for at in self.occurrences("://") {
            let start = at + 3;
            let end = self.run(start, |byte| {
                !byte.is_ascii_whitespace()
                    && !matches!(byte, b'/' | b'?' | b'"' | b'<' | b'>' | b'`')
            });
            let authority = self.bytes.get(start..end).unwrap_or_default();
            if let Some(at) = authority.iter().rposition(|byte| *byte == b'@') {
                spans.push(start..start + at);
            }
        }
    }

    fn bearers(&self, spans: &mut Vec<Range<usize>>) {
        for at in self.occurrences("bearer") {
            let end = at + "bearer".len();
            let value = self.run(end, |byte| is_blank(byte) || matches!(byte, b':' | b'='));
            if value > end {
                let span = value..self.word_end(value, |_| false);
                let word = self.lower.get(span.clone()).unwrap_or_default();
                let word = word.trim_end_matches([',', ';', '.', ')', ']', '}', ':']);
                if !BEARER_PROSE.contains(&word) {
                    spans.push(span);
                }
            }
        }
    }

    /// From the first line to the last, or to the end of the text where the last is missing.
    fn private_keys(&self, spans: &mut Vec<Range<usize>>) {
        let mut from = 0;
        while let Some(start) = self.find("-----begin", from) {
            from = start + 10;
            let line_end = self.run(start, |byte| !matches!(byte, b'\n' | b'\r' | b'\\'));
            let Some(kind) = self.find("private key", start).filter(|at| *at < line_end) else {
                continue;
            };
            let end = self
                .find("-----end", kind)
                .and_then(|end| self.find("private key-----", end))
                .map_or(self.bytes.len(), |end| end + "private key-----".len());
            spans.push(start..end);
            from = end;
        }
    }

    fn find(&self, needle: &str, from: usize) -> Option<usize> {
        self.lower.get(from..)?.find(needle).map(|at| from + at)
    }

    /// The words before a separator, squeezed.
    fn name_before(&self, separator: usize) -> String {
        let start = separator.saturating_sub(NAME_WINDOW);
        let before = self.bytes.get(start..separator).unwrap_or_default();
        let before = before.trim_ascii_end();
        // A quoted name, in a JSON text that may itself be quoted.
        let quoted = before
            .strip_suffix(b"\"")
            .or_else(|| before.strip_suffix(b"'"));
        let before = quoted.unwrap_or(before);
        let before = before.strip_suffix(b"\\").unwrap_or(before);
        let is_name =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b' ');
        let words = before.iter().rev().take_while(|byte| is_name(byte)).count();
        let name = before.get(before.len() - words..).unwrap_or_default();
        normalize_name(&String::from_utf8_lossy(name).to_ascii_lowercase())
    }

    /// The value that begins here, after blanks. `None` for words that are no secret.
    fn value(&self, from: usize) -> Option<Range<usize>> {
        let start = self.run(from, is_blank);
        let span = match (self.at(start)?, self.at(start + 1)) {
            (b'\\', Some(b'"')) => {
                let start = start + 2;
                let end = self.find("\\\"", start).unwrap_or(self.bytes.len());
                start..end
            }
            (quote @ (b'"' | b'\''), _) => start + 1..self.closing(start + 1, quote),
            _ => start..self.word_end(start, |_| false),
        };
        let value = self.lower.get(span.clone()).unwrap_or_default();
        // `secret=true,OTHER=...`: the next pair is classified by its own name.
        let value = match value.split_once(',') {
            Some((first, rest)) if begins_a_pair(rest) => first,
            Some(_) | None => value,
        };
        let bare = value.trim_end_matches([',', ';', '.', ')', ']', '}']);
        (!NOT_SECRET.contains(&bare)).then_some(span)
    }

    /// Where the quoted text ends: at an unescaped quote, or with the text.
    fn closing(&self, from: usize, quote: u8) -> usize {
        let mut at = from;
        while let Some(byte) = self.at(at) {
            match byte {
                b'\\' => at += 2,
                byte if byte == quote => return at,
                _ => at += 1,
            }
        }
        self.bytes.len()
    }
}

/// Whether a variable's name and `=` come next.
fn begins_a_pair(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

fn is_parameter_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'%')
}

fn is_secret_name(name: &str) -> bool {
    NAMES.iter().any(|known| name.ends_with(known))
}

fn normalize_name(name: &str) -> String {
    name.replace(['_', '-', '.', ' '], "")
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

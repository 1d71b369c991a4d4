//! Files for `--env-from-profile`: assignments as a shell has them, of which nothing is ever executed.

use std::fmt;

use crate::command::is_identifier;

/// What one file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileFile {
    /// In order; a later one wins.
    pub entries: Vec<(String, String)>,
    /// Lines that were left out. Nothing is left out in silence.
    pub skipped: Vec<Skipped>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// From 1.
    pub line: usize,
    pub name: Option<String>,
    pub reason: &'static str,
}

impl ProfileFile {
    /// `KEY=VALUE` per line, optionally after `export`, the value bare or in quotes. Comments and empty lines are fine.
    pub fn parse(bytes: &[u8]) -> Self {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let mut file = Self::default();
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            match parse_line(line) {
                Ok(None) => {}
                Ok(Some((name, value))) => file.entries.push((name.to_owned(), value)),
                Err((name, reason)) => file.skipped.push(Skipped {
                    line: index + 1,
                    name: name.map(str::to_owned),
                    reason,
                }),
            }
        }
        file
    }
}

type Fault<'a> = (Option<&'a str>, &'static str);

fn parse_line(line: &[u8]) -> Result<Option<(&str, String)>, Fault<'_>> {
    let Ok(line) = std::str::from_utf8(line) else {
        return Err((None, "not UTF-8"));
    };
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let assignment = match line.strip_prefix("export") {
        Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
        Some(_) | None => line,
    };
    let Some((name, value)) = assignment.split_once('=') else {
        return Err((None, "not an assignment"));
    };
    if !is_identifier(name) {
        return Err((None, "invalid variable name"));
    }
    match parse_value(value) {
        Ok(value) => Ok(Some((name, value))),
        Err(reason) => Err((Some(name), reason)),
    }
}

fn parse_value(text: &str) -> Result<String, &'static str> {
    if text.contains("$(") || text.contains('`') {
        return Err("command substitution is not supported");
    }
    let mut rest = text.chars();
    let quote = rest.clone().next();
    let mut value = String::new();
    match quote {
        Some(quote @ ('\'' | '"')) => {
            rest.next();
            loop {
                match (rest.next(), quote) {
                    (None, _) => return Err("missing closing quote"),
                    (Some(char), _) if char == quote => break,
                    (Some('\\'), '"') => match rest.next() {
                        Some(char @ ('"' | '\\')) => value.push(char),
                        Some(char) => value.extend(['\\', char]),
                        None => return Err("missing closing quote"),
                    },
                    (Some(char), _) => value.push(char),
                }
            }
            // Only a comment may follow, and not directly: a shell would join what does.
            let rest = rest.as_str();
            let comment =
                rest.starts_with(char::is_whitespace) && rest.trim_start().starts_with('#');
            if !rest.is_empty() && !comment {
                return Err("unexpected text after the closing quote");
            }
        }
        Some(_) | None => {
            let (token, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            if !rest.is_empty() && !rest.trim_start().starts_with('#') {
                return Err("several words without quotes");
            }
            value.push_str(token);
        }
    }
    Ok(value)
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "line {}: `{name}`: {}", self.line, self.reason),
            None => write!(f, "line {}: {}", self.line, self.reason),
        }
    }
}

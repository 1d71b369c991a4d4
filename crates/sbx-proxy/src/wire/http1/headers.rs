//! The header fields of a head, kept as the bytes that were sent.

use std::ops::Range;

use super::HeadError;
use super::lines::{Lines, is_space, is_value, token, trim};

/// The most headers a head may have.
pub const MAX_HEADERS: usize = 256;

/// The fields of a head in the order sent, with the head's own bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    raw: Vec<u8>,
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
    line: Range<usize>,
}

/// One field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// As sent: compare without regard to case.
    pub name: &'a str,
    /// Without the white space around it.
    pub value: &'a [u8],
    /// The whole field as sent, without its line ending.
    pub line: &'a [u8],
}

impl<'a> Header<'a> {
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// What follows the colon if it is written plainly: at most one space before the value and nothing after it.
    /// Framing must not depend on how much white space the next parser forgives.
    pub(super) fn plain_value(&self) -> Option<&'a [u8]> {
        let after = self.line.get(self.name.len() + 1..)?;
        let value = after.strip_prefix(b" ").unwrap_or(after);
        (value == self.value).then_some(value)
    }
}

impl Headers {
    pub fn iter(&self) -> impl Iterator<Item = Header<'_>> {
        self.fields.iter().map(|field| Header {
            name: str::from_utf8(self.slice(&field.name)).unwrap_or_default(),
            value: self.slice(&field.value),
            line: self.slice(&field.line),
        })
    }

    /// The fields of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Header<'a>> {
        self.iter().filter(move |header| header.is(name))
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|header| header.is(name))
            .map(|header| header.value)
    }

    pub fn len(&self) -> usize {
        self.fields.len()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The whole head as sent.
    pub(super) fn raw(&self) -> &[u8] {
        &self.raw
    }

    fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.raw.get(range.clone()).unwrap_or_default()
    }
}

/// How a field may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grammar {
    /// RFC 9112 without its concessions.
    Strict,
    /// Control characters in values and folded fields are taken, as they do not touch the framing.
    Tolerant,
}

/// Reads the fields up to the empty line; nothing when that has not arrived.
pub(super) fn read(
    lines: &mut Lines<'_>,
    input: &[u8],
    grammar: Grammar,
) -> Result<Option<Headers>, HeadError> {
    let mut fields: Vec<Field> = Vec::new();
    while let Some(line) = lines.next_line()? {
        if line.is_empty() {
            let raw = input.get(..lines.position()).unwrap_or_default().to_vec();
            return Ok(Some(Headers { raw, fields }));
        }
        if lines.bytes(&line).first().copied().is_some_and(is_space) {
            fold(fields.last_mut(), input, line, grammar)?;
            continue;
        }
        if fields.len() >= MAX_HEADERS {
            return Err(HeadError::TooManyHeaders);
        }
        fields.push(field(input, line, grammar)?);
    }
    Ok(None)
}

fn field(input: &[u8], line: Range<usize>, grammar: Grammar) -> Result<Field, HeadError> {
    let bytes = input.get(line.clone()).unwrap_or_default();
    let colon = bytes
        .iter()
        .position(|&byte| byte == b':')
        .ok_or(HeadError::BadHeaderName)?;
    let name = line.start..line.start + colon;
    let (Some(name_bytes), Some(value_bytes)) = (bytes.get(..colon), bytes.get(colon + 1..)) else {
        return Err(HeadError::BadHeaderName);
    };
    token(name_bytes).ok_or(HeadError::BadHeaderName)?;
    check_value(value_bytes, grammar)?;
    let value = trim(input, name.end + 1..line.end);
    Ok(Field { name, value, line })
}

fn check_value(value: &[u8], grammar: Grammar) -> Result<(), HeadError> {
    let good = match grammar {
        Grammar::Strict => value.iter().copied().all(is_value),
        Grammar::Tolerant => !value.contains(&0),
    };
    if good {
        Ok(())
    } else {
        Err(HeadError::BadHeaderValue)
    }
}

/// Lets a line continue the field before it, unless the end of the body or of the connection hangs on that field.
fn fold(
    last: Option<&mut Field>,
    input: &[u8],
    line: Range<usize>,
    grammar: Grammar,
) -> Result<(), HeadError> {
    let Some(field) = last.filter(|_| grammar == Grammar::Tolerant) else {
        return Err(HeadError::ObsFold);
    };
    let name = input.get(field.name.clone()).unwrap_or_default();
    let framing = [
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
    ];
    if framing
        .iter()
        .any(|framing| name.eq_ignore_ascii_case(framing.as_bytes()))
    {
        return Err(HeadError::ObsFold);
    }
    check_value(input.get(line.clone()).unwrap_or_default(), grammar)?;
    field.value = trim(input, field.value.start..line.end);
    field.line.end = line.end;
    Ok(())
}

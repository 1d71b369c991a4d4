//! Lines of a head, and the classes of bytes in them.

use std::ops::Range;

use super::HeadError;

/// The most bytes a head may have, its final empty line included.
pub const MAX_HEAD: usize = 64 * 1024;

/// What may end a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endings {
    CrLf,
    /// A lone LF as well: RFC 9112 section 2.2 lets a recipient take it, and old CGI origins send it.
    CrLfOrLf,
}

/// Goes through the lines of a head in order, so that the first fault is the same however the bytes arrive.
pub(super) struct Lines<'a> {
    input: &'a [u8],
    at: usize,
    endings: Endings,
}

impl<'a> Lines<'a> {
    pub(super) fn new(input: &'a [u8], endings: Endings) -> Self {
        Self {
            input,
            at: 0,
            endings,
        }
    }

    /// Where the next line starts.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn bytes(&self, range: &Range<usize>) -> &'a [u8] {
        self.input.get(range.clone()).unwrap_or_default()
    }

    /// The next whole line without its ending; nothing when its ending has not arrived.
    pub(super) fn next_line(&mut self) -> Result<Option<Range<usize>>, HeadError> {
        let window = self
            .input
            .get(..self.input.len().min(MAX_HEAD))
            .unwrap_or_default();
        let start = self.at;
        let mut after_cr = false;
        for (offset, byte) in window.get(start..).unwrap_or_default().iter().enumerate() {
            match (after_cr, byte) {
                (true, b'\n') => return Ok(Some(self.take(start, offset, 2))),
                (true, _) => return Err(HeadError::BareCr),
                (false, b'\n') if self.endings == Endings::CrLf => return Err(HeadError::BareLf),
                (false, b'\n') => return Ok(Some(self.take(start, offset, 1))),
                (false, b'\r') => after_cr = true,
                (false, _) => {}
            }
        }
        if self.input.len() >= MAX_HEAD {
            Err(HeadError::TooLarge)
        } else {
            Ok(None)
        }
    }

    /// Steps over the line whose LF is `offset` bytes after `start`.
    fn take(&mut self, start: usize, offset: usize, ending: usize) -> Range<usize> {
        let lf = start + offset;
        self.at = lf + 1;
        start..(lf + 1 - ending)
    }
}

/// RFC 9110's `tchar`.
pub(in crate::wire) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

pub(super) fn token(bytes: &[u8]) -> Option<&str> {
    if bytes.is_empty() || !bytes.iter().copied().all(is_token) {
        return None;
    }
    str::from_utf8(bytes).ok()
}

/// A byte that a header's value may hold: a tab, or anything but the control characters.
pub(super) fn is_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

pub(super) fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// The range without optional white space around it.
pub(super) fn trim(input: &[u8], range: Range<usize>) -> Range<usize> {
    let bytes = input.get(range.clone()).unwrap_or_default();
    let Some(first) = bytes.iter().position(|&byte| !is_space(byte)) else {
        return range.start..range.start;
    };
    let last = bytes
        .iter()
        .rposition(|&byte| !is_space(byte))
        .unwrap_or(first);
    (range.start + first)..(range.start + last + 1)
}

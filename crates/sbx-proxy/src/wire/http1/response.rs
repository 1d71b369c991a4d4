//! The head of a response.

use super::connection::Connection;
use super::framing::{self, Declared};
use super::headers::{self, Grammar, Headers};
use super::lines::{Endings, Lines};
use super::{BodyKind, HeadError, Version};

/// A response head whose body has a certain end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    version: Version,
    status: u16,
    headers: Headers,
    declared: Declared,
    connection: Connection,
}

/// Parses the head at the start of `input` and says how many bytes it took.
pub fn parse_response(input: &[u8]) -> Result<Option<(ResponseHead, usize)>, HeadError> {
    let mut lines = Lines::new(input, Endings::CrLfOrLf);
    let Some(first) = lines.next_line()? else {
        return Ok(None);
    };
    let (version, status) = status_line(lines.bytes(&first))?;
    let Some(headers) = headers::read(&mut lines, input, Grammar::Tolerant)? else {
        return Ok(None);
    };
    Ok(Some((
        ResponseHead::new(version, status, headers)?,
        lines.position(),
    )))
}

impl ResponseHead {
    fn new(version: Version, status: u16, headers: Headers) -> Result<Self, HeadError> {
        let declared = framing::of_response(&headers, version)?;
        let connection = Connection::read(&headers)?;
        let bodyless = matches!(status, 100..=199 | 204);
        if bodyless && !matches!(declared, Declared::Nothing | Declared::Length(0)) {
            return Err(HeadError::UnexpectedBody);
        }
        Ok(Self {
            version,
            status,
            headers,
            declared,
            connection,
        })
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn status(&self) -> u16 {
        self.status
    }

    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Whether another response follows on this one for the same request.
    pub fn is_interim(&self) -> bool {
        matches!(self.status, 100..=199) && !self.is_switching()
    }

    /// `101`: the connection is no longer HTTP after this head.
    pub fn is_switching(&self) -> bool {
        self.status == 101
    }

    /// Whether the origin may be sent another request on the connection. Not after [`BodyKind::UntilClose`].
    pub fn keep_alive(&self) -> bool {
        self.connection.persists(self.version)
    }

    /// The body that follows this head when the request had this method.
    pub fn body(&self, method: &str) -> BodyKind {
        let tunnel = method == "CONNECT" && matches!(self.status, 200..=299);
        if method == "HEAD" || tunnel || matches!(self.status, 100..=199 | 204 | 304) {
            return BodyKind::None;
        }
        match self.declared {
            Declared::Nothing => BodyKind::UntilClose,
            Declared::Length(length) => BodyKind::Length(length),
            Declared::Chunked => BodyKind::Chunked,
        }
    }

    /// The head as sent.
    pub fn bytes(&self) -> &[u8] {
        self.headers.raw()
    }
}

/// The reason phrase, and the space before it, may be missing: many origins leave them out.
fn status_line(line: &[u8]) -> Result<(Version, u16), HeadError> {
    let (version, rest) = line.split_at_checked(8).ok_or(HeadError::BadStatusLine)?;
    let [
        b' ',
        a @ b'1'..=b'9',
        b @ b'0'..=b'9',
        c @ b'0'..=b'9',
        reason @ ..,
    ] = rest
    else {
        return Err(HeadError::BadStatusLine);
    };
    if !matches!(reason, [] | [b' ', ..]) || reason.contains(&0) {
        return Err(HeadError::BadStatusLine);
    }
    let digit = |byte: &u8| u16::from(byte.wrapping_sub(b'0'));
    Ok((
        Version::parse(version)?,
        digit(a) * 100 + digit(b) * 10 + digit(c),
    ))
}

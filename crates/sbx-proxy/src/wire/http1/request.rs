//! The head of a request.

use super::connection::Connection;
use super::headers::{self, Grammar, Headers};
use super::lines::{Endings, Lines, token};
use super::{Authority, BodyKind, HeadError, Target, framing};

/// The longest method; the longest registered one has 17 letters.
const MAX_METHOD: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

impl Version {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, HeadError> {
        match bytes {
            b"HTTP/1.0" => Ok(Self::Http10),
            b"HTTP/1.1" => Ok(Self::Http11),
            _ => Err(HeadError::BadVersion),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

/// A request head whose end, body and destination are beyond doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    method: String,
    target: Target,
    version: Version,
    headers: Headers,
    host: Option<Authority>,
    body: BodyKind,
    connection: Connection,
    expects_continue: bool,
    upgrade: Option<String>,
}

/// Parses the head at the start of `input` and says how many bytes it took.
pub fn parse_request(input: &[u8]) -> Result<Option<(RequestHead, usize)>, HeadError> {
    let Some(skipped) = leading_line(input)? else {
        return Ok(None);
    };
    let head = input.get(skipped..).unwrap_or_default();
    let mut lines = Lines::new(head, Endings::CrLf);
    let Some(first) = lines.next_line()? else {
        return Ok(None);
    };
    let (method, target, version) = request_line(lines.bytes(&first))?;
    let Some(headers) = headers::read(&mut lines, head, Grammar::Strict)? else {
        return Ok(None);
    };
    let consumed = skipped + lines.position();
    Ok(Some((
        RequestHead::new(method, target, version, headers)?,
        consumed,
    )))
}

impl RequestHead {
    fn new(
        method: String,
        target: Target,
        version: Version,
        headers: Headers,
    ) -> Result<Self, HeadError> {
        let host = host(&headers, &target, version)?;
        let body = framing::of_request(&headers, version)?;
        if method == "CONNECT" && !matches!(body, BodyKind::None | BodyKind::Length(0)) {
            return Err(HeadError::UnexpectedBody);
        }
        let connection = Connection::of_request(&headers)?;
        let expects_continue =
            expects_continue(&headers)? && version == Version::Http11 && body.has_bytes();
        let upgrade = upgrade(&headers, &connection, version);
        Ok(Self {
            method,
            target,
            version,
            headers,
            host,
            body,
            connection,
            expects_continue,
            upgrade,
        })
    }

    pub fn method(&self) -> &str {
        &self.method
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The `Host` header. Only HTTP/1.0 may leave it out.
    pub fn host(&self) -> Option<&Authority> {
        self.host.as_ref()
    }

    /// Whom the request is for: the target's authority, else the `Host` header.
    pub fn authority(&self) -> Option<&Authority> {
        self.target.authority().or(self.host.as_ref())
    }

    /// Never [`BodyKind::UntilClose`].
    pub fn body(&self) -> BodyKind {
        self.body
    }

    /// Whether the client may send another request on the connection.
    pub fn keep_alive(&self) -> bool {
        self.connection.persists(self.version)
    }

    /// Whether the client waits for `100 Continue` before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// The protocol that the client asks to switch to. A `101` to a request without one is not to be believed.
    /// HTTP/2 is never offered: requests inside it would pass unread, and origins may decline it.
    pub fn upgrade(&self) -> Option<&str> {
        self.upgrade.as_deref()
    }

    /// The head as sent, without an empty line before it.
    pub fn bytes(&self) -> &[u8] {
        self.headers.raw()
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// One empty line before a request is skipped (RFC 9112 section 2.2): how many bytes, once that is known.
fn leading_line(input: &[u8]) -> Result<Option<usize>, HeadError> {
    match input {
        [] | [b'\r'] => Ok(None),
        [b'\r', b'\n', rest @ ..] => match rest {
            [] | [b'\r'] => Ok(None),
            [b'\r', b'\n', ..] => Err(HeadError::LeadingEmptyLines),
            _ => Ok(Some(2)),
        },
        [b'\r', ..] => Err(HeadError::BareCr),
        _ => Ok(Some(0)),
    }
}

/// Method, target and version with exactly one space between them.
fn request_line(line: &[u8]) -> Result<(String, Target, Version), HeadError> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HeadError::BadRequestLine);
    };
    let method = token(method)
        .filter(|method| method.len() <= MAX_METHOD)
        .ok_or(HeadError::BadMethod)?;
    let version = Version::parse(version)?;
    Ok((method.to_owned(), Target::parse(method, target)?, version))
}

/// RFC 9112 lets a proxy ignore a `Host` that differs from the target; an origin behind us might not, so we refuse. No
/// origin sees the head of a CONNECT, and some clients name the proxy there.
fn host(
    headers: &Headers,
    target: &Target,
    version: Version,
) -> Result<Option<Authority>, HeadError> {
    let mut all = headers.all("host");
    let Some(header) = all.next() else {
        return if version == Version::Http10 {
            Ok(None)
        } else {
            Err(HeadError::MissingHost)
        };
    };
    if all.next().is_some() {
        return Err(HeadError::DuplicateHost);
    }
    let text = str::from_utf8(header.value).map_err(|_| HeadError::BadHost)?;
    let host = Authority::parse(text).map_err(|_| HeadError::BadHost)?;
    let same = match target {
        Target::Absolute { authority, .. } => host.same_place(authority, 80),
        Target::Authority(_) | Target::Origin(_) | Target::Asterisk => true,
    };
    if same {
        Ok(Some(host))
    } else {
        Err(HeadError::HostMismatch)
    }
}

/// Odd expectations make some origins answer early and lose count, so only the one that exists is let through.
fn expects_continue(headers: &Headers) -> Result<bool, HeadError> {
    let mut all = headers.all("expect");
    let Some(first) = all.next() else {
        return Ok(false);
    };
    if first.value.eq_ignore_ascii_case(b"100-continue") && all.next().is_none() {
        Ok(true)
    } else {
        Err(HeadError::BadExpect)
    }
}

fn upgrade(headers: &Headers, connection: &Connection, version: Version) -> Option<String> {
    if !connection.upgrade || version == Version::Http10 {
        return None;
    }
    let mut all = headers.all("upgrade");
    let protocol = str::from_utf8(all.next()?.value).ok()?.to_ascii_lowercase();
    let http2 = protocol
        .split(',')
        .map(str::trim)
        .any(|name| matches!(name, "h2c" | "h2" | "http/2.0" | "http/2"));
    (all.next().is_none() && !protocol.is_empty() && !http2).then_some(protocol)
}

//! The `Connection` header: what happens to the connection, and which headers are for this hop only.

use super::headers::Headers;
use super::lines::token;
use super::{HeadError, Version};

/// Headers that no request may declare to be for one hop only. Dropping them would change where the message ends,
/// whom it is for or what it means: the shape of hop-by-hop abuse.
const PROTECTED: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "authorization",
    "cookie",
    "content-type",
    "content-encoding",
    "range",
];

/// What all `Connection` headers say together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// The other options, in lower case: names of headers that end here.
    pub(super) named: Vec<String>,
}

impl Connection {
    pub(super) fn of_request(headers: &Headers) -> Result<Self, HeadError> {
        let connection = Self::read(headers)?;
        let protected = |name: &String| PROTECTED.contains(&name.as_str());
        if connection.named.iter().any(protected) {
            Err(HeadError::BadConnection)
        } else {
            Ok(connection)
        }
    }

    pub(super) fn read(headers: &Headers) -> Result<Self, HeadError> {
        let mut connection = Self::default();
        for header in headers.all("connection") {
            for option in options(header.value) {
                connection.add(option.ok_or(HeadError::BadConnection)?);
            }
        }
        Ok(connection)
    }

    fn add(&mut self, option: String) {
        match option.as_str() {
            "close" => self.close = true,
            "keep-alive" => self.keep_alive = true,
            "upgrade" => self.upgrade = true,
            _ => self.named.push(option),
        }
    }

    /// Whether the connection may carry another message.
    pub(super) fn persists(&self, version: Version) -> bool {
        match version {
            Version::Http10 => self.keep_alive && !self.close,
            Version::Http11 => !self.close,
        }
    }
}

/// The options of one field in lower case, each absent if it is not a token. Empty list elements are skipped.
pub(super) fn options(value: &[u8]) -> impl Iterator<Item = Option<String>> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.is_empty())
        .map(|option| token(option).map(str::to_ascii_lowercase))
}

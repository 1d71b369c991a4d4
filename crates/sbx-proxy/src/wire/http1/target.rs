//! Whom a request is for.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::HeadError;

/// The four forms of a request target (RFC 9112 section 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `/path?query`: what an origin is sent.
    Origin(String),
    /// `http://host:port/path`: what a forward proxy is sent. The path starts with `/`, or is `*` for an `OPTIONS`
    /// without a path (RFC 9112 section 3.2.4).
    Absolute { authority: Authority, path: String },
    /// `host:port`: only with `CONNECT`, which has no other form.
    Authority(Authority),
    /// `*`: only with `OPTIONS`.
    Asterisk,
}

impl Target {
    pub(super) fn parse(method: &str, bytes: &[u8]) -> Result<Self, HeadError> {
        let text = target_text(bytes).ok_or(HeadError::BadTarget)?;
        if method == "CONNECT" {
            let authority = Authority::parse(text)?;
            return if authority.port.is_some() {
                Ok(Self::Authority(authority))
            } else {
                Err(HeadError::NoPort)
            };
        }
        if text.starts_with('/') {
            return Ok(Self::Origin(text.to_owned()));
        }
        if text == "*" {
            return if method == "OPTIONS" {
                Ok(Self::Asterisk)
            } else {
                Err(HeadError::BadTarget)
            };
        }
        absolute(method, text)
    }

    /// The target as an origin is sent it; nothing for `CONNECT`.
    pub fn origin_form(&self) -> Option<&str> {
        match self {
            Self::Origin(path) | Self::Absolute { path, .. } => Some(path),
            Self::Authority(_) => None,
            Self::Asterisk => Some("*"),
        }
    }

    /// The host that the target itself names.
    pub fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Absolute { authority, .. } | Self::Authority(authority) => Some(authority),
            Self::Origin(_) | Self::Asterisk => None,
        }
    }
}

fn absolute(method: &str, text: &str) -> Result<Target, HeadError> {
    let (scheme, rest) = text.split_once("://").ok_or(HeadError::BadTarget)?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HeadError::UnsupportedScheme);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).ok_or(HeadError::BadTarget)?;
    let authority = Authority::parse(authority)?;
    let path = match path {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    Ok(Target::Absolute { authority, path })
}

/// Targets have no space, no control character and no fragment. Bytes outside ASCII are tolerated as UTF-8, because
/// careless clients do not escape them and they end nothing.
pub(super) fn target_text(bytes: &[u8]) -> Option<&str> {
    let text = str::from_utf8(bytes).ok().filter(|text| !text.is_empty())?;
    let bad = |c: char| c == '#' || c == ' ' || c.is_control();
    (!text.contains(bad)).then_some(text)
}

/// A host with an optional port, as in `Host` and in targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    host: String,
    port: Option<u16>,
    ipv6: bool,
}

impl Authority {
    /// Takes `name`, `name:port`, `1.2.3.4:port` and `[::1]:port`. User information, percent-encoding, empty ports
    /// and anything but letters, digits, `-`, `_` and `.` in a name are refused: parsers disagree on them.
    pub fn parse(text: &str) -> Result<Self, HeadError> {
        if text.contains('@') {
            return Err(HeadError::UserInfo);
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or(HeadError::BadAuthority)?;
            let address: Ipv6Addr = host.parse().map_err(|_| HeadError::BadAuthority)?;
            let port = if port.is_empty() {
                None
            } else {
                Some(port_after_colon(port)?)
            };
            return Ok(Self {
                host: address.to_string(),
                port,
                ipv6: true,
            });
        }
        let end = text.find(':').unwrap_or(text.len());
        let (host, port) = text.split_at_checked(end).ok_or(HeadError::BadAuthority)?;
        let host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if host.is_empty() || host.len() > 254 || !host.bytes().all(host_byte) {
            return Err(HeadError::BadAuthority);
        }
        let port = if port.is_empty() {
            None
        } else {
            Some(port_after_colon(port)?)
        };
        Ok(Self {
            host: host.to_ascii_lowercase(),
            port,
            ipv6: false,
        })
    }

    /// The name in lower case or the address; an IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The address, when the host is one written in the usual way.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Whether both are the same place when a missing port means `default`.
    pub(super) fn same_place(&self, other: &Self, default: u16) -> bool {
        self.host == other.host && self.port.unwrap_or(default) == other.port.unwrap_or(default)
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ipv6 {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// `:80` and nothing fancier: no sign, no leading zero, no port 0.
fn port_after_colon(text: &str) -> Result<u16, HeadError> {
    let digits = text.strip_prefix(':').unwrap_or_default();
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    if !plain {
        return Err(HeadError::BadAuthority);
    }
    digits.parse().map_err(|_| HeadError::BadAuthority)
}

//! SOCKS 5 (RFC 1928) as far as a sandbox may use it: no authentication, and `CONNECT` only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A client's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    /// Whether "no authentication" is among the methods; if not, answer [`NO_METHOD`] and close.
    Socks5 { no_auth: bool },
    /// An older client: answer [`SOCKS4_REFUSED`] and close, so that it fails at once. Nothing is consumed.
    Socks4,
}

/// Answer to a greeting: go on without authentication.
pub const METHOD_NO_AUTH: [u8; 2] = [5, 0];
/// Answer to a greeting: none of the methods will do.
pub const NO_METHOD: [u8; 2] = [5, 0xff];
/// Answer to a SOCKS 4 request: rejected.
pub const SOCKS4_REFUSED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

/// A `CONNECT` request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub address: Address,
    /// Never 0.
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Ip(IpAddr),
    /// In lower case: letters, digits, `-`, `_` and `.`.
    Name(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocksError {
    #[error("the client does not speak SOCKS 5")]
    BadVersion,
    #[error("the greeting offers no method")]
    NoMethods,
    #[error("the request's reserved byte is not zero")]
    BadReserved,
    #[error("only CONNECT is supported")]
    UnsupportedCommand,
    #[error("the type of the address is unknown")]
    UnsupportedAddress,
    #[error("the name is not a host name")]
    BadName,
    #[error("port 0 cannot be connected to")]
    BadPort,
}

impl SocksError {
    /// What the client is told.
    pub fn reply(self) -> Reply {
        match self {
            Self::UnsupportedCommand => Reply::UnsupportedCommand,
            Self::UnsupportedAddress => Reply::UnsupportedAddress,
            Self::BadVersion
            | Self::NoMethods
            | Self::BadReserved
            | Self::BadName
            | Self::BadPort => Reply::Failure,
        }
    }
}

/// The reply codes of RFC 1928 section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Succeeded,
    Failure,
    NotAllowed,
    NetworkUnreachable,
    HostUnreachable,
    Refused,
    TtlExpired,
    UnsupportedCommand,
    UnsupportedAddress,
}

impl Reply {
    fn code(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failure => 1,
            Self::NotAllowed => 2,
            Self::NetworkUnreachable => 3,
            Self::HostUnreachable => 4,
            Self::Refused => 5,
            Self::TtlExpired => 6,
            Self::UnsupportedCommand => 7,
            Self::UnsupportedAddress => 8,
        }
    }

    /// The bytes of a reply that gives no bound address: the sandbox need not learn the host's.
    pub fn bytes(self) -> Vec<u8> {
        self.with_bound(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
    }

    pub fn with_bound(self, bound: SocketAddr) -> Vec<u8> {
        let mut out = vec![5, self.code(), 0];
        match bound.ip() {
            IpAddr::V4(address) => {
                out.push(1);
                out.extend_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                out.push(4);
                out.extend_from_slice(&address.octets());
            }
        }
        out.extend_from_slice(&bound.port().to_be_bytes());
        out
    }
}

/// Parses the greeting at the start of `input` and says how many bytes it took.
pub fn parse_greeting(input: &[u8]) -> Result<Option<(Greeting, usize)>, SocksError> {
    match input {
        [] | [5] => Ok(None),
        [4, ..] => Ok(Some((Greeting::Socks4, 0))),
        [5, 0, ..] => Err(SocksError::NoMethods),
        [5, count, rest @ ..] => {
            let count = usize::from(*count);
            Ok(rest.get(..count).map(|methods| {
                (
                    Greeting::Socks5 {
                        no_auth: methods.contains(&0),
                    },
                    2 + count,
                )
            }))
        }
        _ => Err(SocksError::BadVersion),
    }
}

/// Parses the request at the start of `input` and says how many bytes it took.
pub fn parse_request(input: &[u8]) -> Result<Option<(Request, usize)>, SocksError> {
    check_start(input)?;
    let Some((&[_, _, _, kind], rest)) = input.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let Some((address, length)) = address(kind, rest)? else {
        return Ok(None);
    };
    let Some(&[high, low]) = rest.get(length..).and_then(|rest| rest.first_chunk::<2>()) else {
        return Ok(None);
    };
    match u16::from_be_bytes([high, low]) {
        0 => Err(SocksError::BadPort),
        port => Ok(Some((Request { address, port }, 4 + length + 2))),
    }
}

/// Refuses as soon as the byte that decides has arrived.
fn check_start(input: &[u8]) -> Result<(), SocksError> {
    match input {
        [] | [5] | [5, 1] | [5, 1, 0] | [5, 1, 0, 1 | 3 | 4, ..] => Ok(()),
        [5, 1, 0, ..] => Err(SocksError::UnsupportedAddress),
        [5, 1, ..] => Err(SocksError::BadReserved),
        [5, ..] => Err(SocksError::UnsupportedCommand),
        _ => Err(SocksError::BadVersion),
    }
}

/// The address and how many bytes after its type it takes.
fn address(kind: u8, bytes: &[u8]) -> Result<Option<(Address, usize)>, SocksError> {
    match kind {
        1 => Ok(bytes
            .first_chunk::<4>()
            .map(|octets| (Address::Ip(Ipv4Addr::from(*octets).into()), 4))),
        4 => Ok(bytes
            .first_chunk::<16>()
            .map(|octets| (Address::Ip(Ipv6Addr::from(*octets).into()), 16))),
        _ => {
            let Some((length, rest)) = bytes.split_first() else {
                return Ok(None);
            };
            let length = usize::from(*length);
            if length == 0 {
                return Err(SocksError::BadName);
            }
            match rest.get(..length) {
                Some(name) => Ok(Some((name_or_ip(name)?, 1 + length))),
                None => Ok(None),
            }
        }
    }
}

/// Clients that leave names to the proxy send addresses in text as well: they must meet the rules for addresses.
fn name_or_ip(bytes: &[u8]) -> Result<Address, SocksError> {
    let text = str::from_utf8(bytes).map_err(|_| SocksError::BadName)?;
    if let Ok(ip) = text.parse() {
        return Ok(Address::Ip(ip));
    }
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.bytes().all(good) {
        Ok(Address::Name(text.to_ascii_lowercase()))
    } else {
        Err(SocksError::BadName)
    }
}

#[cfg(test)]
mod tests;

//! Canonical hosts. Two spellings of the same destination must become the same [`Host`], because a rule that knows
//! only one of them would be no rule: case, a trailing dot, Unicode and punycode, and every way to write an IPv4
//! address that some resolver accepts. What has no single meaning is refused.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

use crate::ipv4::{self, Ipv4Reading};

/// Bounds the work of IDNA processing: no name of 253 ASCII characters needs more bytes than this in UTF-8.
const MAX_TEXT: usize = 1024;
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Where a connection goes: a DNS name or an address, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    Name(DomainName),
    Ip(IpAddr),
}

/// A DNS name in lower-case ASCII, without a trailing dot, whose last label is not a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(String);

#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum HostError {
    #[error("the host is empty")]
    Empty,
    #[error("a host name has at most 253 characters")]
    TooLong,
    #[error("host `{0}` has an empty label")]
    EmptyLabel(String),
    #[error("host `{0}` has a label of more than 63 characters")]
    LongLabel(String),
    #[error("host {text:?} contains {found:?}")]
    BadCharacter { text: String, found: char },
    #[error("host {0:?} is not a valid internationalised name")]
    BadUnicode(String),
    #[error("host `{0}` ends in a number but is not an IPv4 address")]
    BadIpv4(String),
    #[error("invalid IPv6 address {0:?}")]
    BadIpv6(String),
    #[error("`{0}` is an address, not a name")]
    Address(String),
    #[error("address {0:?} has a zone id")]
    ZoneId(String),
}

impl Host {
    /// Reads a host without a port. An IPv6 address may stand in brackets or without them.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if text.len() > MAX_TEXT {
            return Err(HostError::TooLong);
        }
        if text.starts_with('[') || text.contains(':') {
            return parse_ipv6(text).map(Self::Ip);
        }
        let ascii = to_ascii(text)?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        check_name(name, text)?;
        match ipv4::read(name) {
            Ipv4Reading::Address(address) => Ok(Self::Ip(IpAddr::V4(address))),
            Ipv4Reading::Invalid => Err(HostError::BadIpv4(text.to_owned())),
            Ipv4Reading::Name => Ok(Self::Name(DomainName(name.to_owned()))),
        }
    }

    pub fn as_name(&self) -> Option<&DomainName> {
        match self {
            Self::Name(name) => Some(name),
            Self::Ip(_) => None,
        }
    }

    pub fn as_ip(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::Ip(address) => Some(*address),
        }
    }
}

impl From<IpAddr> for Host {
    /// An IPv4 address that is mapped into IPv6 becomes IPv4: the kernel dials the same peer.
    fn from(address: IpAddr) -> Self {
        Self::Ip(address.to_canonical())
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

impl DomainName {
    pub fn parse(text: &str) -> Result<Self, HostError> {
        match Host::parse(text)? {
            Host::Name(name) => Ok(name),
            Host::Ip(_) => Err(HostError::Address(text.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Lower case and punycode. Wildcard characters pass through, since patterns come this way too.
pub(crate) fn to_ascii(text: &str) -> Result<String, HostError> {
    if text.len() > MAX_TEXT {
        return Err(HostError::TooLong);
    }
    idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::EMPTY)
        .map(String::from)
        .map_err(|_| HostError::BadUnicode(text.to_owned()))
}

fn check_name(name: &str, text: &str) -> Result<(), HostError> {
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    if let Some(found) = name.chars().find(|c| !is_name_character(*c)) {
        return Err(HostError::BadCharacter {
            text: text.to_owned(),
            found,
        });
    }
    if name.len() > MAX_NAME {
        return Err(HostError::TooLong);
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostError::EmptyLabel(text.to_owned()));
        }
        if label.len() > MAX_LABEL {
            return Err(HostError::LongLabel(text.to_owned()));
        }
    }
    Ok(())
}

/// RFC 952 has no underscore in host names, but real names have it.
fn is_name_character(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.')
}

fn parse_ipv6(text: &str) -> Result<IpAddr, HostError> {
    let bad = || HostError::BadIpv6(text.to_owned());
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(bad)?,
        None => text,
    };
    if inner.contains('%') {
        return Err(HostError::ZoneId(text.to_owned()));
    }
    let address: Ipv6Addr = inner.parse().map_err(|_| bad())?;
    Ok(IpAddr::V6(address).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Result<String, HostError> {
        Host::parse(text).map(|host| host.to_string())
    }

    #[test]
    fn spellings_of_one_host_become_one_host() {
        let table = [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("example\u{3002}com", "example.com"),
            ("exa\u{ad}mple.com", "example.com"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("r3---sn-x.example.com", "r3---sn-x.example.com"),
            ("-a-.example.com", "-a-.example.com"),
            ("localhost", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1.", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("2130706433", "127.0.0.1"),
            ("0x7f000001", "127.0.0.1"),
            ("0X7F.1", "127.0.0.1"),
            ("0177.0.0.01", "127.0.0.1"),
            ("127.0.1", "127.0.0.1"),
            ("１２７.0.0.1", "127.0.0.1"),
            ("0", "0.0.0.0"),
            ("0x", "0.0.0.0"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("0:0:0:0:0:0:0:1", "::1"),
            ("[2001:DB8::0:1]", "2001:db8::1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("[::ffff:a00:1]", "10.0.0.1"),
            ("64:ff9b::10.0.0.1", "64:ff9b::a00:1"),
        ];
        for (text, expected) in table {
            assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_has_no_single_meaning_is_refused() {
        let long_label = format!("{}.com", "a".repeat(64));
        let long_name = format!("{}com", "abcdefgh.".repeat(28));
        let huge = "a".repeat(10_000);
        let table = [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a.com..",
            "a%41.com",
            "a\0.com",
            "a b.com",
            " a.com",
            "a.com\n",
            "a\tb",
            "user@a.com",
            "a.com/",
            "a\\b",
            "a?b",
            "a#b",
            "*.a.com",
            "a,b",
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.256",
            "4294967296",
            "09.1.1.1",
            "a.1",
            "a.0x1f",
            "1.2.3.08",
            "fe80::1%eth0",
            "[fe80::1%25eth0]",
            "[::1",
            "::1]",
            "[127.0.0.1]",
            "[a.com]",
            "[]",
            ":",
            ":::",
            "1::2::3",
            "xn--\u{fc}.com",
            "a\u{ff0f}b.com",
            "a\u{ff05}b.com",
            &long_label,
            &long_name,
            &huge,
        ];
        for text in table {
            assert!(Host::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}

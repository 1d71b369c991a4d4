//! A host with a port, in the spellings in which requests, headers and people name it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

use crate::host::{Host, HostError};
use crate::policy::Protocol;

const HTTP: u16 = 80;
const HTTPS: u16 = 443;
const SSH: u16 = 22;

/// Where a connection wants to go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TargetError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("`{0}` has no port")]
    NoPort(String),
    #[error("invalid port {0:?}: expected a number from 1 to 65535")]
    BadPort(String),
    #[error("{0:?} contains user information")]
    UserInfo(String),
    #[error("{0:?} is ambiguous: an IPv6 address with a port is written `[address]:port`")]
    Unbracketed(String),
    #[error("invalid URL {0:?}: it has no host")]
    BadUrl(String),
    #[error("the scheme of `{0}` has no known port: add one, as in `host:port`")]
    SchemeNeedsPort(String),
}

impl Target {
    /// Reads the authority of a CONNECT request or a `Host` header. Without `default_port` the port must be there.
    pub fn parse_authority(text: &str, default_port: Option<u16>) -> Result<Self, TargetError> {
        if text.contains('@') {
            return Err(TargetError::UserInfo(text.to_owned()));
        }
        let (host, port) = split_authority(text)?;
        let port = match port {
            Some(digits) => {
                parse_port(digits).ok_or_else(|| TargetError::BadPort(digits.to_owned()))?
            }
            None => default_port.ok_or_else(|| TargetError::NoPort(text.to_owned()))?,
        };
        let host = Host::parse(host)?;
        Ok(Self { host, port })
    }

    /// Reads what a person types: a host, an address, either with a port, or a URL. The default port is 443.
    pub fn parse_loose(text: &str) -> Result<Self, TargetError> {
        if let Some((scheme, rest)) = text.split_once("://") {
            return parse_url(text, scheme, rest);
        }
        if may_end_in_port(text) {
            return Err(TargetError::Unbracketed(text.to_owned()));
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self {
                host: IpAddr::V6(address).into(),
                port: HTTPS,
            });
        }
        // Told apart from an address with a port: brackets would not help.
        if let Some((address, _)) = text.split_once('%')
            && address.parse::<Ipv6Addr>().is_ok()
        {
            return Err(HostError::ZoneId(text.to_owned()).into());
        }
        Self::parse_authority(text, Some(HTTPS))
    }
}

impl Target {
    /// What a user means who typed a URL, or a host with a user before it: for a hint, never for a decision.
    pub fn meant_by(text: &str) -> Option<Self> {
        // The host would depend on the reader.
        if text.contains('\\') {
            return None;
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (format!("{scheme}://"), rest),
            None => (String::new(), text),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = rest.get(..end)?;
        let host = authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host);
        match Self::parse_loose(&format!("{scheme}{host}")) {
            Ok(target) => Some(target),
            // A scheme that everybody knows the port of.
            Err(_) if scheme.eq_ignore_ascii_case("ssh://") => {
                Self::parse_authority(host, Some(SSH)).ok()
            }
            Err(_) => None,
        }
    }
}

/// Whether an IPv6 address without brackets may be meant as a shorter one and a port, as in `::1:443`.
pub(crate) fn may_end_in_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(address, port)| {
        parse_port(port).is_some()
            && address.parse::<Ipv6Addr>().is_ok()
            && text.parse::<Ipv6Addr>().is_ok()
    })
}

impl Protocol {
    /// What the scheme of a URL promises. A target without a scheme promises nothing.
    pub fn of_url(text: &str) -> Option<Self> {
        let (scheme, _) = text.split_once("://")?;
        Some(match default_port(scheme) {
            Some(_) => Self::Web,
            None => Self::Other,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            host @ (Host::Name(_) | Host::Ip(IpAddr::V4(_))) => write!(f, "{host}:{}", self.port),
        }
    }
}

/// Digits only: no sign, no space, nothing that another parser may read differently.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

fn split_authority(text: &str) -> Result<(&str, Option<&str>), TargetError> {
    if text.starts_with('[') {
        return match text.split_once("]:") {
            Some((_, port)) => {
                let end = text.len() - port.len() - 1;
                Ok((text.get(..end).unwrap_or(text), Some(port)))
            }
            None => Ok((text, None)),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Err(TargetError::Unbracketed(text.to_owned())),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

fn parse_url(text: &str, scheme: &str, rest: &str) -> Result<Target, TargetError> {
    let bad = || TargetError::BadUrl(text.to_owned());
    let scheme_is_plain = scheme
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    // A backslash is a slash to browsers and a character to others: the host would depend on the reader.
    if scheme.is_empty() || !scheme_is_plain || text.contains(['\\', '\n', '\r', '\t']) {
        return Err(bad());
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err(bad());
    }
    match Target::parse_authority(authority, default_port(scheme)) {
        Err(TargetError::NoPort(_)) => Err(TargetError::SchemeNeedsPort(text.to_owned())),
        // The message must not repeat what may be a password.
        Err(TargetError::UserInfo(_)) => Err(TargetError::UserInfo(format!("{scheme}://…"))),
        result => result,
    }
}

/// The schemes that are HTTP, with or without TLS.
fn default_port(scheme: &str) -> Option<u16> {
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => Some(HTTP),
        "https" | "wss" => Some(HTTPS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loose(text: &str) -> String {
        match Target::parse_loose(text) {
            Ok(target) => target.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn people_may_name_a_target_in_many_ways() {
        let table = [
            ("example.com", "example.com:443"),
            ("example.com:8443", "example.com:8443"),
            ("Example.com.:22", "example.com:22"),
            ("10.0.0.1", "10.0.0.1:443"),
            ("::1", "[::1]:443"),
            ("[::1]", "[::1]:443"),
            ("[::1]:22", "[::1]:22"),
            ("::ffff:1.2.3.4", "1.2.3.4:443"),
            ("http://example.com", "example.com:80"),
            ("HTTPS://example.com/a?b#c", "example.com:443"),
            ("https://example.com?x", "example.com:443"),
            ("https://[::1]:8443/x", "[::1]:8443"),
            ("ws://example.com/", "example.com:80"),
            ("ssh://example.com:22", "example.com:22"),
        ];
        for (text, expected) in table {
            assert_eq!(loose(text), expected, "{text}");
        }
    }

    #[test]
    fn a_scheme_says_what_is_spoken() {
        for (text, expected) in [
            ("https://example.com", Some(Protocol::Web)),
            ("WS://example.com", Some(Protocol::Web)),
            ("ssh://example.com:22", Some(Protocol::Other)),
            ("example.com:80", None),
        ] {
            assert_eq!(Protocol::of_url(text), expected, "{text}");
        }
    }

    #[test]
    fn ambiguous_targets_are_refused() {
        let table = [
            "",
            ":443",
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "example.com:+443",
            "example.com: 443",
            "example.com:443:443",
            "ssh://example.com",
            "https://",
            "https:///x",
            "https://u:p@example.com/",
            "u@example.com",
            "https://example.com\\@evil.com/",
            "://example.com",
            "a b://example.com",
            "https://exa mple.com/",
            "[::1]443",
            "[::1]:",
            "example.com/path",
            "::1:443",
            "2001:db8::1:22",
            "https://example.com:99999/",
            "example.com:000443",
        ];
        for text in table {
            assert!(Target::parse_loose(text).is_err(), "{text:?} was accepted");
        }
        assert!(!loose("https://u:hunter2@example.com/").contains("hunter2"));
        for zoned in ["fe80::1%lo", "[fe80::1%lo]", "[fe80::1%25lo]:80"] {
            assert!(loose(zoned).contains("zone id"), "{}", loose(zoned));
        }
    }

    #[test]
    fn what_was_meant() {
        for (text, expected) in [
            ("ssh://git@github.com:22/x", Some("github.com:22")),
            ("ssh://git@github.com/x", Some("github.com:22")),
            ("https://u:p@example.com/a@b", Some("example.com:443")),
            ("https://example.com:8443/a", Some("example.com:8443")),
            ("git@example.com", Some("example.com:443")),
            ("git://example.com/x", None),
            ("git@github.com:org/repo", None),
            ("https://a\\@b/", None),
            ("", None),
        ] {
            let meant = Target::meant_by(text).map(|target| target.to_string());
            assert_eq!(meant.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_authority_needs_a_port_and_brackets() {
        assert!(matches!(
            Target::parse_authority("example.com", None),
            Err(TargetError::NoPort(_))
        ));
        assert!(matches!(
            Target::parse_authority("::1:443", Some(80)),
            Err(TargetError::Unbracketed(_))
        ));
        let target = Target::parse_authority("[::1]:443", None).unwrap();
        assert_eq!(target.to_string(), "[::1]:443");
    }
}

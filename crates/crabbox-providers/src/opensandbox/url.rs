//! Addresses of the server and of sandboxes, and which of them may be used.
//!
//! Plain HTTP would show the key and the commands to the network, so it is for this machine only. An address from the
//! server is untrusted: it may not point at this machine unless the server itself is on it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use hyper::Uri;
use sha2::{Digest as _, Sha256};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// Scheme, host and port: where a connection goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin {
    pub(super) scheme: Scheme,
    /// In lower case; an IPv6 address without its brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

/// The server, normalized: two spellings of one server are the same claim scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiUrl {
    pub(super) origin: Origin,
    /// Without a trailing slash and without `/v1`.
    path: String,
}

/// Where one port of a sandbox is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DataUrl {
    pub(super) origin: Origin,
    path: String,
    /// Goes with every request.
    query: String,
}

impl Scheme {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl Origin {
    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// For the `Host` header and for people.
    pub(super) fn authority(&self) -> String {
        let host = match self.host.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{}]", self.host),
            Err(_) => self.host.clone(),
        };
        match self.port == self.scheme.default_port() {
            true => host,
            false => format!("{host}:{}", self.port),
        }
    }

    fn of(uri: &Uri, scheme: Scheme) -> Result<Self, String> {
        let authority = uri.authority().ok_or("has no host")?;
        if authority.as_str().contains('@') {
            return Err("must not contain a user or password".to_owned());
        }
        let host = authority.host().to_ascii_lowercase();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .map_or(host.clone(), str::to_owned);
        if host.is_empty() {
            return Err("has no host".to_owned());
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str().ends_with(':') => return Err("has an empty port".to_owned()),
            None => scheme.default_port(),
        };
        Ok(Self { scheme, host, port })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.authority())
    }
}

pub(super) fn is_loopback(host: &str) -> bool {
    if host == "localhost" || host.ends_with(".localhost") {
        return true;
    }
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback(),
        Ok(IpAddr::V6(address)) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
        Err(_) => false,
    }
}

impl ApiUrl {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let refuse = |why: &str| format!("opensandbox API URL {why}");
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| refuse("must be an absolute http or https URL"))?;
        let scheme = Scheme::parse(&scheme.to_ascii_lowercase())
            .ok_or_else(|| refuse("must be an absolute http or https URL"))?;
        if rest.contains('#') {
            return Err(refuse("must not contain a fragment"));
        }
        if rest.contains('?') {
            return Err(refuse("must not contain a query"));
        }
        let uri: Uri = format!("{}://{rest}", scheme.as_str())
            .parse()
            .map_err(|_| refuse("is malformed"))?;
        let origin = Origin::of(&uri, scheme).map_err(|why| refuse(&why))?;
        if scheme == Scheme::Http && !origin.is_loopback() {
            return Err(refuse(
                "must use https; plain http is accepted for localhost and loopback addresses only",
            ));
        }
        let path = uri.path().trim_end_matches('/');
        let path = path
            .strip_suffix("/v1")
            .unwrap_or(path)
            .trim_end_matches('/');
        Ok(Self {
            origin,
            path: path.to_owned(),
        })
    }

    /// The path of a call, with its query.
    pub(super) fn path(&self, call: &str) -> String {
        format!("{}/v1{call}", self.path)
    }

    /// The part of a claim's scope that says which server.
    pub(super) fn scope(&self) -> String {
        let digest = Sha256::digest(self.to_string().as_bytes());
        let hex: String = digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("ep-{hex}")
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

impl DataUrl {
    /// An endpoint as the server names it: usually without a scheme, perhaps with a path and a query.
    pub(super) fn parse(text: &str, api: &ApiUrl) -> Result<Self, String> {
        let refuse = |why: &str| format!("opensandbox sandbox endpoint {why}");
        let text = text.trim();
        if text.contains('#') {
            return Err(refuse("must not contain a fragment"));
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => {
                let scheme = Scheme::parse(&scheme.to_ascii_lowercase());
                (scheme.ok_or_else(|| refuse("must be http or https"))?, rest)
            }
            None => (api.origin.scheme, text),
        };
        let uri: Uri = format!("{}://{rest}", scheme.as_str())
            .parse()
            .map_err(|_| refuse("is malformed"))?;
        let origin = Origin::of(&uri, scheme).map_err(|why| refuse(&why))?;
        if scheme == Scheme::Http && !origin.is_loopback() {
            return Err(refuse(
                "must use https; plain http is accepted for loopback addresses only",
            ));
        }
        if origin.is_loopback() && !api.origin.is_loopback() {
            return Err(refuse(
                "points at this machine, and the server is not on it",
            ));
        }
        Ok(Self {
            origin,
            path: uri.path().trim_end_matches('/').to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
        })
    }

    /// Whether every call goes to the server's own proxy of that sandbox. No call may lead elsewhere on the server: what
    /// is sent there may carry the key.
    pub(super) fn is_proxy_of(&self, api: &ApiUrl, id: &str) -> bool {
        let proxy = api.path(&format!("/sandboxes/{}/proxy/", encode(id)));
        let port = self.path.strip_prefix(&proxy);
        let is_port = |port: &str| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
        self.origin == api.origin && port.is_some_and(is_port)
    }

    /// Where an absolute address leads.
    pub(super) fn origin_of(uri: &Uri, scheme: &str) -> Result<Origin, String> {
        let scheme = Scheme::parse(&scheme.to_ascii_lowercase()).ok_or("unknown scheme")?;
        Origin::of(uri, scheme)
    }

    /// The path of a call. `query` is the call's own.
    pub(super) fn path(&self, call: &str, query: &str) -> String {
        let parts = [query, self.query.as_str()];
        let joined: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        match joined.is_empty() {
            true => format!("{}{call}", self.path),
            false => format!("{}{call}?{}", self.path, joined.join("&")),
        }
    }

    /// The values of its query, raw and decoded: they may be credentials.
    pub(super) fn secrets(&self) -> Vec<String> {
        let mut secrets = Vec::new();
        for pair in self.query.split('&') {
            let value = pair.split_once('=').map_or(pair, |(_, value)| value);
            secrets.push(value.to_owned());
            secrets.push(decode(value));
        }
        secrets
    }
}

/// For one value of a query.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

pub(super) fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = after;
        match (byte, escaped) {
            (b'+', _) => bytes.push(b' '),
            (b'%', Some(value)) => {
                bytes.push(value);
                rest = after.get(2..).unwrap_or_default();
            }
            (other, _) => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_one_scope() {
        let scope = |text| ApiUrl::parse(text).unwrap().scope();
        assert_eq!(scope("http://localhost:8080"), "ep-a76d8c3e94eba61f");
        for same in [
            "http://localhost:8080/",
            "HTTP://LOCALHOST:8080/v1",
            "http://localhost:8080/v1/",
        ] {
            assert_eq!(scope(same), scope("http://localhost:8080"), "{same}");
        }
        assert_eq!(
            ApiUrl::parse("https://Example.org:443/base/v1")
                .unwrap()
                .to_string(),
            "https://example.org/base"
        );
        assert_eq!(
            ApiUrl::parse("https://h/base").unwrap().path("/sandboxes"),
            "/base/v1/sandboxes"
        );
    }

    #[test]
    fn only_safe_servers_are_used() {
        for bad in [
            "localhost:8080",
            "ftp://localhost",
            "http://example.org",
            "http://10.0.0.1:8080",
            "https://user:secret@example.org",
            "https://example.org/?a=b",
            "https://example.org/#x",
            "https://",
            "http://localhost.example.org",
            "http://[::2]:80",
        ] {
            let error = ApiUrl::parse(bad).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        for good in [
            "http://127.0.0.2:1",
            "http://[::1]:8080",
            "https://example.org",
        ] {
            ApiUrl::parse(good).unwrap();
        }
    }

    #[test]
    fn the_key_is_for_the_servers_proxy_of_one_sandbox() {
        let api = ApiUrl::parse("http://127.0.0.1:8080/base").unwrap();
        let proxy = |text: &str| DataUrl::parse(text, &api).unwrap().is_proxy_of(&api, "a-1");
        assert!(proxy("127.0.0.1:8080/base/v1/sandboxes/a-1/proxy/44772"));
        assert!(proxy(
            "127.0.0.1:8080/base/v1/sandboxes/a-1/proxy/44772/?t=x"
        ));
        for other in [
            "127.0.0.1:8081/base/v1/sandboxes/a-1/proxy/44772",
            "localhost:8080/base/v1/sandboxes/a-1/proxy/44772",
            "127.0.0.1:8080/v1/sandboxes/a-1/proxy/44772",
            "127.0.0.1:8080/base/v1/sandboxes/a-2/proxy/44772",
            "127.0.0.1:8080/base/v1/sandboxes/a-1/proxy/44772/../../../a-2",
            "127.0.0.1:8080/base/v1/sandboxes/a-1/proxy/%2e%2e/x",
            "127.0.0.1:8080/base/v1/sandboxes/a-1/proxy/",
            "127.0.0.1:8080/base/v1/sandboxes",
            "127.0.0.1:8080",
        ] {
            assert!(!proxy(other), "{other}");
        }
    }

    #[test]
    fn endpoints_follow_the_same_rule() {
        let here = ApiUrl::parse("http://127.0.0.1:8080").unwrap();
        let far = ApiUrl::parse("https://sandboxes.example.org").unwrap();
        let url = DataUrl::parse("127.0.0.1:41915/proxy/44772?t=a%20b", &here).unwrap();
        assert_eq!(url.path("/ping", ""), "/proxy/44772/ping?t=a%20b");
        assert_eq!(
            url.path("/files", "path=x"),
            "/proxy/44772/files?path=x&t=a%20b"
        );
        assert_eq!(url.secrets(), ["a%20b", "a b"]);
        assert_eq!(
            DataUrl::parse("edge.example.org/x", &far)
                .unwrap()
                .origin
                .scheme,
            Scheme::Https
        );
        for (text, api) in [
            ("10.0.0.1:1/x", &here),
            ("http://edge.example.org", &far),
            ("127.0.0.1:22", &far),
            ("https://localhost:1", &far),
            ("u:p@edge.example.org", &far),
            ("edge.example.org/#f", &far),
            ("", &far),
            ("file:///etc/passwd", &far),
            ("edge.example.org\r\nx: y", &far),
        ] {
            assert!(DataUrl::parse(text, api).is_err(), "{text:?}");
        }
    }
}

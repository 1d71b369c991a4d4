//! The proxy variables of the caller. They are for https alone, by CONNECT: a proxy for plain HTTP would read the key.

use crabbox_core::git::Env;
use hyper::Uri;

use crate::opensandbox::url::{Origin, Scheme, is_loopback};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::opensandbox) struct Proxies {
    /// The variable's name and its value.
    https: Option<(String, String)>,
    none: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) host: String,
    pub(super) port: u16,
    /// `user:password`, decoded as far as it goes on the wire.
    pub(super) credentials: Option<String>,
}

impl Proxies {
    pub(in crate::opensandbox) fn from(env: &Env) -> Self {
        let get = |name: &str| {
            let value = env.get(std::ffi::OsStr::new(name))?.to_str()?.trim();
            (!value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        };
        let first = |names: &[&str]| names.iter().find_map(|name| get(name));
        let none = first(&["no_proxy", "NO_PROXY"]).map(|(_, value)| value);
        Self {
            https: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            none: none
                .iter()
                .flat_map(|list| list.split(','))
                .map(|entry| entry.trim().to_ascii_lowercase())
                .filter(|entry| !entry.is_empty())
                .collect(),
        }
    }

    /// The proxy for this place, if one is to be used. A value that cannot be used is an error: going around it may be
    /// against the rules of the network.
    pub(super) fn for_origin(&self, origin: &Origin) -> Result<Option<Proxy>, String> {
        let Some((name, value)) = &self.https else {
            return Ok(None);
        };
        if origin.scheme == Scheme::Http || origin.is_loopback() || self.exempts(origin) {
            return Ok(None);
        }
        parse(value)
            .map(Some)
            .map_err(|why| format!("{name} cannot be used: {why}"))
    }

    fn exempts(&self, origin: &Origin) -> bool {
        self.none.iter().any(|entry| {
            let (host, port) = match entry.rsplit_once(':') {
                Some((host, port)) if port.parse::<u16>().is_ok() && !host.contains(':') => {
                    (host, port.parse::<u16>().ok())
                }
                _ => (entry.as_str(), None),
            };
            if port.is_some_and(|port| port != origin.port) {
                return false;
            }
            let suffix = host.trim_start_matches('*').trim_start_matches('.');
            host == "*"
                || origin.host == suffix
                || (!suffix.is_empty() && origin.host.ends_with(&format!(".{suffix}")))
        })
    }
}

fn parse(value: &str) -> Result<Proxy, String> {
    let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(format!(
            "{scheme} proxies are not supported, only http ones"
        ));
    }
    let uri: Uri = format!("http://{rest}")
        .parse()
        .map_err(|_| "it is malformed".to_owned())?;
    let authority = uri.authority().ok_or("it has no host")?;
    let credentials = authority
        .as_str()
        .rsplit_once('@')
        .map(|(user, _)| crate::opensandbox::url::decode(user));
    Ok(Proxy {
        host: authority.host().trim_matches(['[', ']']).to_owned(),
        port: authority.port_u16().unwrap_or(80),
        credentials,
    })
}

/// Whether the name must not be asked of a resolver: it is this machine.
pub(super) fn is_local_name(host: &str) -> bool {
    is_loopback(host) && host.parse::<std::net::IpAddr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opensandbox::url::ApiUrl;

    fn proxies(pairs: &[(&str, &str)]) -> Proxies {
        let env = pairs.iter().map(|(key, value)| (key.into(), value.into()));
        Proxies::from(&env.collect())
    }

    #[test]
    fn only_https_to_other_machines_goes_through_a_proxy() {
        let set = proxies(&[
            ("HTTP_PROXY", "http://wrong:1"),
            ("HTTPS_PROXY", "http://u:p%40x@proxy.example:3128"),
            (
                "NO_PROXY",
                "internal.example, .corp.example,exact.example:8443",
            ),
        ]);
        let used = |url: &str| {
            let origin = ApiUrl::parse(url).unwrap().origin;
            set.for_origin(&origin).unwrap().map(|proxy| proxy.host)
        };
        assert_eq!(
            used("https://example.org").as_deref(),
            Some("proxy.example")
        );
        for direct in [
            "http://localhost:8080",
            "https://localhost:8443",
            "https://127.0.0.1",
            "https://[::1]",
            "https://internal.example",
            "https://a.internal.example",
            "https://x.corp.example",
            "https://exact.example:8443",
        ] {
            assert_eq!(used(direct), None, "{direct}");
        }
        assert!(used("https://exact.example").is_some());
        assert!(used("https://notinternal.example").is_some());
        let origin = ApiUrl::parse("https://example.org").unwrap().origin;
        let proxy = set.for_origin(&origin).unwrap().unwrap();
        assert_eq!(proxy.credentials.as_deref(), Some("u:p@x"));
        let socks = proxies(&[("ALL_PROXY", "socks5://h:1")]);
        let error = socks.for_origin(&origin).unwrap_err();
        assert_eq!(
            error,
            "ALL_PROXY cannot be used: socks5 proxies are not supported, only http ones"
        );
    }
}

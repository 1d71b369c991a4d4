//! A request as the origin is sent it.

use super::connection::options;
use super::headers::Header;
use super::lines::{is_value, token};
use super::target::target_text;
use super::{Authority, HeadError, RequestHead, Target};

/// Hop-by-hop fields (RFC 9110, section 7.6.1): they are for this proxy only.
const PROXY_ONLY: &[&str] = &[
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
];

/// Headers that [`Rewrite::set`] may not touch: they would contradict what was parsed.
const FIXED: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "expect",
    "trailer",
];

/// What changes on the way to the origin. Everything else keeps its bytes and its order.
#[derive(Debug, Clone, Default)]
pub struct Rewrite<'a> {
    /// The origin-form target; [`Target::origin_form`] when absent.
    pub target: Option<&'a str>,
    /// Replaces the `Host` header.
    pub host: Option<&'a str>,
    /// Headers that replace all of the same name, or are added at the end.
    pub set: &'a [(&'a str, &'a [u8])],
    /// Headers that are left out.
    pub remove: &'a [&'a str],
}

impl RequestHead {
    /// The head with another target and perhaps another `Host`.
    pub fn rewrite(&self, target: &str, host: Option<&str>) -> Result<Vec<u8>, HeadError> {
        self.rewrite_with(&Rewrite {
            target: Some(target),
            host,
            ..Rewrite::default()
        })
    }

    /// The head without what is meant for this hop only, and with the changes asked for. Fails when a change would
    /// itself break the head.
    pub fn rewrite_with(&self, rewrite: &Rewrite<'_>) -> Result<Vec<u8>, HeadError> {
        check_fields(rewrite)?;
        let mut out = Vec::with_capacity(self.bytes().len() + 128);
        self.write_request_line(&mut out, rewrite.target)?;
        let host = self.new_host(rewrite.host)?;
        if let (Some(host), None) = (&host, self.host()) {
            write_field(&mut out, "Host", host.as_bytes());
        }
        for header in self.headers().iter() {
            match &host {
                Some(host) if header.is("host") => {
                    write_field(&mut out, header.name, host.as_bytes())
                }
                _ if header.is("connection") => self.write_connection(&mut out, &header),
                _ if self.ends_here(&header) || rewrite.replaces(&header) => {}
                _ => write_line(&mut out, header.line),
            }
        }
        for (name, value) in rewrite.set {
            write_field(&mut out, name, value);
        }
        out.extend_from_slice(b"\r\n");
        Ok(out)
    }

    fn write_request_line(&self, out: &mut Vec<u8>, target: Option<&str>) -> Result<(), HeadError> {
        let target = match target {
            Some(target) => target_text(target.as_bytes())
                .filter(|target| target.starts_with('/') || *target == "*"),
            None => self.target().origin_form(),
        };
        let target = target.ok_or(HeadError::BadTarget)?;
        write_line(
            out,
            format!("{} {target} {}", self.method(), self.version().as_str()).as_bytes(),
        );
        Ok(())
    }

    /// The `Host` to write instead of the one sent. The authority of an absolute target would be lost with the
    /// target, so it becomes the `Host` where there was none.
    fn new_host(&self, host: Option<&str>) -> Result<Option<String>, HeadError> {
        match (host, self.target()) {
            (Some(host), _) => {
                Authority::parse(host).map_err(|_| HeadError::BadHost)?;
                Ok(Some(host.to_owned()))
            }
            (None, Target::Absolute { authority, .. }) if self.host().is_none() => {
                Ok(Some(authority.to_string()))
            }
            (None, _) => Ok(None),
        }
    }

    fn ends_here(&self, header: &Header<'_>) -> bool {
        PROXY_ONLY.iter().any(|name| header.is(name))
            || self.connection().named.iter().any(|name| header.is(name))
            || (header.is("upgrade") && self.upgrade().is_none())
    }

    /// Keeps the field's bytes unless an option names something that was left out.
    fn write_connection(&self, out: &mut Vec<u8>, header: &Header<'_>) {
        let stays = |option: &str| match option {
            "close" | "keep-alive" => true,
            "upgrade" => self.upgrade().is_some(),
            _ => false,
        };
        let all: Vec<String> = options(header.value).flatten().collect();
        let kept: Vec<&str> = all
            .iter()
            .map(String::as_str)
            .filter(|option| stays(option))
            .collect();
        if kept.len() == all.len() {
            write_line(out, header.line);
        } else if !kept.is_empty() {
            write_field(out, header.name, kept.join(", ").as_bytes());
        }
    }
}

impl Rewrite<'_> {
    fn replaces(&self, header: &Header<'_>) -> bool {
        self.set.iter().any(|(name, _)| header.is(name))
            || self.remove.iter().any(|name| header.is(name))
    }
}

fn check_fields(rewrite: &Rewrite<'_>) -> Result<(), HeadError> {
    let fixed = |name: &str| FIXED.iter().any(|fixed| name.eq_ignore_ascii_case(fixed));
    let names = rewrite
        .set
        .iter()
        .map(|(name, _)| *name)
        .chain(rewrite.remove.iter().copied());
    for name in names {
        if fixed(name) || token(name.as_bytes()).is_none() {
            return Err(HeadError::BadHeaderName);
        }
    }
    if rewrite
        .set
        .iter()
        .all(|(_, value)| value.iter().copied().all(is_value))
    {
        Ok(())
    } else {
        Err(HeadError::BadHeaderValue)
    }
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    write_line(out, value);
}

fn write_line(out: &mut Vec<u8>, line: &[u8]) {
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\n");
}

//! Which ports of a sandbox are published where: `[[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL]`, and the mappings that
//! come of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use sbx_api::{PortMapping, Protocol};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a user wrote after `--publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishSpec {
    host_ip: Option<IpAddr>,
    /// Any free one when absent.
    host_port: Option<u16>,
    sandbox_port: u16,
    protocol: Protocol,
}

/// What a user wrote after `--unpublish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpublishSpec {
    ends: Ends,
    protocol: Option<Protocol>,
}

/// Both ends, or a port that may be either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Either(u16),
    Both {
        host_ip: Option<IpAddr>,
        host_port: Option<u16>,
        sandbox_port: u16,
    },
}

/// A published port in a sandbox's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRecord {
    pub host_ip: IpAddr,
    /// Where it was published last; 0 before the first time.
    pub host_port: u16,
    pub sandbox_port: u16,
    pub protocol: Protocol,
    /// The user did not say which: it may be another one at the next start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ephemeral: bool,
    /// A second address of the same mapping, which a host without IPv6 does not have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("invalid port {text:?}: {reason}")]
pub struct PortSpecError {
    text: String,
    reason: String,
}

impl PortSpecError {
    pub fn hint() -> &'static str {
        "use [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL], such as 8080:3000/tcp4"
    }
}

impl PublishSpec {
    pub fn parse(text: &str) -> Result<Self, PortSpecError> {
        let error = |reason: String| PortSpecError {
            text: text.to_owned(),
            reason,
        };
        let (ends, protocol) = parse_parts(text).map_err(error)?;
        let protocol = protocol.unwrap_or(match ends.host_ip {
            Some(IpAddr::V6(_)) => Protocol::Tcp6,
            Some(IpAddr::V4(_)) | None => Protocol::Tcp4,
        });
        if let Some(ip) = ends.host_ip
            && !protocol.has_family(ip)
        {
            return Err(error(format!("{protocol} cannot be published at {ip}")));
        }
        Ok(Self {
            host_ip: ends.host_ip,
            host_port: ends.host_port,
            sandbox_port: ends.sandbox_port,
            protocol,
        })
    }

    /// What is bound on the host for it. Without an address that is the host's own loopback, in both families for `tcp`
    /// and `udp`: then both have the same port.
    pub fn records(&self) -> Vec<PortRecord> {
        let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let addresses: &[(IpAddr, bool)] = match (self.host_ip, self.protocol) {
            (Some(ip), _) => &[(ip, false)],
            (None, Protocol::Tcp | Protocol::Udp) => &[(v4, false), (v6, true)],
            (None, Protocol::Tcp4 | Protocol::Udp4) => &[(v4, false)],
            (None, Protocol::Tcp6 | Protocol::Udp6) => &[(v6, false)],
        };
        let record = |(host_ip, optional): &(IpAddr, bool)| PortRecord {
            host_ip: *host_ip,
            host_port: self.host_port.unwrap_or(0),
            sandbox_port: self.sandbox_port,
            protocol: self.protocol,
            ephemeral: self.host_port.is_none(),
            optional: *optional,
        };
        addresses.iter().map(record).collect()
    }
}

impl UnpublishSpec {
    pub fn parse(text: &str) -> Result<Self, PortSpecError> {
        let (parts, protocol) = parse_parts(text).map_err(|reason| PortSpecError {
            text: text.to_owned(),
            reason,
        })?;
        let ends = match parts {
            Parts {
                host_ip: None,
                host_port: None,
                sandbox_port,
            } => Ends::Either(sandbox_port),
            Parts {
                host_ip,
                host_port,
                sandbox_port,
            } => Ends::Both {
                host_ip,
                host_port,
                sandbox_port,
            },
        };
        Ok(Self { ends, protocol })
    }

    /// Which of them it means. A port alone is that of the sandbox, and of the host only where nothing else is meant.
    pub fn select(&self, ports: &[PortRecord]) -> Vec<PortRecord> {
        let of_protocol = |port: &&PortRecord| match self.protocol {
            None => true,
            Some(wanted @ (Protocol::Tcp | Protocol::Udp)) => {
                wanted.transport() == port.protocol.transport()
            }
            Some(wanted) => wanted == port.protocol,
        };
        let select = |is_meant: &dyn Fn(&PortRecord) -> bool| -> Vec<PortRecord> {
            let found = ports.iter().filter(of_protocol);
            found.filter(|port| is_meant(port)).cloned().collect()
        };
        match self.ends {
            Ends::Either(wanted) => {
                let inside = select(&|port| port.sandbox_port == wanted);
                if inside.is_empty() {
                    return select(&|port| port.host_port == wanted);
                }
                inside
            }
            Ends::Both {
                host_ip,
                host_port,
                sandbox_port,
            } => select(&|port| {
                port.sandbox_port == sandbox_port
                    && host_ip.is_none_or(|ip| ip == port.host_ip)
                    && host_port.is_none_or(|wanted| wanted == port.host_port)
            }),
        }
    }
}

impl PortRecord {
    pub fn mapping(&self) -> PortMapping {
        PortMapping {
            host_ip: self.host_ip,
            host_port: self.host_port,
            sandbox_port: self.sandbox_port,
            protocol: self.protocol,
        }
    }

    /// Whether the other is this one after another start.
    pub(crate) fn continues_as(&self, other: &Self) -> bool {
        let place = |it: &Self| (it.host_ip, it.sandbox_port, it.protocol, it.ephemeral);
        place(self) == place(other) && (self.ephemeral || self.host_port == other.host_port)
    }
}

/// Mappings that were published by one word: what `tcp` and `udp` have at both loopback addresses.
pub fn together(ports: &[PortMapping]) -> impl Iterator<Item = &[PortMapping]> {
    ports.chunk_by(|a, b| {
        let both = matches!(a.protocol, Protocol::Tcp | Protocol::Udp);
        let place = |port: &PortMapping| (port.host_port, port.sandbox_port, port.protocol);
        let loopback = a.host_ip.is_loopback() && b.host_ip.is_loopback();
        both && loopback && a.host_ip != b.host_ip && place(a) == place(b)
    })
}

/// How one of [`together`] is published at this port of the host, or at any that is free.
pub fn publish_text(together: &[PortMapping], host_port: Option<u16>) -> String {
    let Some(first) = together.first() else {
        return String::new();
    };
    let (inside, protocol) = (first.sandbox_port, first.protocol);
    let usual = match protocol {
        Protocol::Tcp | Protocol::Udp => together.len() > 1,
        Protocol::Tcp4 | Protocol::Udp4 => first.host_ip == Ipv4Addr::LOCALHOST,
        Protocol::Tcp6 | Protocol::Udp6 => first.host_ip == Ipv6Addr::LOCALHOST,
    };
    let port = host_port.map_or_else(String::new, |port| port.to_string());
    let host = match (usual, first.host_ip) {
        (true, _) if port.is_empty() => String::new(),
        (true, _) => format!("{port}:"),
        (false, IpAddr::V4(ip)) => format!("{ip}:{port}:"),
        (false, IpAddr::V6(ip)) => format!("[{ip}]:{port}:"),
    };
    format!("{host}{inside}/{protocol}")
}

#[derive(Debug)]
struct Parts {
    host_ip: Option<IpAddr>,
    host_port: Option<u16>,
    sandbox_port: u16,
}

/// Taken apart from the end, because an IPv6 address has colons of its own.
fn parse_parts(text: &str) -> Result<(Parts, Option<Protocol>), String> {
    let (ends, protocol) = match text.split_once('/') {
        Some((ends, name)) => (ends, Some(parse_protocol(name)?)),
        None => (text, None),
    };
    let (host, sandbox_port) = match ends.rsplit_once(':') {
        Some((host, port)) => (Some(host), port),
        None => (None, ends),
    };
    let sandbox_port = parse_port(sandbox_port)?;
    if sandbox_port == 0 {
        return Err("a sandbox port is 1 to 65535".into());
    }
    let (host_ip, host_port) = match host.map(|host| (host, host.rsplit_once(':'))) {
        None => (None, None),
        Some((port, None)) => (None, parse_host_port(port)?),
        // As in `127.0.0.1::80`.
        Some((_, Some((ip, "")))) => (Some(parse_ip(ip)?), None),
        Some((_, Some((ip, port)))) => (Some(parse_ip(ip)?), parse_host_port(port)?),
    };
    let parts = Parts {
        host_ip,
        host_port,
        sandbox_port,
    };
    Ok((parts, protocol))
}

fn parse_protocol(name: &str) -> Result<Protocol, String> {
    let known = Protocol::ALL;
    let found = known.into_iter().find(|protocol| protocol.as_str() == name);
    found.ok_or_else(|| {
        let known = known.map(Protocol::as_str).join(", ");
        format!("unknown protocol {name:?}; one of {known}")
    })
}

/// Digits only: `u16` also parses `+80`.
fn parse_port(text: &str) -> Result<u16, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| format!("{text:?} is not a port number"))
}

/// 0 is any free one.
fn parse_host_port(text: &str) -> Result<Option<u16>, String> {
    Ok(Some(parse_port(text)?).filter(|port| *port != 0))
}

fn parse_ip(text: &str) -> Result<IpAddr, String> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let parsed = match bracketed {
        Some(inner) => Ipv6Addr::from_str(inner).ok().map(IpAddr::V6),
        None => Ipv4Addr::from_str(text).ok().map(IpAddr::V4),
    };
    parsed.ok_or_else(|| {
        format!("{text:?} is not an IP address of this machine (IPv6 in brackets, as in [::1])")
    })
}

#[cfg(test)]
mod tests;

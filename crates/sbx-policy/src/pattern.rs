//! Resources of rules: what a rule speaks about.
//!
//! | written | means |
//! |---|---|
//! | `h`, `h:p` | exactly the host `h`, on every port or on port `p` |
//! | `*.d` | names with exactly one label before `d`; not `d` |
//! | `**.d` | names with one label or more before `d`; not `d` |
//! | `crl*.d`, `a?.d`, `a.*.d` | globs within a label; `*` as a label is exactly one label |
//! | `192.0.2.1`, `[2001:db8::1]:p` | an address |
//! | `10.0.0.0/8`, `10.0.0.0/8:p`, `fd00::/8`, `[fd00::/8]:p` | a network |
//! | `**`, `**:p` | everything |

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::address::effective_address;
use crate::host::{DomainName, Host, HostError};
use crate::target::{Target, may_end_in_port, parse_port};
use crate::wildcard::Wildcard;

const EVERYTHING: &str = "**";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    hosts: HostPattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HostPattern {
    Any,
    Name(DomainName),
    Wildcard(Wildcard),
    /// A single address is a network of full length.
    Net(IpNet),
}

#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PatternError {
    #[error("the resource is empty")]
    Empty,
    #[error("`{0}` matches no useful host; use `**` for everything")]
    LoneStar(String),
    #[error("`{0}` is a URL; expected a host with an optional port")]
    Url(String),
    #[error("invalid pattern `{text}`: {why}")]
    Wildcard { text: String, why: &'static str },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("invalid network {0:?}: expected one such as `10.0.0.0/8`")]
    BadNetwork(String),
    #[error("`{text}` has host bits: the network is `{network}`, the address `{address}`")]
    HostBits {
        text: String,
        network: IpNet,
        address: IpAddr,
    },
    #[error("invalid port {0:?}: expected a number from 1 to 65535")]
    BadPort(String),
    #[error(
        "`{0}` is ambiguous: write `[{0}]` for the address, or `[address]:port` as in `[::1]:443`"
    )]
    Unbracketed(String),
    #[error(
        "`{0}` is malformed: brackets hold an IPv6 address or network, as in `[2001:db8::1]:443`"
    )]
    Brackets(String),
}

impl Pattern {
    /// Everything, on every port.
    pub fn everything() -> Self {
        Self {
            hosts: HostPattern::Any,
            port: None,
        }
    }

    /// Exactly this host, on one port or on all.
    pub fn exact(host: Host, port: Option<u16>) -> Self {
        let hosts = match host {
            Host::Name(name) => HostPattern::Name(name),
            Host::Ip(address) => HostPattern::Net(IpNet::from(address.to_canonical())),
        };
        Self { hosts, port }
    }

    /// Reads a list with commas. Spaces around entries and empty entries are skipped; an empty list is an error.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, PatternError> {
        let entries = text.split(',').map(str::trim).filter(|e| !e.is_empty());
        let patterns = entries.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if patterns.is_empty() {
            return Err(PatternError::Empty);
        }
        Ok(patterns)
    }

    /// The same as a person types it for a new rule: an IPv6 address that may be meant to end in a port is refused.
    /// What was written down by us has no brackets and is one.
    pub fn parse_typed_list(text: &str) -> Result<Vec<Self>, PatternError> {
        text.split(',')
            .map(str::trim)
            .try_for_each(Self::check_typed)?;
        Self::parse_list(text)
    }

    /// Whether what a person types has one meaning; it need not have any.
    pub fn check_typed(text: &str) -> Result<(), PatternError> {
        if may_end_in_port(text) {
            return Err(PatternError::Unbracketed(text.to_owned()));
        }
        Ok(())
    }

    pub fn matches(&self, target: &Target) -> bool {
        self.port.is_none_or(|port| port == target.port) && self.matches_host(&target.host)
    }

    /// Whether the pattern matches the host on some port. An IPv6 address that carries an IPv4 address matches
    /// networks of either.
    pub fn matches_host(&self, host: &Host) -> bool {
        match (&self.hosts, host) {
            (HostPattern::Any, _) => true,
            (HostPattern::Name(expected), Host::Name(name)) => expected == name,
            (HostPattern::Wildcard(wild), Host::Name(name)) => wild.matches(name.as_str()),
            (HostPattern::Net(net), Host::Ip(address)) => {
                net.contains(address) || net.contains(&effective_address(*address))
            }
            (HostPattern::Name(_) | HostPattern::Wildcard(_), Host::Ip(_))
            | (HostPattern::Net(_), Host::Name(_)) => false,
        }
    }

    /// Whether the pattern names one host and no other: a name without wildcards or a single address.
    pub fn is_exact_host(&self) -> bool {
        match &self.hosts {
            HostPattern::Name(_) => true,
            HostPattern::Net(net) => net.prefix_len() == net.max_prefix_len(),
            HostPattern::Any | HostPattern::Wildcard(_) => false,
        }
    }

    /// Whether the pattern is an address or a network.
    pub fn is_address(&self) -> bool {
        matches!(self.hosts, HostPattern::Net(_))
    }

    /// The one name that the pattern names, if it does.
    pub fn name(&self) -> Option<&DomainName> {
        match &self.hosts {
            HostPattern::Name(name) => Some(name),
            HostPattern::Net(_) | HostPattern::Any | HostPattern::Wildcard(_) => None,
        }
    }

    /// The one address that the pattern names, if it does.
    pub fn address(&self) -> Option<IpAddr> {
        match &self.hosts {
            HostPattern::Net(net) if self.is_exact_host() => Some(net.addr()),
            HostPattern::Net(_)
            | HostPattern::Any
            | HostPattern::Name(_)
            | HostPattern::Wildcard(_) => None,
        }
    }

    /// Whether the pattern matches every host.
    pub fn is_everything(&self) -> bool {
        matches!(self.hosts, HostPattern::Any)
    }

    /// Whether the pattern leaves nothing out of its kind: every host, or every address of a family.
    pub fn is_catch_all(&self) -> bool {
        match &self.hosts {
            HostPattern::Any => true,
            HostPattern::Net(net) => net.prefix_len() == 0,
            HostPattern::Name(_) | HostPattern::Wildcard(_) => false,
        }
    }

    pub fn port(&self) -> Option<u16> {
        self.port
    }

    pub(crate) fn hosts(&self) -> &HostPattern {
        &self.hosts
    }

    /// Orders patterns that match the same target: exact, then the longest fixed part, then one label before any
    /// depth, then a port before none.
    pub(crate) fn specificity(&self) -> (u8, usize, bool, bool) {
        let (class, length, narrow) = match &self.hosts {
            HostPattern::Any => (0, 0, false),
            HostPattern::Wildcard(wild) => (1, wild.fixed_length(), !wild.is_deep()),
            HostPattern::Net(net) if !self.is_exact_host() => {
                (1, usize::from(net.prefix_len()), true)
            }
            HostPattern::Name(_) | HostPattern::Net(_) => (2, 0, true),
        };
        (class, length, narrow, self.port.is_some())
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.contains("://") {
            return Err(PatternError::Url(text.to_owned()));
        }
        let (hosts, port) = split(text)?;
        let port = port
            .map(|digits| {
                parse_port(digits).ok_or_else(|| PatternError::BadPort(digits.to_owned()))
            })
            .transpose()?;
        let hosts = HostPattern::parse(hosts)?;
        Ok(Self { hosts, port })
    }
}

impl HostPattern {
    fn parse(text: &str) -> Result<Self, PatternError> {
        if text == EVERYTHING {
            return Ok(Self::Any);
        }
        if matches!(text, "*" | "*.") {
            return Err(PatternError::LoneStar(text.to_owned()));
        }
        if text.contains('/') {
            return parse_network(text).map(Self::Net);
        }
        if text.contains(['*', '?']) {
            return Wildcard::parse(text).map(Self::Wildcard);
        }
        Ok(match Host::parse(text)? {
            Host::Name(name) => Self::Name(name),
            Host::Ip(address) => Self::Net(IpNet::from(address)),
        })
    }
}

/// Separates the port. Two colons or more without brackets are an IPv6 address or network, which has no port.
fn split(text: &str) -> Result<(&str, Option<&str>), PatternError> {
    let brackets = || PatternError::Brackets(text.to_owned());
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, tail) = rest.split_once(']').ok_or_else(brackets)?;
        if !inner.contains(':') {
            return Err(brackets());
        }
        return match tail.strip_prefix(':') {
            Some(port) => Ok((inner, Some(port))),
            None if tail.is_empty() => Ok((inner, None)),
            None => Err(brackets()),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((hosts, port)) => Ok((hosts, Some(port))),
        None => Ok((text, None)),
    }
}

/// Host bits are refused rather than dropped: `192.168.1.7/24` may mean the host or its network.
fn parse_network(text: &str) -> Result<IpNet, PatternError> {
    let net: IpNet = text
        .parse()
        .map_err(|_| PatternError::BadNetwork(text.to_owned()))?;
    let network = net.trunc();
    if net != network {
        return Err(PatternError::HostBits {
            text: text.to_owned(),
            network,
            address: net.addr(),
        });
    }
    Ok(unmap(network))
}

/// A network of mapped addresses is the IPv4 network, as for single addresses.
fn unmap(net: IpNet) -> IpNet {
    let mapped = net.prefix_len().checked_sub(96);
    match (net.addr().to_canonical(), mapped) {
        (address @ IpAddr::V4(_), Some(prefix)) if net.addr().is_ipv6() => {
            IpNet::new(address, prefix).unwrap_or(net)
        }
        _ => net,
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.hosts, self.port) {
            (hosts, None) => hosts.fmt(f),
            (HostPattern::Net(IpNet::V6(_)), Some(port)) => write!(f, "[{}]:{port}", self.hosts),
            (hosts, Some(port)) => write!(f, "{hosts}:{port}"),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str(EVERYTHING),
            Self::Name(name) => name.fmt(f),
            Self::Wildcard(wild) => wild.fmt(f),
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

//! Published ports.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A port of the host that leads to a port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortMapping {
    #[schema(value_type = String)]
    pub host_ip: IpAddr,
    pub host_port: u16,
    pub sandbox_port: u16,
    pub protocol: Protocol,
}

impl PortMapping {
    pub fn host(&self) -> SocketAddr {
        SocketAddr::new(self.host_ip, self.host_port)
    }
}

/// As `ls` and `inspect` show it.
impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.host(), self.sandbox_port);
        write!(f, "{host}->{port}/{}", self.protocol)
    }
}

/// The transport, and the families of addresses on the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Tcp,
    #[default]
    Tcp4,
    Tcp6,
    Udp,
    Udp4,
    Udp6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

impl Protocol {
    pub const ALL: [Self; 6] = [
        Self::Tcp,
        Self::Tcp4,
        Self::Tcp6,
        Self::Udp,
        Self::Udp4,
        Self::Udp6,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tcp4 => "tcp4",
            Self::Tcp6 => "tcp6",
            Self::Udp => "udp",
            Self::Udp4 => "udp4",
            Self::Udp6 => "udp6",
        }
    }

    pub fn transport(self) -> Transport {
        match self {
            Self::Tcp | Self::Tcp4 | Self::Tcp6 => Transport::Tcp,
            Self::Udp | Self::Udp4 | Self::Udp6 => Transport::Udp,
        }
    }

    /// Whether it can be published at this address.
    pub fn has_family(self, ip: IpAddr) -> bool {
        match self {
            Self::Tcp | Self::Udp => true,
            Self::Tcp4 | Self::Udp4 => ip.is_ipv4(),
            Self::Tcp6 | Self::Udp6 => ip.is_ipv6(),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `POST /v1/sandboxes/{name}/ports`: all of it or nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortChange {
    /// As `[[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL]`. A sandbox that does not run is started.
    #[serde(default)]
    pub publish: Vec<String>,
    /// The same, or a port alone: that of the sandbox, or of the host. Comes first.
    #[serde(default)]
    pub unpublish: Vec<String>,
}

/// What `POST /v1/sandboxes/{name}/ports` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortChanges {
    pub published: Vec<PortMapping>,
    pub unpublished: Vec<PortMapping>,
    /// All that are published now.
    pub ports: Vec<PortMapping>,
}

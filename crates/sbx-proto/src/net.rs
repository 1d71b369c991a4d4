//! The addresses of a sandbox's network, which is the same in every sandbox: they lead nowhere else.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The sandbox itself: the source of everything that it sends to the world.
pub const SANDBOX_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
pub const SANDBOX_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x5b0c, 0, 0, 0, 0, 0, 0x15);
/// The proxy and the resolver, by name.
pub const GATEWAY: &str = "gateway.docker.internal";
/// [`GATEWAY`]
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// `host.docker.internal`: the proxy too, and the host's own services where a rule allows one.
pub const HOST_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// Where the forward proxy is, on both.
pub const PROXY_PORT: u16 = 3128;

//! The sandbox's network: no device but `lo`, a local default route that makes every address local, and listeners that
//! receive all egress. Nothing leaves the network namespace; the daemon accepts on the listeners from outside.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_v6only;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use sbx_proto::exec::{ListenerKind, Listeners, Redirect};
use sbx_proto::net::{PROXY_PORT, SANDBOX_V4, SANDBOX_V6};
use sbx_sys::nft;
use sbx_sys::route::{self, Change};

use crate::error::{ErrorContext, SetupError, SetupResult};

/// Above the kernel's ephemeral range and not registered for any service. Programs inside cannot use these two ports.
const TCP_PORT: u16 = 61951;
const DNS_PORT: u16 = 61953;
/// The most used destination ports: listeners for a kernel without nf_tables, where nothing can be redirected.
const DIALLED: [u16; 4] = [PROXY_PORT, 80, 443, 22];
const DNS: u16 = 53;
/// The kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The open listeners of a sandbox. Init keeps them as long as it lives: while no daemon runs, connections wait in the
/// backlog, and no program inside can bind the ports.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) redirect: Redirect,
    pub(crate) sockets: Vec<(ListenerKind, OwnedFd)>,
}

impl Network {
    /// The description without the sockets, which are passed as descriptors.
    pub(crate) fn listeners(&self) -> Listeners {
        Listeners {
            redirect: self.redirect,
            sockets: self.sockets.iter().map(|(kind, _)| *kind).collect(),
        }
    }

    /// The inverse of [`Self::listeners`].
    pub(super) fn from(listeners: &Listeners, fds: Vec<OwnedFd>) -> SetupResult<Self> {
        if listeners.sockets.len() != fds.len() {
            return Err(SetupError::new(
                "take the network's listeners",
                "wrong number of descriptors",
            ));
        }
        Ok(Self {
            redirect: listeners.redirect,
            sockets: listeners.sockets.iter().copied().zip(fds).collect(),
        })
    }
}

/// Sets up the network namespace of this process.
pub(super) fn make() -> SetupResult<Network> {
    let families = configure()?;
    let mut sockets = Vec::new();
    open(&mut sockets, &families, Service::Tcp, TCP_PORT)?;
    open(&mut sockets, &families, Service::Dns, DNS_PORT)?;
    let rules = nft::Redirect {
        v4: SANDBOX_V4,
        v6: SANDBOX_V6,
        tcp_port: TCP_PORT,
        dns_port: DNS_PORT,
    };
    let redirect = match nft::install(&rules) {
        Ok(()) => {
            // `fib` expressions of the rules need to know the sandbox's own addresses.
            route::apply(&[Change::SeparateTables])
                .doing(|| "separate the routing tables".into())?;
            Redirect::Nft
        }
        Err(error) if nft::is_missing(&error) => {
            // Every address is local: a listener on the destination port receives the connection.
            for port in DIALLED {
                open(&mut sockets, &families, Service::Tcp, port)?;
            }
            open(&mut sockets, &families, Service::Dns, DNS)?;
            Redirect::Ports
        }
        Err(error) => return Err(error).doing(|| "redirect the network".into()),
    };
    Ok(Network { redirect, sockets })
}

/// Sets addresses and routes; returns the families that work.
fn configure() -> SetupResult<Vec<IpAddr>> {
    let changes = |source| {
        [
            Change::Address(source),
            Change::LocalDefaultRoute { source },
        ]
    };
    route::apply(&[Change::LoopbackUp]).doing(|| "bring the loopback device up".into())?;
    route::apply(&changes(SANDBOX_V4.into())).doing(|| "set the network's addresses".into())?;
    let mut families = vec![Ipv4Addr::UNSPECIFIED.into()];
    match route::apply(&changes(SANDBOX_V6.into())) {
        Ok(()) => families.push(Ipv6Addr::UNSPECIFIED.into()),
        // No IPv6 in this kernel, or `ipv6.disable=1`.
        Err(error) if is_without_ipv6(&error) => {}
        Err(error) => return Err(error).doing(|| "set the network's IPv6 addresses".into()),
    }
    Ok(families)
}

fn is_without_ipv6(error: &std::io::Error) -> bool {
    let absent = [Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::ACCESS];
    Errno::from_io_error(error).is_some_and(|errno| absent.contains(&errno))
}

#[derive(Debug, Clone, Copy)]
enum Service {
    Tcp,
    Dns,
}

/// Listeners of a service on a port, for each family.
fn open(
    sockets: &mut Vec<(ListenerKind, OwnedFd)>,
    families: &[IpAddr],
    service: Service,
    port: u16,
) -> SetupResult<()> {
    use ListenerKind::{DnsTcp4, DnsTcp6, DnsUdp4, DnsUdp6, Tcp4, Tcp6};
    for family in families {
        let kinds = match (service, family) {
            (Service::Tcp, IpAddr::V4(_)) => &[Tcp4][..],
            (Service::Tcp, IpAddr::V6(_)) => &[Tcp6],
            (Service::Dns, IpAddr::V4(_)) => &[DnsUdp4, DnsTcp4],
            (Service::Dns, IpAddr::V6(_)) => &[DnsUdp6, DnsTcp6],
        };
        for kind in kinds {
            let transport = match kind {
                DnsUdp4 | DnsUdp6 => SocketType::DGRAM,
                Tcp4 | Tcp6 | DnsTcp4 | DnsTcp6 => SocketType::STREAM,
            };
            let socket = listener(transport, SocketAddr::new(*family, port))
                .doing(|| format!("listen on port {port} inside"))?;
            sockets.push((*kind, socket));
        }
    }
    Ok(())
}

fn listener(transport: SocketType, address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, transport, flags, None)?;
    if address.is_ipv6() {
        set_ipv6_v6only(socket.as_fd(), true)?;
    }
    bind(&socket, &address)?;
    if transport == SocketType::STREAM {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

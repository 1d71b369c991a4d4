//! The sandbox's network: no device but `lo`, to which every address in the world is local, and listeners that
//! everything sent to the world ends at. Nothing here leads out; the daemon accepts on the listeners from outside.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_v6only;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use sbx_proto::exec::{ListenerKind, Listeners, Redirect};
use sbx_proto::net::{PROXY_PORT, SANDBOX_V4, SANDBOX_V6};
use sbx_sys::nft;
use sbx_sys::route::{self, Change};

use crate::error::{SetupError, SetupResult, While};

/// Above the ports that the kernel gives to connections, and nobody's: programs inside do without them.
const TCP_PORT: u16 = 61951;
const DNS_PORT: u16 = 61953;
/// Where listeners are when nothing can be redirected to them: what programs dial most.
const DIALLED: [u16; 4] = [PROXY_PORT, 80, 443, 22];
const DNS: u16 = 53;
/// The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The listeners of a sandbox, open. Init keeps them for its life: while no daemon is there connections wait,
/// and nothing inside can take the ports.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) redirect: Redirect,
    pub(crate) sockets: Vec<(ListenerKind, OwnedFd)>,
}

impl Network {
    /// Without the sockets, which travel as descriptors.
    pub(crate) fn listeners(&self) -> Listeners {
        Listeners {
            redirect: self.redirect,
            sockets: self.sockets.iter().map(|(kind, _)| *kind).collect(),
        }
    }

    /// The other way round.
    pub(super) fn from(listeners: &Listeners, fds: Vec<OwnedFd>) -> SetupResult<Self> {
        if listeners.sockets.len() != fds.len() {
            return Err(SetupError::new(
                "take the network's listeners",
                "some are missing",
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
            // The rules ask which addresses are the sandbox's own.
            route::apply(&[Change::SeparateTables])
                .doing(|| "separate the routing tables".into())?;
            Redirect::Nft
        }
        Err(error) if nft::is_missing(&error) => {
            // All addresses are local: a listener on the port that is dialled hears of it.
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

/// Addresses and routes; the families that there are.
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
        // A kernel without IPv6, or one that was told to do without: then there is none inside either.
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

//! Egress: the listeners that init holds arrive by SCM_RIGHTS, are checked here, and go to the daemon's proxy.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::net::sockopt::{
    ipv6_v6only, socket_acceptconn, socket_domain, socket_protocol, socket_type,
};
use rustix::net::{AddressFamily, SocketType, ipproto};
use sbx_proto::exec::ListenerKind;
use sbx_sys::pktinfo;

use crate::sandbox::name::SandboxName;
use crate::state::SandboxDir;

pub use sbx_proto::exec::Redirect;

/// More than init ever opens.
const MAX_LISTENERS: usize = 32;

/// Sockets in a sandbox's network namespace, which lives as long as one of them is open.
#[derive(Debug)]
pub struct Listeners {
    pub redirect: Redirect,
    pub tcp: Vec<OwnedFd>,
    /// Tell where a datagram was sent to ([`sbx_sys::pktinfo`]).
    pub dns_udp: Vec<OwnedFd>,
    pub dns_tcp: Vec<OwnedFd>,
}

/// Serves what sandboxes send to the world.
pub trait Egress: Debug + Send + Sync {
    /// Makes sure that the sandbox has an authority of its own, with files in its directory.
    fn authority(&self, id: &str, dir: &SandboxDir) -> Result<Certificate, String>;

    /// From now on the sandbox's connections are accepted. A sandbox whose network is not served does not run.
    fn attach(&self, sandbox: &SandboxName, listeners: Listeners) -> Result<(), String>;

    /// The sandbox is gone: every listener of it is closed when this returns. May be said of one that was never
    /// attached.
    fn detach(&self, sandbox: &SandboxName);
}

/// The certificate of a sandbox's authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub pem: String,
    pub base64: String,
}

/// Nothing is accepted: connections wait for ever.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEgress;

impl Egress for NoEgress {
    fn authority(&self, _: &str, _: &SandboxDir) -> Result<Certificate, String> {
        Ok(Certificate {
            pem: String::new(),
            base64: String::new(),
        })
    }

    fn attach(&self, _: &SandboxName, _: Listeners) -> Result<(), String> {
        Ok(())
    }

    fn detach(&self, _: &SandboxName) {}
}

impl Listeners {
    /// What init says that it sent is what it sent; else in words what is wrong.
    pub(crate) fn check(
        said: &sbx_proto::exec::Listeners,
        sockets: Vec<OwnedFd>,
    ) -> Result<Self, String> {
        if said.sockets.len() != sockets.len() || sockets.len() > MAX_LISTENERS {
            return Err(format!(
                "{} listeners, {} descriptors",
                said.sockets.len(),
                sockets.len()
            ));
        }
        let mut listeners = Self {
            redirect: said.redirect,
            tcp: Vec::new(),
            dns_udp: Vec::new(),
            dns_tcp: Vec::new(),
        };
        for (kind, socket) in said.sockets.iter().zip(sockets) {
            // An error of `getsockopt`: the descriptor is not a socket at all.
            if !is(*kind, &socket).unwrap_or(false) {
                return Err(format!("a descriptor that is not a {kind:?} listener"));
            }
            prepare(&socket).map_err(|error| format!("a {kind:?} listener: {error}"))?;
            match kind {
                ListenerKind::Tcp4 | ListenerKind::Tcp6 => listeners.tcp.push(socket),
                ListenerKind::DnsTcp4 | ListenerKind::DnsTcp6 => listeners.dns_tcp.push(socket),
                ListenerKind::DnsUdp4 | ListenerKind::DnsUdp6 => {
                    pktinfo::enable(&socket)
                        .map_err(|error| format!("a {kind:?} listener: {error}"))?;
                    listeners.dns_udp.push(socket);
                }
            }
        }
        if listeners.tcp.is_empty() || listeners.dns_udp.is_empty() {
            return Err("too few listeners".into());
        }
        Ok(listeners)
    }
}

fn is(kind: ListenerKind, socket: &OwnedFd) -> rustix::io::Result<bool> {
    use ListenerKind::{DnsTcp4, DnsTcp6, DnsUdp4, DnsUdp6, Tcp4, Tcp6};
    let family = match kind {
        Tcp4 | DnsUdp4 | DnsTcp4 => AddressFamily::INET,
        Tcp6 | DnsUdp6 | DnsTcp6 => AddressFamily::INET6,
    };
    let (transport, protocol, listens) = match kind {
        Tcp4 | Tcp6 | DnsTcp4 | DnsTcp6 => (SocketType::STREAM, ipproto::TCP, true),
        DnsUdp4 | DnsUdp6 => (SocketType::DGRAM, ipproto::UDP, false),
    };
    Ok(socket_domain(socket)? == family
        && socket_type(socket)? == transport
        && socket_protocol(socket)? == Some(protocol)
        && socket_acceptconn(socket)? == listens
        // Its peers have addresses of its own family only.
        && (family == AddressFamily::INET || ipv6_v6only(socket)?))
}

/// Whatever init did to it before.
fn prepare(socket: &OwnedFd) -> rustix::io::Result<()> {
    rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(socket)?;
    rustix::fs::fcntl_setfl(socket, flags | OFlags::NONBLOCK)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use sbx_proto::exec::Listeners as Said;

    use super::*;

    fn tcp() -> OwnedFd {
        TcpListener::bind("127.0.0.1:0").unwrap().into()
    }

    fn udp() -> OwnedFd {
        UdpSocket::bind("127.0.0.1:0").unwrap().into()
    }

    fn check(kinds: &[ListenerKind], sockets: Vec<OwnedFd>) -> Result<Listeners, String> {
        let said = Said {
            redirect: Redirect::Nft,
            sockets: kinds.to_vec(),
        };
        Listeners::check(&said, sockets)
    }

    #[test]
    fn honest_listeners_are_made_ready() {
        use ListenerKind::{DnsTcp4, DnsUdp4, Tcp4};
        let listeners = check(&[Tcp4, DnsUdp4, DnsTcp4], vec![tcp(), udp(), tcp()]).unwrap();
        assert_eq!(listeners.tcp.len(), 1);
        assert_eq!(listeners.dns_tcp.len(), 1);
        for socket in listeners.tcp.iter().chain(&listeners.dns_udp) {
            let flags = rustix::fs::fcntl_getfl(socket).unwrap();
            assert!(flags.contains(OFlags::NONBLOCK));
        }
    }

    #[test]
    fn everything_else_is_refused() {
        use ListenerKind::{DnsUdp4, Tcp4, Tcp6};
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let connected = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
        };
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        for wrong in [file(), connected(), udp(), unix.into()] {
            assert!(check(&[Tcp4, DnsUdp4], vec![wrong, udp()]).is_err());
        }
        assert!(check(&[Tcp6, DnsUdp4], vec![tcp(), udp()]).is_err());
        assert!(check(&[Tcp4, DnsUdp4], vec![tcp()]).is_err());
        assert!(check(&[Tcp4, DnsUdp4], vec![tcp(), udp(), udp()]).is_err());
        assert!(check(&[Tcp4], vec![tcp()]).is_err());
        assert!(check(&[], vec![]).is_err());
        let many = 40;
        assert!(check(&vec![Tcp4; many], (0..many).map(|_| tcp()).collect()).is_err());
    }
}

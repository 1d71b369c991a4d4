//! Sockets of a running sandbox's network, by which servers in it are reached from outside.
//!
//! Init makes them and passes them by SCM_RIGHTS; a socket belongs to the network namespace that it was made in, whichever process
//! connects it. So that is all that init has a part in: bytes do not pass through it.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_protocol, socket_type};
use rustix::net::{AddressFamily, SocketType, getpeername, ipproto};
use sbx_proto::exec::{Role, SocketKind};
use sbx_sys::netns;

use crate::machine::control::{ControlError, Link};
use crate::threads::lock;

/// Gives sockets of one sandbox's network, from any thread.
#[derive(Debug)]
pub struct Inside {
    dir: PathBuf,
    id: String,
    /// Kept for the next time.
    link: Mutex<Option<Link>>,
}

impl Inside {
    /// Of the sandbox in `dir` with this id. Nothing is asked of it yet.
    pub fn new(dir: &Path, id: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            id: id.to_owned(),
            link: Mutex::new(None),
        }
    }

    /// The version in which init and this program talk.
    pub fn protocol(&self) -> Result<u32, ControlError> {
        Ok(Link::connect(&self.dir, &self.id, Role::Client)?.protocol())
    }

    /// New sockets, close-on-exec and non-blocking.
    pub fn sockets(&self, kind: SocketKind, count: u8) -> Result<Vec<OwnedFd>, ControlError> {
        let mut kept = lock(&self.link);
        if let Some(mut link) = kept.take()
            && let Ok(sockets) = link.sockets(kind, count)
        {
            *kept = Some(link);
            return Ok(sockets);
        }
        let mut link = Link::connect(&self.dir, &self.id, Role::Client)?;
        let sockets = link.sockets(kind, count)?;
        *kept = Some(link);
        Ok(sockets)
    }
}

/// That init sent what it was asked for; else in words what is wrong.
pub(crate) fn check(kind: SocketKind, count: u8, sockets: &[OwnedFd]) -> Result<(), String> {
    if sockets.len() != usize::from(count) {
        let found = sockets.len();
        return Err(format!("{found} sockets instead of {count}"));
    }
    // Were it one of the host's, the daemon would connect to the host's own services.
    // By an address, not by its text: the latter would bring the resolver of libc into `sbx`.
    let host = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| netns::cookie(&socket));
    let host = host.map_err(|error| format!("cannot tell network namespaces apart: {error}"))?;
    for socket in sockets {
        // An error of `getsockopt`: the descriptor is not a socket at all.
        let expected = is(kind, socket).unwrap_or(false);
        if !expected || netns::cookie(socket).is_ok_and(|cookie| cookie == host) {
            return Err(format!(
                "a descriptor that is not a new {kind:?} socket of its network"
            ));
        }
        prepare(socket).map_err(|error| format!("a {kind:?} socket: {error}"))?;
    }
    Ok(())
}

fn is(kind: SocketKind, socket: &OwnedFd) -> rustix::io::Result<bool> {
    let family = match kind {
        SocketKind::Tcp4 | SocketKind::Udp4 => AddressFamily::INET,
        SocketKind::Tcp6 | SocketKind::Udp6 => AddressFamily::INET6,
    };
    let (transport, protocol) = match kind {
        SocketKind::Tcp4 | SocketKind::Tcp6 => (SocketType::STREAM, ipproto::TCP),
        SocketKind::Udp4 | SocketKind::Udp6 => (SocketType::DGRAM, ipproto::UDP),
    };
    Ok(socket_domain(socket)? == family
        && socket_type(socket)? == transport
        && socket_protocol(socket)? == Some(protocol)
        && !socket_acceptconn(socket)?
        && getpeername(socket) == Err(Errno::NOTCONN))
}

/// Whatever init did to it before.
fn prepare(socket: &impl AsFd) -> rustix::io::Result<()> {
    rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(socket)?;
    rustix::fs::fcntl_setfl(socket, flags | OFlags::NONBLOCK)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn nothing_of_the_hosts_network_is_taken() {
        let udp = || OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let listener = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        for (kind, socket) in [
            (SocketKind::Udp4, udp()),
            (SocketKind::Tcp4, udp()),
            (SocketKind::Tcp4, file()),
            (SocketKind::Tcp4, listener()),
        ] {
            let error = check(kind, 1, &[socket]).unwrap_err();
            assert!(error.contains("not a new"), "{error}");
        }
        assert!(check(SocketKind::Udp4, 1, &[]).is_err());
        assert!(check(SocketKind::Udp4, 1, &[udp(), udp()]).is_err());
    }
}

//! Where a redirected connection was going (`SO_ORIGINAL_DST`).
//!
//! The redirect of [`crate::nft`] rewrites the destination; connection tracking remembers the first one and tells it to
//! the socket that accepted the connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst, socket_domain};
use rustix::net::{AddressFamily, getsockname};

/// The address that the client dialled: the one before the redirect, or the socket's own address if there was no redirect.
pub fn original_dst(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let before: Result<SocketAddr, Errno> = match socket_domain(socket)? {
        AddressFamily::INET6 => ipv6_original_dst(socket).map(Into::into),
        _ => ip_original_dst(socket).map(Into::into),
    };
    match before {
        // No tracked connection, or a kernel without connection tracking: nothing was redirected.
        Err(Errno::NOENT | Errno::NOPROTOOPT) => Ok(getsockname(socket)?.try_into()?),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn without_a_redirect_it_is_the_local_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(original_dst(&accepted).unwrap(), address);
    }
}

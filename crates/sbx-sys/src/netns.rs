//! Which network namespace a socket belongs to (`SO_NETNS_COOKIE`, Linux 5.14).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::checked;

/// `asm-generic/socket.h`; the `libc` crate does not have it.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Names the network namespace of a socket; no other one ever has the same cookie.
pub fn cookie(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut size = libc::socklen_t::try_from(size_of_val(&cookie)).map_err(io::Error::other)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `size` bytes to the value, which has that size.
    let done = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    checked(done.into())?;
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn sockets_of_one_namespace_have_the_same_cookie() {
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(cookie(&socket()).unwrap(), cookie(&socket()).unwrap());
        assert!(cookie(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}

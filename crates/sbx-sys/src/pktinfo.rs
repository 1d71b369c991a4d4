//! Datagrams with their destination address, and replies from that address (`IP_PKTINFO`, `IPV6_PKTINFO`).
//!
//! A UDP socket that is bound to every address would reply from the address that the route suggests, and a client that
//! sent its request to another address discards such a reply.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::AddressFamily;
use rustix::net::sockopt::{set_ipv6_freebind, socket_domain};

use crate::checked;

/// What [`recv_from_to`] received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    pub len: usize,
    pub peer: SocketAddr,
    /// The destination address, which a reply has to come from.
    pub local: IpAddr,
}

/// Makes the kernel report the destination of every datagram, and allows replies from it even if only a route makes that
/// address local: IPv6 refuses such a source address unless `IPV6_FREEBIND` is set.
pub fn enable(socket: &impl AsFd) -> io::Result<()> {
    let (level, option) = match socket_domain(socket)? {
        AddressFamily::INET6 => {
            set_ipv6_freebind(socket, true)?;
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
        }
        _ => (libc::IPPROTO_IP, libc::IP_PKTINFO),
    };
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the value is an int of that size, which the kernel only reads.
    let done = unsafe { libc::setsockopt(socket, level, option, (&raw const on).cast(), size) };
    checked(done.into())?;
    Ok(())
}

/// Receives one datagram from a socket that was [`enable`]d; never blocks.
pub fn recv_from_to(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut name = Name::EMPTY;
    let mut control = Control::EMPTY;
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut message = message(&mut name, Name::SIZE, &mut part, &mut control);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: every pointer in the message is to a live buffer of the size beside it.
    let received = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(checked(received as libc::c_long)?).map_err(io::Error::other)?;
    let reported = control.0.get(..message.msg_controllen).unwrap_or_default();
    let parts = name.read().zip(destination(reported));
    let (peer, local) = parts.ok_or_else(|| io::Error::other("datagram without addresses"))?;
    Ok(Datagram { len, peer, local })
}

/// Sends one datagram from the address `local`; never blocks.
pub fn send_from(
    socket: &impl AsFd,
    bytes: &[u8],
    peer: SocketAddr,
    local: IpAddr,
) -> io::Result<usize> {
    let (mut name, name_size) = Name::of(peer);
    let mut control = Control::from(local);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = message(&mut name, name_size, &mut part, &mut control);
    message.msg_controllen = match local {
        IpAddr::V4(_) => Control::SPACE_V4,
        IpAddr::V6(_) => Control::SPACE_V6,
    };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: every pointer in the message is to a live buffer of the size beside it; the kernel only reads.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, flags) };
    usize::try_from(checked(sent as libc::c_long)?).map_err(io::Error::other)
}

fn message(
    name: &mut Name,
    name_size: usize,
    part: &mut libc::iovec,
    control: &mut Control,
) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.0.as_mut_ptr().cast();
    message.msg_namelen = libc::socklen_t::try_from(name_size).unwrap_or_default();
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = Control::SIZE;
    message
}

/// A socket address as the kernel lays it out.
#[repr(align(8))]
struct Name([u8; Name::SIZE]);

impl Name {
    /// `struct sockaddr_in6`; the one of IPv4 is shorter.
    const SIZE: usize = 28;
    const SIZE_V4: usize = 16;
    const EMPTY: Self = Self([0; Self::SIZE]);

    fn of(address: SocketAddr) -> (Self, usize) {
        let mut name = Self::EMPTY;
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(field) = name.0.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        };
        put(2, &address.port().to_be_bytes());
        let size = match address {
            SocketAddr::V4(v4) => {
                put(0, &family(libc::AF_INET));
                put(4, &v4.ip().octets());
                Self::SIZE_V4
            }
            SocketAddr::V6(v6) => {
                put(0, &family(libc::AF_INET6));
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
                Self::SIZE
            }
        };
        (name, size)
    }

    fn read(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(take(&self.0, 2)?);
        let kind: [u8; 2] = take(&self.0, 0)?;
        if kind == family(libc::AF_INET) {
            let ip = Ipv4Addr::from(take::<4>(&self.0, 4)?);
            Some(SocketAddrV4::new(ip, port).into())
        } else if kind == family(libc::AF_INET6) {
            let ip = Ipv6Addr::from(take::<16>(&self.0, 8)?);
            let scope = u32::from_ne_bytes(take(&self.0, 24)?);
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        } else {
            None
        }
    }
}

/// Room for one control message: its length, level and type, and a `struct in_pktinfo` (device, address of the
/// socket, address of the header) or `struct in6_pktinfo` (address, device).
#[repr(align(8))]
struct Control([u8; Control::SIZE]);

impl Control {
    const HEADER: usize = 16;
    const SIZE: usize = 64;
    const SPACE_V4: usize = Self::HEADER + 16;
    const SPACE_V6: usize = Self::HEADER + 24;
    const EMPTY: Self = Self([0; Self::SIZE]);

    fn from(local: IpAddr) -> Self {
        let mut control = Self::EMPTY;
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(field) = control.0.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        };
        match local {
            IpAddr::V4(v4) => {
                put(0, &(Self::HEADER + 12).to_ne_bytes());
                put(8, &libc::IPPROTO_IP.to_ne_bytes());
                put(12, &libc::IP_PKTINFO.to_ne_bytes());
                put(Self::HEADER + 4, &v4.octets());
            }
            IpAddr::V6(v6) => {
                put(0, &(Self::HEADER + 20).to_ne_bytes());
                put(8, &libc::IPPROTO_IPV6.to_ne_bytes());
                put(12, &libc::IPV6_PKTINFO.to_ne_bytes());
                put(Self::HEADER, &v6.octets());
            }
        }
        control
    }
}

/// The destination in the control messages of a datagram.
fn destination(mut control: &[u8]) -> Option<IpAddr> {
    loop {
        let size = usize::from_ne_bytes(take(control, 0)?);
        let level = i32::from_ne_bytes(take(control, 8)?);
        let kind = i32::from_ne_bytes(take(control, 12)?);
        let data = control.get(Control::HEADER..size)?;
        match (level, kind) {
            // `ipi_addr`, the address in the header; `ipi_spec_dst` before it is the socket's choice.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                return Some(Ipv4Addr::from(take::<4>(data, 8)?).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                return Some(Ipv6Addr::from(take::<16>(data, 0)?).into());
            }
            _ => control = control.get(size.next_multiple_of(8)..)?,
        }
    }
}

fn family(family: libc::c_int) -> [u8; 2] {
    libc::sa_family_t::try_from(family)
        .unwrap_or_default()
        .to_ne_bytes()
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// Every address of 127.0.0.0/8 is local, and a plain reply would come from the first.
    #[test]
    fn answers_come_from_the_address_that_was_asked() {
        let server = UdpSocket::bind("0.0.0.0:0").unwrap();
        enable(&server).unwrap();
        let mut buffer = [0; 100];
        let nothing = recv_from_to(&server, &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let asked: IpAddr = "127.7.7.7".parse().unwrap();
        let port = server.local_addr().unwrap().port();
        client.connect((asked, port)).unwrap();
        client.send(b"question").unwrap();
        let datagram = recv_from_to(&server, &mut buffer).unwrap();
        let expected = Datagram {
            len: 8,
            peer: client.local_addr().unwrap(),
            local: asked,
        };
        assert_eq!(datagram, expected);
        assert_eq!(
            send_from(&server, b"answer", datagram.peer, datagram.local).unwrap(),
            6
        );
        assert_eq!(client.recv(&mut buffer).unwrap(), 6);
    }

    #[test]
    fn the_same_with_ipv6() {
        let Ok(server) = UdpSocket::bind("[::]:0") else {
            return; // a machine without IPv6
        };
        enable(&server).unwrap();
        let client = UdpSocket::bind("[::1]:0").unwrap();
        let port = server.local_addr().unwrap().port();
        client.connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        client.send(b"q").unwrap();
        let mut buffer = [0; 100];
        let datagram = recv_from_to(&server, &mut buffer).unwrap();
        assert_eq!(datagram.local, IpAddr::from(Ipv6Addr::LOCALHOST));
        send_from(&server, b"a", datagram.peer, datagram.local).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 1);
    }

    #[test]
    fn truncated_control_messages_have_no_address() {
        let whole = Control::from(Ipv4Addr::LOCALHOST.into());
        for size in 0..Control::HEADER + 12 {
            assert_eq!(destination(&whole.0[..size]), None);
        }
        assert_eq!(destination(&[0; 64]), None);
    }
}

//! Messages with descriptors (`SCM_RIGHTS`) over a Unix stream socket.
//!
//! The kernel installs a copy of each descriptor in the receiver. On a stream socket the descriptors belong to the first
//! byte of the message that carried them, and `recvmsg` never merges bytes across such a boundary. So a receiver has them
//! no later than the bytes that refer to them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// More than any of our messages carries; the kernel's own limit is `SCM_MAX_FD`, 253.
const MAX_FDS: usize = 64;

/// Sends all of `bytes`; `fds` travel with the first byte.
pub fn send_with_fds(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        let sent = match rustix::net::sendmsg(
            socket,
            &[io::IoSlice::new(rest)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        // Only the first part carries the descriptors: a second copy would install them twice.
        control.clear();
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Reads some bytes and appends the descriptors that came with them, all close-on-exec (`MSG_CMSG_CLOEXEC`: no moment in
/// which a fork and exec could leak one). `Ok(0)` is the end of the stream.
pub fn recv_with_fds(
    socket: &impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [io::IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => continue,
            other => break other?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(received.bytes)
}

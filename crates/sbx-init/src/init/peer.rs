//! One connection to init: a client with its command, or the daemon.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use sbx_proto::exec::{Reply, Request, Role};
use sbx_proto::frame::{self, Decoder, MAX_REQUEST};
use sbx_sys::fdpass;

/// A peer that does not read its replies is cut off here.
const MAX_UNSENT: usize = 1000;

#[derive(Debug)]
pub(super) struct Peer {
    stream: UnixStream,
    role: Option<Role>,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// What goes out with the next reply.
    held: Vec<u8>,
    /// The pid of its command.
    pub(super) command: Option<i32>,
}

impl Peer {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            role: None,
            decoder: Decoder::new(MAX_REQUEST),
            fds: Vec::new(),
            unsent: VecDeque::new(),
            held: Vec::new(),
            command: None,
        }
    }

    pub(super) fn role(&self) -> Option<Role> {
        self.role
    }

    pub(super) fn set_role(&mut self, role: Role) {
        self.role.get_or_insert(role);
    }

    pub(super) fn interest(&self) -> PollFlags {
        if self.unsent.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    /// Reads what is there; false when the other side is gone.
    pub(super) fn receive(&mut self) -> bool {
        // Small: these are pages that every spare process makes init copy again.
        let mut buffer = [0; 4 << 10];
        loop {
            match fdpass::recv_with_fds(&self.stream, &mut buffer, &mut self.fds) {
                Ok(0) => return false,
                Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }

    pub(super) fn next_request(&mut self) -> Result<Option<Request>, String> {
        self.decoder.take().map_err(|error| error.to_string())
    }

    /// The descriptors that came since the last request.
    pub(super) fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// For a reply that another one follows: two would wake the other side twice.
    pub(super) fn hold(&mut self, reply: &Reply) {
        self.held.extend(frame::encode(reply).unwrap_or_default());
    }

    pub(super) fn send(&mut self, reply: &Reply, fds: Vec<OwnedFd>) {
        self.hold(reply);
        self.release(fds);
    }

    /// No other reply follows soon.
    pub(super) fn release(&mut self, fds: Vec<OwnedFd>) {
        let bytes = std::mem::take(&mut self.held);
        if !bytes.is_empty() && self.unsent.len() < MAX_UNSENT {
            self.unsent.push_back((bytes, fds));
        }
        self.flush();
    }

    /// Replies are far smaller than a socket's buffer: one is sent whole or not at all.
    pub(super) fn flush(&mut self) {
        while let Some((bytes, fds)) = self.unsent.front() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send_with_fds(&self.stream, bytes, &fds) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(()) | Err(_) => self.unsent.pop_front(),
            };
        }
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_held_goes_out_first_and_in_one_message() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut peer = Peer::new(ours);
        let hello = Reply::Hello {
            protocol: 1,
            sandbox: "id".into(),
        };
        let started = Reply::Started { id: 7 };
        let mut bytes = [0; 256];

        peer.hold(&hello);
        assert!(theirs.read(&mut bytes).is_err(), "nothing yet");
        peer.send(&started, vec![]);
        let both = [hello.clone(), started].map(|reply| frame::encode(&reply).unwrap());
        let count = theirs.read(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], both.concat());

        peer.release(vec![]);
        assert!(theirs.read(&mut bytes).is_err(), "nothing is left");
        peer.hold(&hello);
        peer.release(vec![]);
        let count = theirs.read(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], frame::encode(&hello).unwrap());
    }
}

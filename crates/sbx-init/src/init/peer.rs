//! One connection to init: a client with its command, or the daemon.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use sbx_proto::exec::{Reply, Request, Role};
use sbx_proto::frame::{self, Decoder, MAX_REQUEST};
use sbx_proto::plan::Node;
use sbx_sys::fdpass;

use crate::handover::identity;

/// A peer that does not read its replies is cut off here.
const MAX_UNSENT: usize = 1000;

/// What a greeting and a command come with.
const MAX_FDS: usize = 4;

#[derive(Debug)]
pub(super) struct Peer {
    stream: UnixStream,
    role: Option<Role>,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
    unsent: VecDeque<Unsent>,
    /// What goes out with the next reply.
    held: Vec<u8>,
    /// The pid of its command.
    pub(super) command: Option<i32>,
}

/// What goes out in one message.
#[derive(Debug)]
struct Unsent {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A number of commands and nothing else: the next one says it all.
    Number,
    Other,
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
                // Nobody has reason to send more at once, and what nobody takes would be init's for good.
                Ok(_) if self.fds.len() > MAX_FDS => return false,
                Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }

    pub(super) fn next_request(&mut self) -> Result<Option<Request>, String> {
        self.decoder.take().map_err(|error| error.to_string())
    }

    /// Whether its first descriptor is this namespace, which programs in a sandbox cannot show.
    pub(super) fn comes_from(&mut self, outside: Node) -> bool {
        if self.fds.is_empty() {
            return false;
        }
        let shown = self.fds.remove(0);
        rustix::fs::fstat(shown).is_ok_and(|stat| identity(&stat) == outside)
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
        let kind = match reply {
            Reply::Commands { .. } if self.held.is_empty() => Kind::Number,
            _ => Kind::Other,
        };
        self.hold(reply);
        self.release_as(kind, fds);
    }

    /// No other reply follows soon.
    pub(super) fn release(&mut self, fds: Vec<OwnedFd>) {
        self.release_as(Kind::Other, fds);
    }

    fn release_as(&mut self, kind: Kind, fds: Vec<OwnedFd>) {
        let bytes = std::mem::take(&mut self.held);
        if !bytes.is_empty() {
            if kind == Kind::Number {
                // A daemon that is busy hears the last one, however many there were: by that it stops what is idle, and
                // to cut it off would end the sandbox.
                self.unsent.pop_back_if(|last| last.kind == kind);
            }
            self.unsent.push_back(Unsent { bytes, fds, kind });
        }
        self.flush();
        if self.unsent.len() > MAX_UNSENT {
            self.unsent.clear();
            // Its end is seen when it is read from.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }

    /// Replies are far smaller than a socket's buffer: one is sent whole or not at all.
    pub(super) fn flush(&mut self) {
        while let Some(next) = self.unsent.front() {
            let fds: Vec<_> = next.fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send_with_fds(&self.stream, &next.bytes, &fds) {
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

    fn pair() -> (Peer, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Peer::new(ours), theirs)
    }

    #[test]
    fn whoever_is_busy_hears_the_last_number_of_commands() {
        let (mut peer, mut theirs) = pair();
        theirs.set_nonblocking(true).unwrap();
        for running in (0..100_000).rev() {
            peer.send(&Reply::Commands { running }, vec![]);
        }
        peer.send(&Reply::HandedOver, vec![]);
        let mut decoder = Decoder::new(frame::MAX_REPLY);
        let mut heard = Vec::new();
        let mut bytes = [0; 4096];
        while let Ok(count) = theirs.read(&mut bytes) {
            decoder.push(&bytes[..count]);
            while let Some(reply) = decoder.take::<Reply>().unwrap() {
                heard.push(reply);
            }
            peer.flush();
        }
        let last = [Reply::Commands { running: 0 }, Reply::HandedOver];
        assert!(heard.ends_with(&last), "{:?}", heard.last());
        assert!(heard.len() < 50_000, "the queue was never full");
    }

    #[test]
    fn only_who_shows_the_namespace_comes_from_it() {
        let own = || sbx_sys::peer::pid_namespace().unwrap();
        let outside = identity(&rustix::fs::fstat(own()).unwrap());
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let shown = |fds: Vec<OwnedFd>| {
            let (mut peer, theirs) = pair();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            fdpass::send_with_fds(&theirs, b"x", &fds).unwrap();
            assert!(peer.receive());
            (peer.comes_from(outside), peer.take_fds().len())
        };
        assert_eq!(shown(vec![own(), null()]), (true, 1));
        assert_eq!(shown(vec![null(), own()]), (false, 1));
        assert_eq!(shown(vec![]), (false, 0));
        let user = std::fs::File::open("/proc/self/ns/user").unwrap();
        assert_eq!(shown(vec![user.into()]), (false, 0));
    }

    #[test]
    fn whoever_does_not_read_is_cut_off() {
        let (mut peer, mut theirs) = pair();
        let started = Reply::Started { id: 7 };
        while peer.unsent.len() < MAX_UNSENT {
            peer.send(&started, vec![]);
        }
        assert!(
            theirs.set_nonblocking(true).is_ok() && peer.receive(),
            "still there"
        );
        peer.send(&started, vec![]);
        assert!(!peer.receive(), "it is forgotten");
        // What was sent is there, then the end.
        let mut rest = Vec::new();
        assert!(theirs.read_to_end(&mut rest).is_ok());
        assert!(!rest.is_empty());
    }

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

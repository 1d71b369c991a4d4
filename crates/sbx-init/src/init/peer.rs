//! One connection to init: a client with its command, or the daemon.
//!
//! A peer must not be able to slow init down: reads are bounded per turn, a peer that sends more descriptors (SCM_RIGHTS)
//! than a command has is cut off, and so is one that leaves more than [`MAX_UNSENT`] replies unread. Of several queued
//! counts of commands only the last is sent. A reply with descriptors fits into the socket's buffer and is sent whole or
//! not at all, so that they go out exactly once.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use sbx_proto::exec::{Reply, Request, Role};
use sbx_proto::frame::{self, Decoder, MAX_REPLY, MAX_REQUEST};
use sbx_proto::plan::Node;
use sbx_proto::stream::{Frame, Stream};
use sbx_sys::fdpass;

use super::streams::{Interest, Streams};
use crate::handover::identity;

/// A peer that does not read its replies is cut off here.
const MAX_UNSENT: usize = 1000;

/// What a greeting and a command come with.
const MAX_FDS: usize = 4;

/// How often one peer is read from before others have their turn, of [`READ_SIZE`] bytes each.
const MAX_READS: usize = 16;
/// Small: these are pages that every spare process makes init copy again.
const READ_SIZE: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Peer {
    stream: UnixStream,
    role: Option<Role>,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
    unsent: VecDeque<OutgoingMessage>,
    /// What goes out with the next reply.
    held: Vec<u8>,
    /// The pid of its command.
    pub(super) command: Option<i32>,
    /// Of its command, when they are frames of this connection. Kept after the command's end: what it wrote last may still
    /// wait for credit.
    streams: Option<Streams>,
}

/// One message that is not yet sent in full.
#[derive(Debug)]
struct OutgoingMessage {
    bytes: Vec<u8>,
    /// How many of them the socket has taken.
    sent: usize,
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
            streams: None,
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

    /// Reads what is there, up to a limit; false when the other side is gone.
    pub(super) fn receive(&mut self) -> bool {
        let mut buffer = [0; READ_SIZE];
        for _ in 0..MAX_READS {
            match fdpass::recv_with_fds(&self.stream, &mut buffer, &mut self.fds) {
                Ok(0) => return false,
                // No client has reason to send more at once, and those that are not taken would be init's for good.
                Ok(_) if self.fds.len() > MAX_FDS => return false,
                Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        // There may be more: the socket is still ready then.
        true
    }

    /// The next request. Frames of its command's streams are dealt with here.
    pub(super) fn next_request(&mut self) -> Result<Option<Request>, String> {
        let Some(streams) = &mut self.streams else {
            return self.decoder.take().map_err(|error| error.to_string());
        };
        loop {
            let frame = self.decoder.take_frame();
            match frame.map_err(|error| error.to_string())? {
                None => return Ok(None),
                Some(Frame::Message(request)) => return Ok(Some(request)),
                Some(frame) => streams
                    .frame(frame, &mut self.held)
                    .map_err(|violation| violation.to_string())?,
            }
        }
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
                self.unsent
                    .pop_back_if(|last| last.kind == kind && last.sent == 0);
            }
            self.unsent.push_back(OutgoingMessage {
                bytes,
                sent: 0,
                fds,
                kind,
            });
        }
        self.flush();
        if self.unsent.len() > MAX_UNSENT {
            self.unsent.clear();
            // Its end is seen when it is read from.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn flush(&mut self) {
        while let Some(next) = self.unsent.front_mut() {
            match next.send(&self.stream) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(()) | Err(_) => self.unsent.pop_front(),
            };
        }
    }
}

impl OutgoingMessage {
    fn send(&mut self, stream: &UnixStream) -> std::io::Result<()> {
        if !self.fds.is_empty() {
            // Such a reply is far smaller than a socket's buffer: it is sent whole or not at all.
            let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
            return fdpass::send_with_fds(stream, &self.bytes, &fds);
        }
        while let Some(rest @ [_, ..]) = self.bytes.get(self.sent..) {
            match rustix::net::send(stream, rest, SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The streams of its command, where they are frames of this connection.
impl Peer {
    /// From now on the connection carries frames of these.
    pub(super) fn carry(&mut self, streams: Streams) {
        // What else a client has to say is a signal or a size.
        self.decoder.limit(MAX_REPLY);
        self.streams = Some(streams);
    }

    pub(super) fn carries_streams(&self) -> bool {
        self.streams.is_some()
    }

    /// The message that the command runs has been sent.
    pub(super) fn command_started(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.start();
        }
    }

    /// The message that the command has ended has been sent.
    pub(super) fn command_ended(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.command_ended(&mut self.held);
            self.pump();
        }
    }

    /// Lets go of the command's pipes or terminal.
    pub(super) fn drop_streams(&mut self) {
        self.streams = None;
    }

    /// What its command wrote has not reached the connection.
    pub(super) fn has_undelivered(&self) -> bool {
        let streams = self.streams.as_ref();
        streams.is_some_and(|streams| !streams.is_done() || !self.unsent.is_empty())
    }

    pub(super) fn stream_interests(&self) -> impl Iterator<Item = Interest<'_>> {
        let room = self.unsent.is_empty();
        let streams = self.streams.iter();
        streams.flat_map(move |streams| streams.interests(room))
    }

    pub(super) fn stream_ready(&mut self, stream: Stream, flags: PollFlags) {
        if let Some(streams) = &mut self.streams {
            streams.ready(stream, flags, &mut self.held);
            self.pump();
        }
    }

    /// Sends what there is to send, and what is left of a command that has ended, for which nothing is polled.
    pub(super) fn pump(&mut self) {
        self.release(vec![]);
        while let Some(streams) = &mut self.streams
            && self.unsent.is_empty()
            && streams.pump(&mut self.held)
        {
            self.release(vec![]);
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
    fn a_busy_peer_gets_the_last_number_of_commands() {
        let (mut peer, mut theirs) = pair();
        theirs.set_nonblocking(true).unwrap();
        for running in (0..100_000).rev() {
            peer.send(&Reply::Commands { running }, vec![]);
        }
        peer.send(&Reply::HandedOver, vec![]);
        let mut decoder = Decoder::new(MAX_REPLY);
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
    fn only_a_peer_that_shows_its_pid_namespace_is_trusted() {
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
    fn a_peer_that_does_not_read_is_cut_off() {
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

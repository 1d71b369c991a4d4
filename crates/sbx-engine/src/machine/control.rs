//! The daemon's connection to one init. What runs on the other side is treated as hostile: messages have a
//! size cap, answers a deadline, and anything that the protocol does not allow ends the conversation.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use sbx_proto::exec::{Reply, Request, Role, SocketKind};
use sbx_proto::frame::{self, Decoder, FrameError, MAX_REPLY};
use sbx_proto::plan::{Node, RUNNING_DESCRIPTORS};
use sbx_proto::{PROTOCOL, SPOKEN};
use sbx_sys::fdpass;
use thiserror::Error;

use crate::machine::egress::Listeners;
use crate::machine::inside;
use crate::state::EXEC_SOCKET;
use crate::state::socket::connect_own;

const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const LISTENERS_TIMEOUT: Duration = Duration::from_secs(5);
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// More messages in a second than commands can start and end.
const MAX_PER_SECOND: u32 = 20_000;
/// More descriptors than init has reason to send.
const MAX_FDS: usize = 64;

#[derive(Debug, Error)]
pub enum ControlError {
    #[error("cannot talk to the sandbox's init")]
    Io(#[source] io::Error),
    #[error("the sandbox's init did not answer in time")]
    TimedOut,
    #[error("the sandbox's init ended")]
    Ended,
    #[error("the sandbox's init violated the protocol: {0}")]
    Violation(String),
    #[error("the sandbox's init refused: {0}")]
    Refused(String),
    #[error("the sandbox's init speaks protocol {0}, this daemon {PROTOCOL}")]
    OtherVersion(u32),
}

impl From<FrameError> for ControlError {
    fn from(error: FrameError) -> Self {
        Self::Violation(error.to_string())
    }
}

/// What [`Link::next`] saw.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Commands {
        running: u32,
    },
    /// It does not end, although it was asked to if it was idle.
    Busy,
    /// It ends by itself: what was mounted in a writable workspace was replaced on the host.
    MountLost,
    /// Files of root inside belong to the caller; the end follows.
    HandedOver,
    /// Nothing came within the time-out.
    Quiet,
    /// The other side is closed.
    Gone,
}

#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    protocol: u32,
    decoder: Decoder,
    /// Received with SCM_RIGHTS and not used yet.
    fds: Vec<OwnedFd>,
    /// What init said while something else was waited for.
    running: Option<u32>,
    window: Instant,
    count: u32,
}

impl Link {
    /// Connects to the init of the sandbox in `dir` and makes sure that it is the one with this id.
    pub fn connect(dir: &Path, id: &str, role: Role) -> Result<Self, ControlError> {
        Self::connect_any(dir, Some(id), role)
    }

    /// Without an id, any init will do: the record that has the id may be unreadable. An init that was started by an earlier
    /// version is greeted again in its own.
    pub fn connect_any(dir: &Path, id: Option<&str>, role: Role) -> Result<Self, ControlError> {
        match Self::connect_in(PROTOCOL, dir, id, role) {
            Err(ControlError::OtherVersion(theirs)) if SPOKEN.contains(&theirs) => {
                Self::connect_in(theirs, dir, id, role)
            }
            other => other,
        }
    }

    fn connect_in(
        protocol: u32,
        dir: &Path,
        id: Option<&str>,
        role: Role,
    ) -> Result<Self, ControlError> {
        let stream = connect_own(dir, EXEC_SOCKET).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => ControlError::TimedOut,
            _ => ControlError::Io(error),
        })?;
        Self::greet_with_protocol(protocol, stream, id, role)
    }

    /// Over a connection whose server the caller has checked.
    pub fn greet(stream: UnixStream, id: Option<&str>, role: Role) -> Result<Self, ControlError> {
        Self::greet_with_protocol(PROTOCOL, stream, id, role)
    }

    fn greet_with_protocol(
        protocol: u32,
        stream: UnixStream,
        id: Option<&str>,
        role: Role,
    ) -> Result<Self, ControlError> {
        stream
            .set_write_timeout(Some(WRITE_TIMEOUT))
            .map_err(ControlError::Io)?;
        let hello = frame::encode(&Request::Hello { protocol, role })?;
        // Init compares this namespace with its own: SCM_RIGHTS proves that the sender has it open, which no process inside has.
        let own = sbx_sys::peer::pid_namespace().map_err(ControlError::Io)?;
        fdpass::send_with_fds(&stream, &hello, &[own.as_fd()]).map_err(ControlError::Io)?;
        let mut link = Self {
            stream,
            protocol,
            decoder: Decoder::new(MAX_REPLY),
            fds: Vec::new(),
            running: None,
            window: Instant::now(),
            count: 0,
        };
        match link.message(Some(HELLO_TIMEOUT))? {
            Incoming::Reply(Reply::Hello {
                protocol: theirs, ..
            }) if theirs != protocol => Err(ControlError::OtherVersion(theirs)),
            Incoming::Reply(Reply::Hello { sandbox, .. }) if id.is_none_or(|id| sandbox == id) => {
                Ok(link)
            }
            Incoming::Reply(other) => Err(unexpected(&other)),
            Incoming::Quiet => Err(ControlError::TimedOut),
            Incoming::Gone => Err(ControlError::Ended),
        }
    }

    /// The version of this conversation: a request that came with a later one is not to be made.
    pub fn protocol(&self) -> u32 {
        self.protocol
    }

    /// A second handle, to send from another thread.
    pub fn sender(&self) -> io::Result<Sender> {
        Ok(Sender {
            stream: self.stream.try_clone()?,
        })
    }

    /// Asks for the sandbox's listeners, and looks at what comes.
    pub fn listeners(&mut self) -> Result<Listeners, ControlError> {
        let request = frame::encode(&Request::Listeners)?;
        self.stream.write_all(&request).map_err(ControlError::Io)?;
        let until = Instant::now() + LISTENERS_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.message(Some(left))? {
                Incoming::Reply(Reply::Listeners(said)) => {
                    let sockets = std::mem::take(&mut self.fds);
                    return Listeners::check(&said, sockets).map_err(ControlError::Violation);
                }
                Incoming::Reply(Reply::Commands { running }) => {
                    self.limit_rate()?;
                    self.running = Some(running);
                }
                Incoming::Reply(other) => return Err(unexpected(&other)),
                Incoming::Quiet => return Err(ControlError::TimedOut),
                Incoming::Gone => return Err(ControlError::Ended),
            }
        }
    }

    /// Asks for new sockets of the sandbox's network, and looks at what comes. For a link with [`Role::Client`].
    pub fn sockets(&mut self, kind: SocketKind, count: u8) -> Result<Vec<OwnedFd>, ControlError> {
        let request = frame::encode(&Request::Sockets { kind, count })?;
        self.stream.write_all(&request).map_err(ControlError::Io)?;
        match self.message(Some(SOCKETS_TIMEOUT))? {
            Incoming::Reply(Reply::Sockets { kind: said }) if said == kind => {
                let sockets = std::mem::take(&mut self.fds);
                inside::check(kind, count, &sockets).map_err(ControlError::Violation)?;
                Ok(sockets)
            }
            Incoming::Reply(Reply::Failed { message, .. }) => Err(ControlError::Refused(message)),
            Incoming::Reply(other) => Err(unexpected(&other)),
            Incoming::Quiet => Err(ControlError::TimedOut),
            Incoming::Gone => Err(ControlError::Ended),
        }
    }

    /// Asks for the namespaces of the sandbox, as [`RUNNING_DESCRIPTORS`] has them. Their user checks them.
    pub fn namespaces(&mut self) -> Result<Vec<OwnedFd>, ControlError> {
        let (reply, fds) = self.ask(&Request::Namespaces, &[])?;
        match reply {
            Reply::Namespaces if fds.len() == RUNNING_DESCRIPTORS => Ok(fds),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells of a writable workspace that is there from now on.
    pub fn share(&mut self, workspace: BorrowedFd<'_>) -> Result<(), ControlError> {
        self.tell(&Request::Share, &[workspace])
    }

    /// Tells of one that has ended.
    pub fn unshare(&mut self, node: Node) -> Result<(), ControlError> {
        self.tell(&Request::Unshare { node }, &[])
    }

    fn tell(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        match self.ask(request, fds)? {
            (Reply::Done, none) if none.is_empty() => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// What init answers to a request, with the descriptors that came. For a link of its own: news are not kept.
    fn ask(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        let bytes = frame::encode(request)?;
        fdpass::send_with_fds(&self.stream, &bytes, fds).map_err(ControlError::Io)?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.message(Some(left))? {
                Incoming::Reply(Reply::Commands { .. }) => self.limit_rate()?,
                Incoming::Reply(Reply::Failed { message, .. }) => {
                    return Err(ControlError::Refused(message));
                }
                Incoming::Reply(reply) => return Ok((reply, std::mem::take(&mut self.fds))),
                Incoming::Quiet => return Err(ControlError::TimedOut),
                Incoming::Gone => return Err(ControlError::Ended),
            }
        }
    }

    /// Waits for the next event, for ever without a time-out.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Event, ControlError> {
        if let Some(running) = self.running.take() {
            return Ok(Event::Commands { running });
        }
        let incoming = self.message(timeout)?;
        if !self.fds.is_empty() {
            let words = "unrequested descriptors";
            return Err(ControlError::Violation(words.into()));
        }
        match incoming {
            Incoming::Reply(Reply::Commands { running }) => {
                self.limit_rate()?;
                Ok(Event::Commands { running })
            }
            Incoming::Reply(Reply::Busy) => {
                self.limit_rate()?;
                Ok(Event::Busy)
            }
            Incoming::Reply(Reply::MountLost) => {
                self.limit_rate()?;
                Ok(Event::MountLost)
            }
            Incoming::Reply(Reply::HandedOver) => {
                self.limit_rate()?;
                Ok(Event::HandedOver)
            }
            Incoming::Reply(other) => Err(unexpected(&other)),
            Incoming::Quiet => Ok(Event::Quiet),
            Incoming::Gone => Ok(Event::Gone),
        }
    }

    fn limit_rate(&mut self) -> Result<(), ControlError> {
        if self.window.elapsed() > Duration::from_secs(1) {
            self.window = Instant::now();
            self.count = 0;
        }
        self.count += 1;
        if self.count > MAX_PER_SECOND {
            return Err(ControlError::Violation("too many messages".into()));
        }
        Ok(())
    }

    fn message(&mut self, timeout: Option<Duration>) -> Result<Incoming, ControlError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut buffer = [0; 4096];
        loop {
            if let Some(reply) = self.decoder.take()? {
                return Ok(Incoming::Reply(reply));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Incoming::Quiet);
            }
            self.stream
                .set_read_timeout(left)
                .map_err(ControlError::Io)?;
            match fdpass::recv_with_fds(&self.stream, &mut buffer, &mut self.fds) {
                Ok(0) => return Ok(Incoming::Gone),
                Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Incoming::Quiet),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset => return Ok(Incoming::Gone),
                    _ => return Err(ControlError::Io(e)),
                },
            }
            if self.fds.len() > MAX_FDS {
                return Err(ControlError::Violation("too many descriptors".into()));
            }
        }
    }
}

/// Sends to an init while another thread listens to it.
#[derive(Debug)]
pub struct Sender {
    stream: UnixStream,
}

impl Sender {
    pub fn shutdown(&mut self, grace: Duration) -> Result<(), ControlError> {
        self.ask_to_end(grace, false)
    }

    /// The same, unless a command runs by now: then the answer is [`Event::Busy`].
    pub fn shutdown_if_idle(&mut self, grace: Duration) -> Result<(), ControlError> {
        self.ask_to_end(grace, true)
    }

    fn ask_to_end(&mut self, grace: Duration, if_idle: bool) -> Result<(), ControlError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let message = frame::encode(&Request::Shutdown { grace_ms, if_idle })?;
        self.stream.write_all(&message).map_err(ControlError::Io)
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            stream: self.stream.try_clone()?,
        })
    }
}

enum Incoming {
    Reply(Reply),
    Quiet,
    Gone,
}

fn unexpected(reply: &Reply) -> ControlError {
    let kind = match reply {
        Reply::Hello { .. } => "a greeting of another sandbox",
        Reply::Started { .. } | Reply::Exited { .. } | Reply::Failed { .. } => {
            "the answer to a command that was never sent"
        }
        Reply::Commands { .. } => "a number of commands before the greeting",
        Reply::Busy | Reply::MountLost | Reply::HandedOver => "its end before anything else",
        Reply::Listeners(_) => "unrequested listeners",
        Reply::Sockets { .. } => "unrequested sockets",
        Reply::Namespaces => "unrequested namespaces",
        Reply::Done => "an answer to nothing",
    };
    ControlError::Violation(kind.into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::{AsFd, BorrowedFd};

    use sbx_proto::exec;

    use super::*;

    /// Greets an init that sends `bytes` whatever it is told.
    fn greet(bytes: Vec<u8>) -> Result<Link, ControlError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&bytes).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let link = Link::greet(ours, Some("id-1"), Role::Daemon);
        drop(theirs);
        link
    }

    fn hello(sandbox: &str) -> Vec<u8> {
        frame::encode(&Reply::Hello {
            protocol: PROTOCOL,
            sandbox: sandbox.into(),
        })
        .unwrap()
    }

    #[test]
    fn an_honest_init() {
        let mut bytes = hello("id-1");
        for running in [0, 2] {
            bytes.extend(frame::encode(&Reply::Commands { running }).unwrap());
        }
        bytes.extend(frame::encode(&Reply::HandedOver).unwrap());
        let mut link = greet(bytes).unwrap();
        assert_eq!(link.next(None).unwrap(), Event::Commands { running: 0 });
        assert_eq!(link.next(None).unwrap(), Event::Commands { running: 2 });
        assert_eq!(link.next(None).unwrap(), Event::HandedOver);
        assert_eq!(link.next(None).unwrap(), Event::Gone);
    }

    #[test]
    fn hostile_inits() {
        assert!(matches!(greet(Vec::new()), Err(ControlError::Ended)));
        assert!(matches!(
            greet(hello("id-2")),
            Err(ControlError::Violation(_))
        ));
        assert!(matches!(
            greet(vec![0xff; 64]),
            Err(ControlError::Violation(_))
        ));
        let mut bytes = hello("id-1");
        bytes.extend(frame::encode(&Reply::Started { id: 1 }).unwrap());
        let mut link = greet(bytes).unwrap();
        assert!(matches!(link.next(None), Err(ControlError::Violation(_))));
    }

    /// A link to an init that has greeted, and the init's side.
    fn greeted() -> (Link, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&hello("id-1")).unwrap();
        (
            Link::greet(ours, Some("id-1"), Role::Daemon).unwrap(),
            theirs,
        )
    }

    fn send(init: &UnixStream, reply: &Reply, fds: &[BorrowedFd<'_>]) {
        fdpass::send_with_fds(init, &frame::encode(reply).unwrap(), fds).unwrap();
    }

    #[test]
    fn listeners_come_between_other_news() {
        let (mut link, init) = greeted();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let listeners = Reply::Listeners(exec::Listeners {
            redirect: exec::Redirect::Nft,
            sockets: vec![exec::ListenerKind::Tcp4, exec::ListenerKind::DnsUdp4],
        });
        send(&init, &Reply::Commands { running: 3 }, &[]);
        send(&init, &listeners, &[tcp.as_fd(), udp.as_fd()]);
        send(&init, &Reply::Commands { running: 4 }, &[]);
        let taken = link.listeners().unwrap();
        assert_eq!((taken.tcp.len(), taken.dns_udp.len()), (1, 1));
        assert_eq!(link.next(None).unwrap(), Event::Commands { running: 3 });
        assert_eq!(link.next(None).unwrap(), Event::Commands { running: 4 });
        send(&init, &listeners, &[tcp.as_fd(), udp.as_fd()]);
        assert!(matches!(link.next(None), Err(ControlError::Violation(_))));
    }

    #[test]
    fn unrequested_descriptors_violate_the_protocol() {
        let (mut link, init) = greeted();
        send(&init, &Reply::Commands { running: 1 }, &[init.as_fd()]);
        assert!(matches!(link.next(None), Err(ControlError::Violation(_))));
        let (mut link, init) = greeted();
        // Byte by byte, and never a whole message.
        for _ in 0..2 {
            fdpass::send_with_fds(&init, &[1], &[init.as_fd(); 60]).unwrap();
        }
        assert!(matches!(link.next(None), Err(ControlError::Violation(_))));
    }

    #[test]
    fn a_flood_of_messages_violates_the_protocol() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let flood = std::thread::spawn(move || {
            let message = frame::encode(&Reply::Commands { running: 1 }).unwrap();
            theirs.write_all(&hello("id-1")).unwrap();
            while theirs.write_all(&message).is_ok() {}
        });
        let mut link = Link::greet(ours, Some("id-1"), Role::Daemon).unwrap();
        let error = loop {
            match link.next(Some(Duration::from_secs(5))) {
                Ok(Event::Commands { running: 1 }) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ControlError::Violation(_)));
        drop(link);
        flood.join().unwrap();
    }
}

//! The connection to a sandbox's init, which is treated as hostile: root in the sandbox cannot trace init, but a bug there
//! must not become one here. Every message is bounded, must come in the order of the protocol (hello, started or failed,
//! exited), and may carry one descriptor (SCM_RIGHTS) at most, which must be a pty master.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::net::SendFlags;
use sbx_engine::StateDir;
use sbx_engine::state::socket::connect_own;
use sbx_proto::exec::{Cause, ExitStatus, FailKind, Reply, Request, Role};
use sbx_proto::frame::{Decoder, MAX_REPLY, encode};
use sbx_proto::stream::{Frame, Stream};
use sbx_proto::{MIN_PROTOCOL, SPOKEN};
use sbx_sys::fdpass::{recv_with_fds, send_with_fds};

use crate::env::Transport;
use crate::failure::{Failure, Kind};
use crate::text::is_unsafe_to_print;

/// `/dev/ptmx`, and so every pty master.
const PTY_MASTER: (u32, u32) = (5, 2);

/// A message of init.
#[derive(Debug)]
pub(crate) enum Event {
    Started {
        terminal: Option<OwnedFd>,
    },
    Exited {
        status: ExitStatus,
        by: Cause,
    },
    Failed {
        kind: FailKind,
        message: String,
    },
    /// Output of the command, as a frame.
    Output(Stream, Vec<u8>),
    /// The end of an output.
    End(Stream),
    /// So many more bytes of stdin are taken.
    Credit(u32),
    /// The command does not read its stdin any more.
    InputClosed,
}

/// The state of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Starting,
    Running,
    Over,
}

/// Whether the command was asked for with a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terminal {
    None,
    Wanted,
}

#[derive(Debug)]
pub(crate) struct Init {
    stream: UnixStream,
    decoder: Decoder,
    received: Vec<OwnedFd>,
    stage: Stage,
    terminal: Terminal,
    transport: Transport,
    /// What init has not taken yet.
    unsent: VecDeque<u8>,
}

/// How much is read at once where output is frames.
const FRAMES_AT_ONCE: usize = 64 << 10;
/// How long the last message to init may take: one that does not read must not keep us.
const LAST_SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Hello and the command as one message, so that init is woken once.
pub(crate) fn opening(exec: &Request) -> io::Result<Vec<u8>> {
    let hello = Request::Hello {
        // Commands are asked for as in the oldest version, so an init of before an upgrade takes them at once.
        protocol: MIN_PROTOCOL,
        role: Role::Client,
    };
    let mut bytes = encode(&hello).map_err(io::Error::other)?;
    bytes.extend(encode(exec).map_err(io::Error::other)?);
    Ok(bytes)
}

impl Init {
    /// `socket` is relative to the state directory, as the daemon gives it.
    pub(crate) fn connect(
        state: &StateDir,
        socket: &str,
        terminal: Terminal,
        transport: Transport,
    ) -> io::Result<Self> {
        let (dir, name) = socket.rsplit_once('/').unwrap_or(("", socket));
        let stream = connect_own(&state.root().join(dir), name)?;
        Ok(Self::over(stream, terminal, transport))
    }

    fn over(stream: UnixStream, terminal: Terminal, transport: Transport) -> Self {
        Self {
            stream,
            decoder: Decoder::new(MAX_REPLY),
            received: Vec::new(),
            stage: Stage::Greeting,
            terminal,
            transport,
            unsent: VecDeque::new(),
        }
    }

    /// Sends hello, the command and its descriptors. From here on the socket is non-blocking.
    pub(crate) fn open(&self, opening: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let own = sbx_sys::peer::pid_namespace()?;
        let mut all = vec![own.as_fd()];
        all.extend(fds);
        send_with_fds(&self.stream, opening, &all)?;
        self.stream.set_nonblocking(true)
    }

    pub(crate) fn send(&mut self, request: &Request) -> io::Result<()> {
        let bytes = encode(request).map_err(io::Error::other)?;
        self.send_frames(&bytes)
    }

    /// The last message of this side, for which init is waited a while.
    pub(crate) fn send_last(&mut self, request: &Request) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(LAST_SEND_TIMEOUT))?;
        self.send(request)
    }

    /// Whole frames, in order. What init does not take at once is kept; that is little, as it is bounded by the credit for
    /// stdin.
    pub(crate) fn send_frames(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.unsent.extend(bytes);
        self.flush()
    }

    /// Whether init has not taken everything: then its socket is to be polled for room.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let (bytes @ [_, ..], _) = self.unsent.as_slices() {
            match rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => {
                    self.unsent.clear();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// False until init has reported the start: until then the request may be repeated.
    pub(crate) fn has_started(&self) -> bool {
        matches!(self.stage, Stage::Running | Stage::Over)
    }

    /// Reads what has arrived. `Ok(false)` means that init has closed the connection.
    pub(crate) fn receive(&mut self) -> Result<bool, Failure> {
        let mut small = [0; 4096];
        let mut large = Vec::new();
        let buffer = match self.transport {
            Transport::Descriptors => &mut small[..],
            Transport::Frames => {
                large.resize(FRAMES_AT_ONCE, 0);
                &mut large[..]
            }
        };
        match recv_with_fds(&self.stream, buffer, &mut self.received) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.decoder.push(buffer.get(..count).unwrap_or_default());
                if self.received.len() > 1 {
                    return Err(out_of_protocol("too many descriptors"));
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(Failure::new(
                Kind::Engine,
                format!("cannot read from the sandbox's init: {error}"),
            )),
        }
    }

    /// The next complete message.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            let frame = match self.transport {
                Transport::Descriptors => self.decoder.take().map(|it| it.map(Frame::Message)),
                Transport::Frames => self.decoder.take_frame::<Reply>(),
            };
            let event = match frame {
                Ok(Some(Frame::Message(reply))) => self.step(reply)?,
                Ok(Some(frame)) => Some(self.stream_event(frame)?),
                Ok(None) => return Ok(None),
                Err(error) => return Err(out_of_protocol(&error.to_string())),
            };
            if let Some(event) = event {
                return Ok(Some(event));
            }
        }
    }

    /// Frames are about a command that has started. Its output may come after its exit status.
    fn stream_event(&self, frame: Frame<Reply>) -> Result<Event, Failure> {
        match (self.stage, frame) {
            (Stage::Running | Stage::Over, Frame::Data(stream, bytes)) if stream.is_output() => {
                Ok(Event::Output(stream, bytes))
            }
            (Stage::Running | Stage::Over, Frame::End(stream)) if stream.is_output() => {
                Ok(Event::End(stream))
            }
            (Stage::Running | Stage::Over, Frame::Credit(Stream::Stdin, credit)) => {
                Ok(Event::Credit(credit))
            }
            (Stage::Running | Stage::Over, Frame::Close(Stream::Stdin)) => Ok(Event::InputClosed),
            (stage, _) => Err(out_of_protocol(&format!("a frame while {stage:?}"))),
        }
    }

    /// Whether a terminal comes as a descriptor.
    fn wanted_descriptor(&self) -> Terminal {
        match self.transport {
            Transport::Descriptors => self.terminal,
            Transport::Frames => Terminal::None,
        }
    }

    fn step(&mut self, reply: Reply) -> Result<Option<Event>, Failure> {
        let terminal = self.received.pop();
        match (self.stage, reply, terminal) {
            (Stage::Greeting, Reply::Hello { protocol, .. }, terminal) => {
                if !SPOKEN.contains(&protocol) {
                    return Err(Failure::new(
                        Kind::VersionMismatch,
                        "the sandbox was started by a different version of sbx",
                    )
                    .hint("stop it with `sbx stop`; the next command starts it again"));
                }
                self.stage = Stage::Starting;
                // The descriptor of the next message may be read together with the greeting.
                self.received.extend(terminal);
                Ok(None)
            }
            (Stage::Starting, Reply::Started { .. }, terminal) => {
                self.stage = Stage::Running;
                let terminal = match (self.wanted_descriptor(), terminal) {
                    (Terminal::Wanted, Some(fd)) => Some(checked_master(fd)?),
                    (Terminal::None, None) => None,
                    (Terminal::Wanted, None) => {
                        return Err(out_of_protocol("no terminal came with the start"));
                    }
                    (Terminal::None, Some(_)) => {
                        return Err(out_of_protocol("a descriptor that was not asked for"));
                    }
                };
                Ok(Some(Event::Started { terminal }))
            }
            (Stage::Starting, Reply::Failed { kind, message }, None) => {
                self.stage = Stage::Over;
                Ok(Some(Event::Failed { kind, message }))
            }
            // The spare process reports a failed execve(2) after `Started`.
            (
                Stage::Running,
                Reply::Failed {
                    kind: kind @ FailKind::Engine,
                    message,
                },
                None,
            ) => {
                self.stage = Stage::Over;
                Ok(Some(Event::Failed { kind, message }))
            }
            (Stage::Running, Reply::Exited { status, by }, None) => {
                self.stage = Stage::Over;
                Ok(Some(Event::Exited { status, by }))
            }
            (stage, reply, _) => Err(out_of_protocol(&format!("{reply:?} while {stage:?}"))),
        }
    }
}

impl AsFd for Init {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Accepts a pty master only: what the user types must not be written to any other file.
fn checked_master(fd: OwnedFd) -> Result<OwnedFd, Failure> {
    let genuine = fstat(&fd).is_ok_and(|stat| {
        let device = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && device == PTY_MASTER
    });
    if genuine && rustix::termios::tcgetwinsize(&fd).is_ok() {
        Ok(fd)
    } else {
        Err(out_of_protocol("the descriptor is not a terminal"))
    }
}

pub(crate) fn out_of_protocol(what: &str) -> Failure {
    Failure::new(
        Kind::Engine,
        format!("protocol error from the sandbox's init: {}", harmless(what)),
    )
}

/// Text of a hostile init, without control characters and cut to 500 characters.
pub(crate) fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| if is_unsafe_to_print(c) { '\u{fffd}' } else { c })
        .take(500)
        .collect()
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};
    use rustix::pty::{OpenptFlags, openpt};

    use sbx_proto::PROTOCOL;

    use super::*;

    fn pair(terminal: Terminal) -> (Init, UnixStream) {
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        (Init::over(stream, terminal, Transport::Descriptors), theirs)
    }

    fn hello() -> Reply {
        Reply::Hello {
            protocol: PROTOCOL,
            sandbox: "id".to_owned(),
        }
    }

    fn say(stream: &UnixStream, reply: &Reply, fds: &[BorrowedFd<'_>]) {
        send_with_fds(stream, &encode(reply).unwrap(), fds).unwrap();
    }

    fn hear(init: &mut Init) -> Result<Vec<Event>, Failure> {
        let mut events = Vec::new();
        for _ in 0..10 {
            init.receive()?;
            while let Some(event) = init.next()? {
                events.push(event);
            }
        }
        Ok(events)
    }

    #[test]
    fn a_whole_conversation() {
        let (mut init, theirs) = pair(Terminal::None);
        say(&theirs, &hello(), &[]);
        say(&theirs, &Reply::Started { id: 1 }, &[]);
        let status = ExitStatus::Code(3);
        let by = Cause::Stop;
        say(&theirs, &Reply::Exited { status, by }, &[]);
        let events = hear(&mut init).unwrap();
        assert!(matches!(
            events.as_slice(),
            [
                Event::Started { terminal: None },
                Event::Exited {
                    status: ExitStatus::Code(3),
                    by: Cause::Stop
                }
            ]
        ));
    }

    #[test]
    fn a_real_master_is_taken_and_nothing_else() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let (pipe, _write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for (fd, accepted) in [
            (master.as_fd(), true),
            (pipe.as_fd(), false),
            (null.as_fd(), false),
        ] {
            let (mut init, theirs) = pair(Terminal::Wanted);
            say(&theirs, &hello(), &[]);
            say(&theirs, &Reply::Started { id: 1 }, &[fd]);
            assert_eq!(hear(&mut init).is_ok(), accepted);
        }
    }

    #[test]
    fn everything_out_of_order_is_refused() {
        let pipe = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (one, two) = (pipe.0.as_fd(), pipe.1.as_fd());
        let started = Reply::Started { id: 1 };
        let exited = Reply::Exited {
            status: ExitStatus::Code(0),
            by: Cause::Itself,
        };
        let old = Reply::Hello {
            protocol: PROTOCOL + 1,
            sandbox: String::new(),
        };
        let stopping = Reply::Failed {
            kind: FailKind::Stopping,
            message: String::new(),
        };
        let conversations: [&[(&Reply, &[BorrowedFd<'_>])]; 9] = [
            // A client that believed it would run the command again.
            &[(&hello(), &[]), (&started, &[]), (&stopping, &[])],
            &[(&started, &[])],
            &[(&exited, &[])],
            &[(&old, &[])],
            &[(&hello(), &[]), (&exited, &[])],
            &[(&hello(), &[]), (&hello(), &[])],
            &[(&hello(), &[]), (&Reply::Commands { running: 1 }, &[])],
            &[(&hello(), &[]), (&started, &[one])],
            &[(&hello(), &[one, two])],
        ];
        for conversation in conversations {
            let (mut init, theirs) = pair(Terminal::None);
            for (reply, fds) in conversation {
                say(&theirs, reply, fds);
            }
            assert!(hear(&mut init).is_err(), "{conversation:?}");
        }
    }

    #[test]
    fn garbage_and_huge_messages_are_refused() {
        for bytes in [
            &b"\xff\xff\xff\xff"[..],
            b"\x05\0\0\0hello",
            b"\x02\0\0\0{}",
        ] {
            let (mut init, theirs) = pair(Terminal::None);
            io::Write::write_all(&mut &theirs, bytes).unwrap();
            let failure = hear(&mut init).unwrap_err();
            assert!(failure.message.contains("protocol error"));
        }
    }
}

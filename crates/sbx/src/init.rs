//! The connection to a sandbox's init, which is treated as hostile: root in the sandbox cannot trace init, but a bug there
//! must not become one here. Every message is bounded, must come in the order of the protocol (hello, started or failed,
//! exited), and may carry one descriptor (SCM_RIGHTS) at most, which must be a pty master.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{FileType, fstat};
use sbx_engine::StateDir;
use sbx_engine::socket::connect_unix;
use sbx_proto::PROTOCOL;
use sbx_proto::exec::{Cause, ExitStatus, FailKind, Reply, Request, Role};
use sbx_proto::frame::{Decoder, MAX_REPLY, encode};
use sbx_sys::fdpass::{recv_with_fds, send_with_fds};

use crate::failure::{Failure, Kind};
use crate::text::is_unsafe_to_print;

/// `/dev/ptmx`, and so every pty master.
const PTY_MASTER: (u32, u32) = (5, 2);

/// A message of init.
#[derive(Debug)]
pub(crate) enum Event {
    Started { terminal: Option<OwnedFd> },
    Exited { status: ExitStatus, by: Cause },
    Failed { kind: FailKind, message: String },
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
}

/// Hello and the command as one message, so that init is woken once.
pub(crate) fn opening(exec: &Request) -> io::Result<Vec<u8>> {
    let hello = Request::Hello {
        protocol: PROTOCOL,
        role: Role::Client,
    };
    let mut bytes = encode(&hello).map_err(io::Error::other)?;
    bytes.extend(encode(exec).map_err(io::Error::other)?);
    Ok(bytes)
}

impl Init {
    /// `socket` is relative to the state directory, as the daemon gives it.
    pub(crate) fn connect(state: &StateDir, socket: &str, terminal: Terminal) -> io::Result<Self> {
        let (dir, name) = socket.rsplit_once('/').unwrap_or(("", socket));
        let stream = connect_unix(&state.root().join(dir), name)?;
        Ok(Self {
            stream,
            decoder: Decoder::new(MAX_REPLY),
            received: Vec::new(),
            stage: Stage::Greeting,
            terminal,
        })
    }

    /// Sends hello, the command and its descriptors. From here on the socket is non-blocking.
    pub(crate) fn open(&self, opening: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let own = sbx_sys::peer::pid_namespace()?;
        let mut all = vec![own.as_fd()];
        all.extend(fds);
        send_with_fds(&self.stream, opening, &all)?;
        self.stream.set_nonblocking(true)
    }

    pub(crate) fn send(&self, request: &Request) -> io::Result<()> {
        let bytes = encode(request).map_err(io::Error::other)?;
        send_with_fds(&self.stream, &bytes, &[])
    }

    /// False until init has reported the start: until then the request may be repeated.
    pub(crate) fn has_started(&self) -> bool {
        matches!(self.stage, Stage::Running | Stage::Over)
    }

    /// Reads what has arrived. `Ok(false)` means that init has closed the connection.
    pub(crate) fn receive(&mut self) -> Result<bool, Failure> {
        let mut buffer = [0_u8; 4096];
        match recv_with_fds(&self.stream, &mut buffer, &mut self.received) {
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
            let reply = match self.decoder.take::<Reply>() {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(None),
                Err(error) => return Err(out_of_protocol(&error.to_string())),
            };
            if let Some(event) = self.step(reply)? {
                return Ok(Some(event));
            }
        }
    }

    fn step(&mut self, reply: Reply) -> Result<Option<Event>, Failure> {
        let terminal = self.received.pop();
        match (self.stage, reply, terminal) {
            (Stage::Greeting, Reply::Hello { protocol, .. }, terminal) => {
                if protocol != PROTOCOL {
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
                let terminal = match (self.terminal, terminal) {
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

fn out_of_protocol(what: &str) -> Failure {
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

    use super::*;

    fn pair(terminal: Terminal) -> (Init, UnixStream) {
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let init = Init {
            stream,
            decoder: Decoder::new(MAX_REPLY),
            received: Vec::new(),
            stage: Stage::Greeting,
            terminal,
        };
        (init, theirs)
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

//! The caller's own streams, read and written without ever waiting for them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::plumbing::file_type;

/// What a blocking pipe takes at once when it is polled as writable.
const FOR_A_PIPE: usize = 4096;
/// The same for a terminal: that it has room is said of one byte. After it there may be none, and the rest would wait.
pub(super) const FOR_A_TERMINAL: usize = 1;
/// `/dev/ptmx`: each time it is opened, it is another terminal.
const TERMINAL_MAKER: (u32, u32) = (5, 2);

/// A stream of the caller, written to without ever blocking on it.
#[derive(Debug)]
pub(super) enum Sink {
    /// Never blocks for long: a file, a device.
    Plain(BorrowedFd<'static>),
    /// A terminal or a named pipe, opened again so that non-blocking mode is ours alone.
    Reopened(OwnedFd),
    /// The same where opening again is not possible, as with a terminal after a change of user: pieces that
    /// are taken at once, as long as no other process writes there, and a look before each.
    Cautious {
        to: BorrowedFd<'static>,
        piece: usize,
    },
    Socket(BorrowedFd<'static>),
}

impl Sink {
    pub(super) fn of(fd: BorrowedFd<'static>) -> Self {
        match file_type(fd) {
            Some(FileType::Socket) => Self::Socket(fd),
            Some(FileType::Fifo) => Self::reopen(fd, FOR_A_PIPE),
            _ if rustix::termios::isatty(fd) => Self::reopen(fd, FOR_A_TERMINAL),
            _ => Self::Plain(fd),
        }
    }

    fn reopen(to: BorrowedFd<'static>, piece: usize) -> Self {
        match open_anew(to, OFlags::WRONLY) {
            Some(own) => Self::Reopened(own),
            None => Self::Cautious { to, piece },
        }
    }

    pub(super) fn is_cautious(&self) -> bool {
        matches!(self, Self::Cautious { .. })
    }

    pub(super) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Self::Plain(fd) => rustix::io::write(fd, bytes),
            Self::Reopened(fd) => rustix::io::write(fd, bytes),
            Self::Cautious { to, .. } if !has_room(*to) => Err(Errno::AGAIN),
            Self::Cautious { to, piece } => {
                rustix::io::write(to, bytes.get(..*piece).unwrap_or(bytes))
            }
            Self::Socket(fd) => {
                rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
        }
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(fd) | Self::Cautious { to: fd, .. } | Self::Socket(fd) => *fd,
            Self::Reopened(fd) => fd.as_fd(),
        }
    }
}

/// Whether a write would begin at once. Also when it would fail at once, which is then heard of.
fn has_room(fd: BorrowedFd<'_>) -> bool {
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    rustix::event::poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// The same pipe or terminal with a mode of its own: processes that share the caller's file description keep theirs.
/// `None` when it is not ours to open.
pub(super) fn open_anew(fd: BorrowedFd<'_>, access: OFlags) -> Option<OwnedFd> {
    let device = fstat(fd).ok()?.st_rdev;
    if (major(device), minor(device)) == TERMINAL_MAKER {
        return None;
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// The caller's stdin, read without ever blocking on it: what was there when it was polled, others who have it too can
/// have taken by then.
#[derive(Debug)]
pub(super) struct Source {
    /// What is polled. A named pipe that is opened anew when its writers have gone does not tell so.
    pub(super) caller: BorrowedFd<'static>,
    how: Reading,
}

#[derive(Debug)]
enum Reading {
    /// Never blocks for long: a file, a device. Or it cannot be opened again.
    Plain,
    /// A terminal or a pipe, with non-blocking mode of our own.
    Reopened(OwnedFd),
    Socket,
}

impl Source {
    pub(super) fn of(caller: BorrowedFd<'static>) -> Self {
        let reopened =
            || open_anew(caller, OFlags::RDONLY).map_or(Reading::Plain, Reading::Reopened);
        let how = match file_type(caller) {
            Some(FileType::Socket) => Reading::Socket,
            Some(FileType::Fifo) => reopened(),
            _ if rustix::termios::isatty(caller) => reopened(),
            _ => Reading::Plain,
        };
        Self { caller, how }
    }

    pub(super) fn read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match &self.how {
            Reading::Plain => rustix::io::read(self.caller, room),
            Reading::Reopened(own) => rustix::io::read(own, room),
            Reading::Socket => {
                rustix::net::recv(self.caller, room, RecvFlags::DONTWAIT).map(|(count, _)| count)
            }
        }
    }
}

//! Bytes between the caller's streams and the pipes (or the pty) of a command. Nothing here ever blocks: a side
//! that is not ready keeps its bytes until it is polled again, and none is lost.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::SpliceFlags;

use crate::detach_keys::{DetachKeys, Typed};
use crate::plumbing::{file_type, set_nonblocking, widen};

const CHUNK: usize = 64 << 10;
/// What is moved from pipe to pipe at once, at most: more than either holds.
const MOVED: usize = 1 << 20;
/// After this much a command has a lot to say, and a wider pipe is worth it: it goes on while bytes are moved, and is
/// woken less often. Not before, since the kernel counts the pages of all of a user's pipes together.
const A_LOT: u64 = 1 << 20;
/// What a blocking pipe takes at once when it is polled as writable.
const FOR_A_PIPE: usize = 4096;
/// The same for a terminal: that it has room is said of one byte. After it there may be none, and the rest would wait.
const FOR_A_TERMINAL: usize = 1;
/// How much is written that way before others are looked after.
const CAUTIOUS: usize = 4096;
/// `/dev/ptmx`: each time it is opened, it is another terminal.
const TERMINAL_MAKER: (u32, u32) = (5, 2);

/// How long the first keys of a detach sequence wait for the next: longer than between two keys that are typed
/// together, short enough for somebody who meant just the first.
const KEYS_HELD: Duration = Duration::from_millis(500);

/// Bytes that have been read and not yet written.
#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    written: usize,
}

impl Pending {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.written >= self.bytes.len()
    }

    /// Reads into the (empty) buffer.
    fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        self.written = 0;
        self.bytes.clear();
        self.add(CHUNK, read)
    }

    /// Reads up to `limit` bytes behind what is there.
    fn add(
        &mut self,
        limit: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let before = self.bytes.len();
        self.bytes.resize(before + limit.min(CHUNK), 0);
        let room = self.bytes.get_mut(before..).unwrap_or_default();
        let read = read(room);
        self.bytes.truncate(before + read.unwrap_or(0));
        read
    }
}

/// From a command to one of the caller's streams.
#[derive(Debug)]
pub(crate) struct Output {
    from: Option<OwnedFd>,
    to: Sink,
    pending: Pending,
    /// From pipe to pipe nothing is copied.
    splice: Option<Splice>,
    /// How much was moved that way.
    moved: u64,
    /// Why the caller's stream does not take bytes any more.
    broken: Option<Errno>,
}

/// Which of two pipes is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Splice {
    Bytes,
    Room,
}

/// What an [`Output`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Readable,
    Writable,
    Done,
}

impl Output {
    /// `pipe` must be non-blocking.
    pub(crate) fn from_pipe(pipe: OwnedFd, to: BorrowedFd<'static>) -> Self {
        Self {
            from: Some(pipe),
            to: Sink::of(to),
            pending: Pending::default(),
            splice: None,
            moved: 0,
            broken: None,
        }
    }

    /// The same for a caller's stream that is a pipe too.
    pub(crate) fn from_pipe_to_pipe(pipe: OwnedFd, to: BorrowedFd<'static>) -> Self {
        Self {
            to: Sink::Plain(to),
            splice: Some(Splice::Bytes),
            ..Self::from_pipe(pipe, to)
        }
    }

    /// Why output of the command is lost. That its reader has gone is no news to anybody.
    pub(crate) fn lost(&self) -> Option<Errno> {
        self.broken
            .filter(|error| !reader_has_gone(*error, file_type(self.to.as_fd())))
    }

    pub(crate) fn wait(&self) -> Wait {
        if !self.pending.is_empty() {
            Wait::Writable
        } else if self.from.is_none() {
            Wait::Done
        } else if self.splice == Some(Splice::Room) {
            Wait::Writable
        } else {
            Wait::Readable
        }
    }

    /// What to poll for the answer of [`Self::wait`].
    pub(crate) fn polled(&self) -> Option<BorrowedFd<'_>> {
        match self.wait() {
            Wait::Readable => self.from.as_ref().map(AsFd::as_fd),
            Wait::Writable => Some(self.to.as_fd()),
            Wait::Done => None,
        }
    }

    /// Moves what can be moved. How many bytes were read.
    pub(crate) fn advance(&mut self) -> usize {
        if let Some(waited) = self.splice {
            return self.move_pages(waited);
        }
        let mut read = 0;
        if self.pending.is_empty() {
            read = self.read();
        }
        self.write();
        read
    }

    /// The command has ended: what it wrote is in the pipe by now, and only that is still relayed. It is taken out at
    /// once, because others that hold the pipe can add to it and take from it.
    pub(crate) fn command_ended(&mut self) {
        let Some(from) = self.from.take() else { return };
        let left = rustix::io::ioctl_fionread(&from).unwrap_or(0);
        self.take_out(&from, usize::try_from(left).unwrap_or(MOVED));
    }

    /// At most `left` bytes; less when somebody else was faster.
    fn take_out(&mut self, from: &OwnedFd, mut left: usize) {
        if left > 0 && self.splice.take().is_some() {
            // Neither end had to be in that mode before.
            if set_nonblocking(from).is_err() {
                return;
            }
            if let Sink::Plain(to) = self.to {
                self.to = Sink::of(to);
            }
        }
        while left > 0 {
            match self.pending.add(left, |room| rustix::io::read(from, room)) {
                Ok(0) => break,
                Ok(count) => left = left.saturating_sub(count),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.write();
    }

    fn move_pages(&mut self, waited: Splice) -> usize {
        let Some(from) = &self.from else { return 0 };
        // Whatever mode the caller's pipe is in, this does not wait for it.
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        match rustix::pipe::splice(from, None, &self.to, None, MOVED, flags) {
            Ok(0) => self.from = None,
            Ok(count) => {
                self.splice = Some(Splice::Bytes);
                let before = self.moved;
                self.moved = before.saturating_add(count as u64);
                if before < A_LOT && self.moved >= A_LOT {
                    widen(from);
                }
                return count;
            }
            Err(Errno::INTR) => {}
            // It is the other one that is not ready.
            Err(Errno::AGAIN) => {
                self.splice = Some(match waited {
                    Splice::Bytes => Splice::Room,
                    Splice::Room => Splice::Bytes,
                });
            }
            Err(error) => {
                // With our end closed the command gets SIGPIPE, as it would from the caller's stream.
                self.from = None;
                self.broken = Some(error);
            }
        }
        0
    }

    fn read(&mut self) -> usize {
        let Some(from) = &self.from else { return 0 };
        match self.pending.fill(|room| rustix::io::read(from, room)) {
            // A pty master gives an error when the other side is closed.
            Ok(0) | Err(Errno::IO) => self.from = None,
            Ok(count) => return count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.from = None,
        }
        0
    }

    fn write(&mut self) {
        let mut written = 0;
        while !self.pending.is_empty() {
            match self.to.write(self.pending.rest()) {
                Ok(count) => {
                    self.pending.written += count;
                    written += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    // With our end closed the command gets SIGPIPE, as it would from the caller's stream.
                    self.from = None;
                    self.pending = Pending::default();
                    self.broken = Some(error);
                    return;
                }
            }
            if self.to.is_cautious() && written >= CAUTIOUS {
                return;
            }
        }
    }
}

/// Whether a stream of this type does not take bytes because nobody would read them. EIO is said of a terminal that
/// has hung up, which does not say any more that it is one, and of a file on a disk that fails.
fn reader_has_gone(error: Errno, stream: Option<FileType>) -> bool {
    match error {
        Errno::PIPE | Errno::CONNRESET => true,
        Errno::IO => stream == Some(FileType::CharacterDevice),
        _ => false,
    }
}

/// A stream of the caller, written to without ever blocking on it.
#[derive(Debug)]
enum Sink {
    /// Never blocks for long: a file, a device.
    Plain(BorrowedFd<'static>),
    /// A terminal or a named pipe, opened again so that non-blocking mode is ours alone.
    Reopened(OwnedFd),
    /// The same where opening again is not possible, as with the terminal of whoever became another user: pieces that
    /// are taken at once, as long as nobody else writes there, and a look before each.
    Cautious {
        to: BorrowedFd<'static>,
        piece: usize,
    },
    Socket(BorrowedFd<'static>),
}

impl Sink {
    fn of(fd: BorrowedFd<'static>) -> Self {
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

    fn is_cautious(&self) -> bool {
        matches!(self, Self::Cautious { .. })
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
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

/// The same pipe or terminal with a mode of its own: whoever shares the caller's description keeps theirs. `None` when
/// it is not ours to open.
fn open_anew(fd: BorrowedFd<'_>, access: OFlags) -> Option<OwnedFd> {
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
struct Source {
    /// What is polled. A named pipe that is opened anew when its writers have gone does not tell so.
    caller: BorrowedFd<'static>,
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
    fn of(caller: BorrowedFd<'static>) -> Self {
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

    fn read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match &self.how {
            Reading::Plain => rustix::io::read(self.caller, room),
            Reading::Reopened(own) => rustix::io::read(own, room),
            Reading::Socket => {
                rustix::net::recv(self.caller, room, RecvFlags::DONTWAIT).map(|(count, _)| count)
            }
        }
    }
}

/// From the caller's stdin to a command.
#[derive(Debug)]
pub(crate) struct Input {
    /// `None` at the end of the input.
    from: Option<Source>,
    /// `None` when the command has its end of input, or does not read any more.
    to: Option<OwnedFd>,
    pending: Pending,
    keys: Option<DetachKeys>,
    /// Until when keys are held back that may be the beginning of the sequence.
    held_until: Option<Instant>,
    pub(crate) detached: bool,
}

impl Input {
    /// `to` must be non-blocking.
    pub(crate) fn new(from: BorrowedFd<'static>, to: OwnedFd) -> Self {
        Self {
            from: Some(Source::of(from)),
            to: Some(to),
            pending: Pending::default(),
            keys: None,
            held_until: None,
            detached: false,
        }
    }

    #[must_use]
    pub(crate) fn with_detach_keys(mut self, keys: Option<DetachKeys>) -> Self {
        self.keys = keys;
        self
    }

    /// The command's side, and whether there are bytes for it. It is always polled: it also tells when the
    /// command does not read any more.
    pub(crate) fn destination(&self) -> Option<(BorrowedFd<'_>, Wait)> {
        let wait = if self.pending.is_empty() {
            Wait::Done
        } else {
            Wait::Writable
        };
        self.to.as_ref().map(|to| (to.as_fd(), wait))
    }

    /// The caller's side, when bytes are wanted from it.
    pub(crate) fn source(&self) -> Option<BorrowedFd<'static>> {
        let wanted = self.to.is_some() && self.pending.is_empty();
        self.from
            .as_ref()
            .filter(|_| wanted)
            .map(|from| from.caller)
    }

    pub(crate) fn source_ready(&mut self) {
        let Some(from) = &self.from else { return };
        match self.pending.fill(|room| from.read(room)) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => {
                self.from = None;
                self.release();
            }
            Ok(_) => self.look_for_keys(),
        }
        self.write();
    }

    /// When [`Self::tick`] has something to do.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// Keys that nothing followed in time are not the sequence: they are the command's.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.held_until.is_some_and(|until| until <= now) {
            self.release();
            self.write();
        }
    }

    fn release(&mut self) {
        self.held_until = None;
        if let Some(keys) = &mut self.keys {
            self.pending.bytes.extend(keys.release());
        }
    }

    pub(crate) fn destination_ready(&mut self) {
        self.write();
    }

    /// The command does not read any more.
    pub(crate) fn destination_closed(&mut self) {
        self.to = None;
    }

    fn look_for_keys(&mut self) {
        if let Some(keys) = &mut self.keys {
            let (bytes, detached) = match keys.take(&self.pending.bytes) {
                Typed::Forward(bytes) => (bytes, false),
                Typed::Detach(bytes) => (bytes, true),
            };
            self.pending.bytes = bytes;
            self.detached |= detached;
            self.held_until = keys.is_holding().then(|| Instant::now() + KEYS_HELD);
        }
    }

    fn write(&mut self) {
        while let (Some(to), false) = (&self.to, self.pending.is_empty()) {
            match rustix::io::write(to, self.pending.rest()) {
                Ok(count) => self.pending.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.to = None,
            }
        }
        if self.from.is_none() {
            self.to = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn output_is_lost_to_a_disk_and_not_to_a_reader_that_has_gone() {
        let (file, terminal) = (FileType::RegularFile, FileType::CharacterDevice);
        for (error, stream, gone) in [
            (Errno::PIPE, FileType::Fifo, true),
            (Errno::CONNRESET, FileType::Socket, true),
            (Errno::IO, terminal, true),
            (Errno::IO, file, false),
            (Errno::NOSPC, file, false),
            (Errno::NOSPC, terminal, false),
        ] {
            let found = reader_has_gone(error, Some(stream));
            assert_eq!(found, gone, "{error:?} of {stream:?}");
        }
        assert!(!reader_has_gone(Errno::IO, None));
    }

    fn kept<T>(value: T) -> &'static T {
        Box::leak(Box::new(value))
    }

    /// Who has a terminal, and the terminal.
    fn terminal() -> (OwnedFd, &'static OwnedFd) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let reader = openpt(flags).unwrap();
        grantpt(&reader).unwrap();
        unlockpt(&reader).unwrap();
        let name = ptsname(&reader, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        (reader, kept(terminal))
    }

    #[test]
    fn what_others_took_from_the_input_is_not_waited_for() {
        let (pipe, to_pipe) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (socket, to_socket) = std::os::unix::net::UnixStream::pair().unwrap();
        let (to_terminal, terminal) = terminal();
        let sources: [(BorrowedFd<'static>, OwnedFd, &[u8]); 3] = [
            (kept(pipe).as_fd(), to_pipe, b"later\n"),
            (kept(socket).as_fd(), to_socket.into(), b"later\n"),
            (terminal.as_fd(), to_terminal, b"later\n"),
        ];
        for (source, feed, text) in sources {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            set_nonblocking(&write).unwrap();
            let mut input = Input::new(source, write);
            // It was polled as readable a moment ago.
            input.source_ready();
            assert!(input.source().is_some(), "that is not its end");
            rustix::io::write(&feed, text).unwrap();
            input.source_ready();
            let mut bytes = [0; 16];
            let count = rustix::io::read(&read, &mut bytes).unwrap();
            assert_eq!(&bytes[..count], text);
            let mode = rustix::fs::fcntl_getfl(source).unwrap();
            assert!(
                !mode.contains(OFlags::NONBLOCK),
                "the caller's is as it was"
            );
        }
    }

    #[test]
    fn a_named_pipe_whose_writers_have_gone_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
        let open = |flags| rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let both = open(OFlags::RDWR | OFlags::CLOEXEC);
        let source = kept(open(OFlags::RDONLY | OFlags::CLOEXEC));
        drop(both);
        let (_read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        set_nonblocking(&write).unwrap();
        // Opened anew only after the last writer has gone.
        let mut input = Input::new(source.as_fd(), write);
        let polled = input.source().unwrap();
        let mut fds = [PollFd::from_borrowed_fd(polled, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
        input.source_ready();
        assert!(input.destination().is_none(), "the end is passed on");
    }

    #[test]
    fn what_makes_terminals_is_not_opened_anew() {
        let (maker, _terminal) = terminal();
        assert!(open_anew(maker.as_fd(), OFlags::RDONLY).is_none());
    }

    #[test]
    fn a_terminal_that_cannot_be_opened_again_is_not_waited_for() {
        use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcsetattr};
        let (reader, terminal) = terminal();
        set_nonblocking(&reader).unwrap();
        let mut modes = tcgetattr(terminal).unwrap();
        // Each tab becomes eight bytes, each newline two.
        modes.output_modes |= OutputModes::OPOST | OutputModes::ONLCR | OutputModes::XTABS;
        tcsetattr(terminal, OptionalActions::Now, &modes).unwrap();
        for text in ["\t", "\n", "x", "\tx\n"] {
            let (to, piece) = (terminal.as_fd(), FOR_A_TERMINAL);
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            set_nonblocking(&read).unwrap();
            let mut output = Output::from_pipe(read, to);
            output.to = Sink::Cautious { to, piece };
            let bytes = text.repeat(60_000 / text.len());
            rustix::io::write(&write, bytes.as_bytes()).unwrap();
            drop(write);
            let mut seen = 0;
            let mut bytes = [0; 1000];
            // Little is taken at a time, so that there is hardly ever room.
            while output.wait() != Wait::Done {
                output.advance();
                seen += rustix::io::read(&reader, &mut bytes).unwrap_or(0);
            }
            assert!(seen > 0 && output.broken.is_none(), "{text:?}: {seen}");
            rustix::termios::tcflush(terminal, rustix::termios::QueueSelector::IOFlush).unwrap();
        }
    }

    #[test]
    fn a_terminal_that_has_hung_up_takes_nothing_and_loses_nothing() {
        let (reader, terminal) = terminal();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        set_nonblocking(&read).unwrap();
        let mut output = Output::from_pipe(read, terminal.as_fd());
        drop(reader);
        rustix::io::write(&write, b"from the command").unwrap();
        output.advance();
        assert_eq!((output.broken, output.lost()), (Some(Errno::IO), None));
    }

    #[test]
    fn only_what_the_command_wrote_is_relayed_after_its_end() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        set_nonblocking(&read).unwrap();
        let null: &'static std::fs::File = Box::leak(Box::new(
            std::fs::OpenOptions::new()
                .write(true)
                .open("/dev/null")
                .unwrap(),
        ));
        let mut output = Output::from_pipe(read, null.as_fd());
        rustix::io::write(&write, b"from the command").unwrap();
        output.command_ended();
        assert_eq!(output.wait(), Wait::Done);
        let later = rustix::io::write(&write, b"from somebody else");
        assert_eq!(later, Err(Errno::PIPE), "nobody reads it any more");
    }

    #[test]
    fn what_others_took_after_the_commands_end_is_not_waited_for() {
        let (reader, caller) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let caller: &'static OwnedFd = Box::leak(Box::new(caller));
        let make: [fn(OwnedFd, BorrowedFd<'static>) -> Output; 2] =
            [Output::from_pipe, Output::from_pipe_to_pipe];
        for (make, nonblocking) in make.into_iter().zip([true, false]) {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            if nonblocking {
                set_nonblocking(&read).unwrap();
            }
            rustix::io::write(&write, b"left").unwrap();
            let mut output = make(read, caller.as_fd());
            let from = output.from.take().unwrap();
            // There was more when it was asked how much there is.
            output.take_out(&from, 100);
            assert_eq!(output.wait(), Wait::Done);
            let mut bytes = [0; 16];
            assert_eq!(rustix::io::read(&reader, &mut bytes).unwrap(), 4);
            assert_eq!(&bytes[..4], b"left");
        }
    }

    #[test]
    fn from_pipe_to_pipe_nothing_waits_and_nothing_is_lost() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (reader, caller) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let caller: &'static OwnedFd = Box::leak(Box::new(caller));
        let filled = rustix::io::write(caller, &vec![0; 64 << 10]).unwrap();
        let mut output = Output::from_pipe_to_pipe(read, caller.as_fd());
        rustix::io::write(&write, b"from the command").unwrap();
        assert_eq!(
            output.advance(),
            0,
            "the caller's pipe is full, and blocking"
        );
        assert_eq!(output.wait(), Wait::Writable);
        output.command_ended();
        assert_eq!(output.wait(), Wait::Writable);
        let mut drained = vec![0; filled + 100];
        assert_eq!(rustix::io::read(&reader, &mut drained[..]).unwrap(), filled);
        output.advance();
        assert_eq!(output.wait(), Wait::Done);
        let count = rustix::io::read(&reader, &mut drained[..]).unwrap();
        assert_eq!(&drained[..count], b"from the command");

        // A reader that has gone is known by the next write.
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut output = Output::from_pipe_to_pipe(read, caller.as_fd());
        drop(reader);
        rustix::io::write(&write, b"lost").unwrap();
        assert_eq!(output.advance(), 0);
        assert_eq!(output.broken, Some(Errno::PIPE));
        assert_eq!(output.wait(), Wait::Done);
    }

    #[test]
    fn a_full_pipe_keeps_its_bytes_and_input_waits() {
        let (source, feed) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let source: &'static OwnedFd = Box::leak(Box::new(source));
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        set_nonblocking(&write).unwrap();
        let filler = vec![0_u8; 64 << 10];
        let filled = rustix::io::write(&write, &filler).unwrap();
        let mut input = Input::new(source.as_fd(), write);
        rustix::io::write(&feed, b"kept").unwrap();
        input.source_ready();
        assert!(input.source().is_none());
        assert_eq!(input.destination().unwrap().1, Wait::Writable);

        let mut drained = vec![0_u8; filled];
        rustix::io::read(&read, drained.as_mut_slice()).unwrap();
        input.destination_ready();
        let mut kept = [0_u8; 16];
        assert_eq!(rustix::io::read(&read, &mut kept).unwrap(), 4);
        assert_eq!(&kept[..4], b"kept");

        drop(feed);
        input.source_ready();
        assert!(input.destination().is_none(), "the end is passed on");
    }
}

//! Bytes between the caller's streams and the pipes (or the pty) of a command. Nothing here ever blocks: a side
//! that is not ready keeps its bytes until it is polled again, and none is lost.

mod framed;
mod streams;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

use crate::detach_keys::{DetachKeys, Typed};
use crate::plumbing::{file_type, set_nonblocking, widen};
use framed::{FramedOrigin, FramedTarget};
use streams::{Sink, Source};

const CHUNK: usize = 64 << 10;
/// What is moved from pipe to pipe at once, at most: more than either holds.
const MOVED: usize = 1 << 20;
/// After this much a command has a lot to say, and a wider pipe is worth it: it goes on while bytes are moved, and is
/// woken less often. Not before, since the kernel counts the pages of all of a user's pipes together.
const WIDEN_AFTER: u64 = 1 << 20;
/// How much is written that way before others are looked after.
const CAUTIOUS: usize = 4096;

/// How long the first keys of a detach sequence wait for the next: longer than between two keys that are typed
/// together, short enough for a user who meant just the first.
const DETACH_KEY_TIMEOUT: Duration = Duration::from_millis(500);

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
    /// Where bytes come from instead of a descriptor.
    frames: Option<FramedOrigin>,
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
            frames: None,
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

    /// Why output of the command is lost. EPIPE is not an error: the reader closed its end.
    pub(crate) fn lost(&self) -> Option<Errno> {
        self.broken
            .filter(|error| !reader_has_gone(*error, file_type(self.to.as_fd())))
    }

    pub(crate) fn wait(&self) -> Wait {
        if !self.pending.is_empty() {
            Wait::Writable
        } else if self.from.is_none() && !self.awaits_frames() {
            Wait::Done
        } else if self.splice == Some(Splice::Room) {
            Wait::Writable
        } else {
            Wait::Readable
        }
    }

    /// What to poll for the answer of [`Self::wait`]; frames come with the connection to init.
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

    /// At most `left` bytes; less when another process has read some of them.
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
                if before < WIDEN_AFTER && self.moved >= WIDEN_AFTER {
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
        let before = self.pending.written;
        self.write_pending();
        self.wrote(self.pending.written.saturating_sub(before));
    }

    fn write_pending(&mut self) {
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

/// Whether a stream of this type does not take bytes because its reader has gone. EIO is said of a terminal that
/// has hung up, which does not say any more that it is one, and of a file on a disk that fails.
fn reader_has_gone(error: Errno, stream: Option<FileType>) -> bool {
    match error {
        Errno::PIPE | Errno::CONNRESET => true,
        Errno::IO => stream == Some(FileType::CharacterDevice),
        _ => false,
    }
}

/// From the caller's stdin to a command.
#[derive(Debug)]
pub(crate) struct Input {
    /// `None` at the end of the input.
    from: Option<Source>,
    /// `None` when the command has its end of input, or does not read any more.
    to: Option<OwnedFd>,
    /// Where bytes go to instead of a descriptor.
    frames: Option<FramedTarget>,
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
            frames: None,
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
        let wanted = (self.to.is_some() || self.takes_frames()) && self.pending.is_empty();
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
        self.close_frames();
    }

    fn look_for_keys(&mut self) {
        if let Some(keys) = &mut self.keys {
            let (bytes, detached) = match keys.take(&self.pending.bytes) {
                Typed::Forward(bytes) => (bytes, false),
                Typed::Detach(bytes) => (bytes, true),
            };
            self.pending.bytes = bytes;
            self.detached |= detached;
            self.held_until = keys
                .is_holding()
                .then(|| Instant::now() + DETACH_KEY_TIMEOUT);
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
        self.write_frames();
        if self.from.is_none() {
            self.to = None;
        }
    }
}

#[cfg(test)]
mod tests;

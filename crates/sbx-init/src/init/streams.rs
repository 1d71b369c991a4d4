//! A command's streams as frames of its client's connection, where descriptors cannot be passed.
//!
//! Init holds the other ends of the command's pipes, or the master of its pty, and moves bytes between them and the
//! connection ([`sbx_proto::stream`]). Nothing here waits: every descriptor is non-blocking, and what is kept is bounded:
//!
//! - stdin: at most one window of bytes that the command has not read yet. A client that sends more breaks the protocol
//!   and is cut off;
//! - stdout, stderr: nothing. A pipe is read only when the client has granted credit and the connection has taken all
//!   frames before; until then the bytes wait in the pipe, and the command with them.
//!
//! A pipe whose writers have all gone is always ready (`POLLHUP`), so a descriptor is polled only while it would be
//! read from.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use sbx_proto::exec::{FramedStderr, FramedStdin};
use sbx_proto::stream::{
    Frame, MAX_DATA, Receiver, Sender, Stream, Violation, push_close, push_credit, push_data,
    push_end,
};

use super::stdio::{no_input, pipe_to_us};
use crate::spawn::Stdio;

/// Init's side of a command's streams.
#[derive(Debug)]
pub(super) struct Streams {
    /// No frame goes out before the message that the command has started.
    started: bool,
    stdin: Input,
    outputs: Vec<Output>,
}

/// From the client to the command.
#[derive(Debug)]
struct Input {
    /// `None` when the command's end has been closed, or never had another one.
    to: Option<OwnedFd>,
    kind: Kind,
    /// What the command has not read yet.
    pending: VecDeque<u8>,
    window: Receiver,
}

/// From the command to the client.
#[derive(Debug)]
struct Output {
    stream: Stream,
    kind: Kind,
    /// `None` after the end of the stream, or when the client has closed it.
    from: Option<OwnedFd>,
    window: Sender,
    /// After the command's end: how much of what it wrote is still in the pipe. Processes that it has left may hold the
    /// pipe open and go on writing; that is not waited for.
    left: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pipe,
    Terminal,
}

/// What is polled for a stream.
pub(super) type Interest<'a> = (Stream, BorrowedFd<'a>, PollFlags);

impl Streams {
    /// Pipes for a command, and the descriptors that it begins with.
    pub(super) fn pipes(stdin: FramedStdin, stderr: FramedStderr) -> Result<(Self, Stdio), Errno> {
        let (input, to) = match stdin {
            FramedStdin::Empty => (no_input()?, None),
            FramedStdin::Stream => {
                let (input, to) = pipe_with(PipeFlags::CLOEXEC)?;
                rustix::fs::fcntl_setfl(&to, OFlags::NONBLOCK)?;
                (input, Some(to))
            }
        };
        // Programs open `/dev/stdin` and `/dev/stdout` again, as a user who is not the pipe's owner. No other process can:
        // the way there is `/proc/PID/fd` of one that has it.
        rustix::fs::fchmod(&input, FileMode::from_raw_mode(0o666))?;
        let output = |stream| {
            let (from, end) = pipe_to_us()?;
            rustix::fs::fchmod(&end, FileMode::from_raw_mode(0o622))?;
            Ok::<_, Errno>((Output::new(stream, Kind::Pipe, from), end))
        };
        let (stdout, out_end) = output(Stream::Stdout)?;
        let mut outputs = vec![stdout];
        let err_end = match stderr {
            FramedStderr::Stdout => rustix::io::fcntl_dupfd_cloexec(&out_end, 3)?,
            FramedStderr::Stream => {
                let (stderr, end) = output(Stream::Stderr)?;
                outputs.push(stderr);
                end
            }
        };
        let streams = Self::new(Input::new(to, Kind::Pipe), outputs);
        Ok((streams, [input, out_end, err_end]))
    }

    /// Of a pty, by its master, which must be non-blocking.
    pub(super) fn terminal(master: &OwnedFd) -> Result<Self, Errno> {
        let copy = || rustix::io::fcntl_dupfd_cloexec(master, 3);
        let shown = Output::new(Stream::Stdout, Kind::Terminal, copy()?);
        Ok(Self::new(
            Input::new(Some(copy()?), Kind::Terminal),
            vec![shown],
        ))
    }

    fn new(stdin: Input, outputs: Vec<Output>) -> Self {
        Self {
            started: false,
            stdin,
            outputs,
        }
    }

    pub(super) fn start(&mut self) {
        self.started = true;
    }

    /// All output has been sent.
    pub(super) fn is_done(&self) -> bool {
        !self.started || self.outputs.iter().all(|output| output.from.is_none())
    }

    /// What to poll. `room`: whether the connection takes more frames.
    pub(super) fn interests(&self, room: bool) -> impl Iterator<Item = Interest<'_>> {
        let outputs = self.outputs.iter().filter(move |output| {
            // What is left after the command's end is there already; see [`Self::pump`].
            room && output.left.is_none() && output.window.credit() > 0
        });
        let outputs = outputs.filter_map(|output| {
            let from = output.from.as_ref()?;
            Some((output.stream, from.as_fd(), PollFlags::IN))
        });
        let all = outputs.chain(self.stdin.interest());
        all.filter(|_| self.started)
    }

    /// A polled descriptor is ready: frames for the client go to `out`.
    pub(super) fn ready(&mut self, stream: Stream, flags: PollFlags, out: &mut Vec<u8>) {
        if stream == Stream::Stdin {
            return self.stdin.ready(flags, out);
        }
        let mut outputs = self.outputs.iter_mut();
        if let Some(output) = outputs.find(|output| output.stream == stream) {
            output.read(out);
        }
    }

    /// Sends on what is left of an ended command, as far as there is credit. False when there is nothing to do.
    pub(super) fn pump(&mut self, out: &mut Vec<u8>) -> bool {
        let mut outputs = self.outputs.iter_mut();
        let Some(output) = outputs.find(|output| output.is_left()) else {
            return false;
        };
        output.read(out);
        true
    }

    /// A frame from the client, who is cut off after a violation.
    pub(super) fn frame<M>(&mut self, frame: Frame<M>, out: &mut Vec<u8>) -> Result<(), Violation> {
        match frame {
            // Messages are the caller's.
            Frame::Message(_) => Ok(()),
            Frame::Data(Stream::Stdin, bytes) => self.stdin.receive(&bytes, out),
            Frame::End(Stream::Stdin) => self.stdin.end(),
            Frame::Credit(stream, credit) => self.output(stream)?.window.grant(credit),
            Frame::Close(stream) => {
                // The command gets SIGPIPE, as it would from the caller's stream.
                self.output(stream)?.from = None;
                Ok(())
            }
            Frame::Data(..) | Frame::End(_) => Err(Violation::WrongDirection),
        }
    }

    /// The command has ended. Its pipes hold what it wrote; a terminal tells its end by itself, when the last process has
    /// closed it.
    pub(super) fn command_ended(&mut self, out: &mut Vec<u8>) {
        self.stdin.to = None;
        self.stdin.pending = VecDeque::new();
        for output in &mut self.outputs {
            if let (Kind::Pipe, Some(from)) = (output.kind, &output.from) {
                output.left = Some(rustix::io::ioctl_fionread(from).unwrap_or(0));
                output.end_if_empty(out);
            }
        }
    }

    fn output(&mut self, stream: Stream) -> Result<&mut Output, Violation> {
        let mut outputs = self.outputs.iter_mut();
        let found = outputs.find(|output| output.stream == stream);
        found.ok_or(Violation::WrongDirection)
    }
}

impl Input {
    fn new(to: Option<OwnedFd>, kind: Kind) -> Self {
        Self {
            to,
            kind,
            pending: VecDeque::new(),
            window: Receiver::new(Stream::Stdin),
        }
    }

    fn interest(&self) -> Option<Interest<'_>> {
        let to = self.to.as_ref()?;
        let flags = match (self.pending.is_empty(), self.kind) {
            (false, _) => PollFlags::OUT,
            // Tells when the command has closed its stdin (`POLLERR`), which is always polled.
            (true, Kind::Pipe) => PollFlags::empty(),
            (true, Kind::Terminal) => return None,
        };
        Some((Stream::Stdin, to.as_fd(), flags))
    }

    fn ready(&mut self, flags: PollFlags, out: &mut Vec<u8>) {
        if self.pending.is_empty() && flags.intersects(PollFlags::ERR | PollFlags::HUP) {
            return self.close(out);
        }
        self.write(out);
    }

    fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
        self.window.received(bytes.len())?;
        // What was under way when the command closed its stdin is dropped.
        if self.to.is_some() {
            self.pending.extend(bytes);
            self.write(out);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Violation> {
        self.window.end()?;
        self.close_if_over();
        Ok(())
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        while let (Some(to), (bytes @ [_, ..], _)) = (&self.to, self.pending.as_slices()) {
            match rustix::io::write(to, bytes) {
                Ok(count) => {
                    self.pending.drain(..count);
                    if let Some(credit) = self.window.delivered(count) {
                        push_credit(out, Stream::Stdin, credit);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.close(out),
            }
        }
        // The memory of a burst is not kept for as long as the command runs.
        self.pending = VecDeque::new();
        self.close_if_over();
    }

    /// The command does not read any more.
    fn close(&mut self, out: &mut Vec<u8>) {
        self.to = None;
        self.pending = VecDeque::new();
        if !self.window.has_ended() {
            push_close(out, Stream::Stdin);
        }
    }

    /// A terminal has no end of input but the one that is typed.
    fn close_if_over(&mut self) {
        if self.window.has_ended() && self.pending.is_empty() {
            self.to = None;
        }
    }
}

impl Output {
    fn new(stream: Stream, kind: Kind, from: OwnedFd) -> Self {
        Self {
            stream,
            kind,
            from: Some(from),
            window: Sender::new(stream),
            left: None,
        }
    }

    fn is_left(&self) -> bool {
        self.from.is_some() && self.left.is_some() && self.window.credit() > 0
    }

    /// One piece, so that others have their turn.
    fn read(&mut self, out: &mut Vec<u8>) {
        let Some(from) = &self.from else { return };
        let left = self
            .left
            .map_or(MAX_DATA, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let limit = MAX_DATA.min(self.window.credit()).min(left);
        if limit == 0 {
            return; // to read nothing would look like the end
        }
        let mut buffer = [0; MAX_DATA];
        let room = buffer.get_mut(..limit).unwrap_or_default();
        match rustix::io::read(from, room) {
            Err(Errno::INTR) => {}
            // A process inside can open a pipe again and take back what was there a moment ago. While the command runs
            // there will be more; after its end that is all.
            Err(Errno::AGAIN) if self.left.is_none() => {}
            // EIO is how a pty tells that its last process has closed it.
            Ok(0) | Err(_) => self.end(out),
            Ok(count) => {
                self.window.sent(count);
                push_data(out, self.stream, buffer.get(..count).unwrap_or_default());
                self.left = self.left.map(|left| left.saturating_sub(count as u64));
                self.end_if_empty(out);
            }
        }
    }

    fn end_if_empty(&mut self, out: &mut Vec<u8>) {
        if self.left == Some(0) {
            self.end(out);
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.from.take().is_some() {
            push_end(out, self.stream);
        }
    }
}

#[cfg(test)]
mod tests;

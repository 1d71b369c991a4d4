//! The same streams where the command's side is frames on the connection to init, not a descriptor.
//!
//! What an output has received and the caller has not read yet is kept here, never more than the window that was granted
//! ([`sbx_proto::stream`]): the connection itself is always read, so that a caller that does not read its stdout holds up
//! neither stderr nor the exit status.

use std::os::fd::BorrowedFd;

use sbx_proto::stream::{
    Receiver, Sender, Stream, Violation, push_close, push_credit, push_data, push_end,
};

use super::{Input, Output, Pending, Sink, Source};

/// The command's side of an output.
#[derive(Debug)]
pub(super) struct FramedOrigin {
    stream: Stream,
    window: Receiver,
    state: State,
    /// Frames for init.
    out: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Everything has come.
    Ended,
    /// The caller's stream takes nothing any more.
    Closed,
}

/// The command's side of the input.
#[derive(Debug)]
pub(super) struct FramedTarget {
    window: Sender,
    open: bool,
    /// Frames for init.
    out: Vec<u8>,
}

impl Output {
    pub(crate) fn from_frames(stream: Stream, to: BorrowedFd<'static>) -> Self {
        Self {
            from: None,
            to: Sink::of(to),
            pending: Pending::default(),
            splice: None,
            moved: 0,
            broken: None,
            frames: Some(FramedOrigin {
                stream,
                window: Receiver::new(stream),
                state: State::Open,
                out: Vec::new(),
            }),
        }
    }

    pub(crate) fn carries(&self, stream: Stream) -> bool {
        let frames = self.frames.as_ref();
        frames.is_some_and(|frames| frames.stream == stream)
    }

    pub(super) fn awaits_frames(&self) -> bool {
        let frames = self.frames.as_ref();
        frames.is_some_and(|frames| frames.state == State::Open)
    }

    /// Bytes of the command. An init that sends more than it may is hostile.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let Some(frames) = &mut self.frames else {
            return Err(Violation::WrongDirection);
        };
        frames.window.received(bytes.len())?;
        // What was under way when the caller's stream was closed is dropped.
        if frames.state == State::Open {
            self.pending.make_room();
            self.pending.bytes.extend_from_slice(bytes);
            self.write();
        }
        Ok(())
    }

    /// The end of the command's stream.
    pub(crate) fn end(&mut self) -> Result<(), Violation> {
        let Some(frames) = &mut self.frames else {
            return Err(Violation::WrongDirection);
        };
        frames.window.end()?;
        self.no_more_frames();
        Ok(())
    }

    /// Nothing can come any more.
    pub(crate) fn no_more_frames(&mut self) {
        if let Some(frames) = &mut self.frames {
            frames.state = State::Ended;
        }
    }

    /// So many bytes have reached the caller, or the caller's stream is broken.
    pub(super) fn wrote(&mut self, count: usize) {
        let Some(frames) = &mut self.frames else {
            return;
        };
        if self.broken.is_some() {
            if frames.state == State::Open {
                push_close(&mut frames.out, frames.stream);
            }
            frames.state = State::Closed;
        } else if let Some(credit) = frames.window.delivered(count) {
            push_credit(&mut frames.out, frames.stream, credit);
        }
    }

    /// What init has to be told.
    pub(crate) fn take_frames(&mut self) -> Vec<u8> {
        let frames = self.frames.as_mut();
        frames.map_or_else(Vec::new, |frames| std::mem::take(&mut frames.out))
    }
}

impl Pending {
    /// Moves what is left to the beginning, so that the buffer does not grow beyond what is kept.
    fn make_room(&mut self) {
        let written = self.written.min(self.bytes.len());
        drop(self.bytes.drain(..written));
        self.written = 0;
    }
}

impl Input {
    pub(crate) fn to_frames(from: BorrowedFd<'static>) -> Self {
        Self {
            from: Some(Source::of(from)),
            to: None,
            frames: Some(FramedTarget {
                window: Sender::new(Stream::Stdin),
                open: true,
                out: Vec::new(),
            }),
            pending: Pending::default(),
            keys: None,
            held_until: None,
            detached: false,
        }
    }

    pub(super) fn takes_frames(&self) -> bool {
        self.frames.as_ref().is_some_and(|frames| frames.open)
    }

    pub(super) fn close_frames(&mut self) {
        if let Some(frames) = &mut self.frames {
            frames.open = false;
        }
    }

    /// As much as there is credit for, then the end.
    pub(super) fn write_frames(&mut self) {
        let Some(frames) = self.frames.as_mut().filter(|frames| frames.open) else {
            return;
        };
        let rest = self.pending.rest();
        let count = rest.len().min(frames.window.credit());
        push_data(
            &mut frames.out,
            Stream::Stdin,
            rest.get(..count).unwrap_or_default(),
        );
        frames.window.sent(count);
        self.pending.written += count;
        if self.from.is_none() && self.pending.is_empty() {
            frames.open = false;
            push_end(&mut frames.out, Stream::Stdin);
        }
    }

    /// The command has read so much.
    pub(crate) fn grant(&mut self, credit: u32) -> Result<(), Violation> {
        let Some(frames) = &mut self.frames else {
            return Err(Violation::WrongDirection);
        };
        frames.window.grant(credit)?;
        self.write_frames();
        Ok(())
    }

    /// What init has to be told.
    pub(crate) fn take_frames(&mut self) -> Vec<u8> {
        let frames = self.frames.as_mut();
        frames.map_or_else(Vec::new, |frames| std::mem::take(&mut frames.out))
    }
}

#[cfg(test)]
mod tests;

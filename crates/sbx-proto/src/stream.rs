//! The framed way to carry a command's streams: stdin, stdout and stderr as bytes on the exec connection itself.
//!
//! Where both ends share a kernel, a client hands over pipe ends (`SCM_RIGHTS`) and no byte of a stream passes here. Across
//! a boundary that descriptors cannot cross, a command is asked for with [`Stdio::Framed`](crate::exec::Stdio::Framed), and
//! the connection carries, beside JSON messages, frames of four kinds, each about one stream:
//!
//! - *data*: at most [`MAX_DATA`] bytes;
//! - *end*: no more data follows (end of file);
//! - *credit*: the receiver takes so many more bytes;
//! - *close*: the receiver takes nothing any more, as when a pipe has lost its reader (`EPIPE`).
//!
//! **Flow control** is per stream, by credit, as with the windows of SSH channels (RFC 4254 section 5.2): a sender has
//! [`window`] bytes at first and never sends more than it was granted. A receiver always reads the connection, and keeps
//! what it cannot deliver yet; that is at most one window for each stream. So a stream that stands still holds up
//! neither the other streams nor signals, window sizes and the exit status.
//!
//! **The end.** The exit status is a message like others and comes when the command has ended, also while output is
//! waiting for credit. Both output streams end with an *end* frame (one when stderr is merged into stdout); the session
//! is over when they and the status have come.

use crate::frame::{FrameError, header};

/// The largest body of a data frame.
pub const MAX_DATA: usize = 32 << 10;

/// What init keeps for a command that does not read its stdin. Small: an init is one small process.
const STDIN_WINDOW: u32 = 64 << 10;
/// What a client keeps of stdout, and as much of stderr, for a caller that does not read.
const OUTPUT_WINDOW: u32 = 256 << 10;

const DATA: u8 = 0x10;
const END: u8 = 0x20;
const CREDIT: u8 = 0x30;
const CLOSE: u8 = 0x40;

/// One of a command's streams. With a terminal, stdout is what it shows and there is no stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    Stdin,
    Stdout,
    Stderr,
}

impl Stream {
    /// From the command to the client.
    pub fn is_output(self) -> bool {
        self != Self::Stdin
    }

    fn number(self) -> u8 {
        match self {
            Self::Stdin => 0,
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    fn of_number(number: u8) -> Option<Self> {
        [Self::Stdin, Self::Stdout, Self::Stderr]
            .into_iter()
            .find(|stream| stream.number() == number)
    }
}

/// The credit that the sender of a stream begins with.
pub fn window(stream: Stream) -> u32 {
    match stream {
        Stream::Stdin => STDIN_WINDOW,
        Stream::Stdout | Stream::Stderr => OUTPUT_WINDOW,
    }
}

/// What a framed connection carries: messages of type `M` and the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<M> {
    Message(M),
    Data(Stream, Vec<u8>),
    End(Stream),
    Credit(Stream, u32),
    Close(Stream),
}

impl<M> Frame<M> {
    /// Whether a frame of this kind may have a body of this length.
    pub(crate) fn check(kind: u8, size: usize) -> Result<(), FrameError> {
        let allowed = match kind & 0xf0 {
            // Without bytes it would be work for nothing, as often as a hostile sender likes.
            DATA => (1..=MAX_DATA).contains(&size),
            END | CLOSE => size == 0,
            CREDIT => size == 4,
            _ => false,
        };
        if allowed && Stream::of_number(kind & 0x0f).is_some() {
            return Ok(());
        }
        let what = format!("frame of kind {kind:#04x} with {size} bytes");
        Err(FrameError::Malformed(what))
    }
}

/// The frame of a kind and length that [`Frame::check`] has allowed.
pub(crate) fn parse_body<M>(kind: u8, body: &[u8]) -> Result<Frame<M>, FrameError> {
    Frame::<M>::check(kind, body.len())?;
    let unknown = || FrameError::Malformed(format!("frame of kind {kind:#04x}"));
    let stream = Stream::of_number(kind & 0x0f).ok_or_else(unknown)?;
    Ok(match (kind & 0xf0, body) {
        (DATA, bytes) => Frame::Data(stream, bytes.to_vec()),
        (END, _) => Frame::End(stream),
        (CLOSE, _) => Frame::Close(stream),
        (CREDIT, [a, b, c, d]) => Frame::Credit(stream, u32::from_le_bytes([*a, *b, *c, *d])),
        _ => return Err(unknown()),
    })
}

/// Appends data frames with all of `bytes`.
pub fn push_data(out: &mut Vec<u8>, stream: Stream, bytes: &[u8]) {
    for piece in bytes.chunks(MAX_DATA) {
        push(out, DATA | stream.number(), piece);
    }
}

pub fn push_end(out: &mut Vec<u8>, stream: Stream) {
    push(out, END | stream.number(), &[]);
}

pub fn push_credit(out: &mut Vec<u8>, stream: Stream, credit: u32) {
    push(out, CREDIT | stream.number(), &credit.to_le_bytes());
}

pub fn push_close(out: &mut Vec<u8>, stream: Stream) {
    push(out, CLOSE | stream.number(), &[]);
}

/// Bodies are far shorter than a header can say.
fn push(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    if let Some(header) = header(kind, body.len()) {
        out.extend_from_slice(&header);
        out.extend_from_slice(body);
    }
}

/// The other side has broken a rule of the streams; the connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("data beyond the granted credit")]
    BeyondCredit,
    #[error("data after the end of its stream")]
    AfterEnd,
    #[error("more credit than a window")]
    TooMuchCredit,
    #[error("a frame about a stream in the wrong direction")]
    WrongDirection,
}

/// The sending side of one stream: how much may be sent.
#[derive(Debug, Clone)]
pub struct Sender {
    credit: u32,
    window: u32,
}

impl Sender {
    pub fn new(stream: Stream) -> Self {
        Self {
            credit: window(stream),
            window: window(stream),
        }
    }

    /// How many bytes may be sent now.
    pub fn credit(&self) -> usize {
        self.credit as usize
    }

    /// That many have been sent.
    pub fn sent(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.credit = self.credit.saturating_sub(count);
    }

    /// The receiver takes so many more. It never grants more than it has taken.
    pub fn grant(&mut self, credit: u32) -> Result<(), Violation> {
        let sum = self.credit.checked_add(credit);
        self.credit = sum
            .filter(|sum| *sum <= self.window)
            .ok_or(Violation::TooMuchCredit)?;
        Ok(())
    }
}

/// The receiving side of one stream: how much the sender may still send, and when to grant more.
#[derive(Debug, Clone)]
pub struct Receiver {
    /// What the sender may still send.
    granted: u32,
    /// What was delivered since credit was granted last.
    delivered: u32,
    window: u32,
    ended: bool,
}

impl Receiver {
    pub fn new(stream: Stream) -> Self {
        Self {
            granted: window(stream),
            delivered: 0,
            window: window(stream),
            ended: false,
        }
    }

    /// That many bytes have come.
    pub fn received(&mut self, count: usize) -> Result<(), Violation> {
        if self.ended {
            return Err(Violation::AfterEnd);
        }
        let count = u32::try_from(count).map_err(|_| Violation::BeyondCredit)?;
        let left = self.granted.checked_sub(count);
        self.granted = left.ok_or(Violation::BeyondCredit)?;
        Ok(())
    }

    /// That many bytes have gone on to where they belong. The credit to grant now, if any: in large pieces, so that a
    /// stream of small writes does not cost a frame each.
    pub fn delivered(&mut self, count: usize) -> Option<u32> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.delivered = self.delivered.saturating_add(count).min(self.window);
        if self.ended || self.delivered < self.window / 2 {
            return None;
        }
        let credit = std::mem::take(&mut self.delivered);
        self.granted = self.granted.saturating_add(credit).min(self.window);
        Some(credit)
    }

    pub fn end(&mut self) -> Result<(), Violation> {
        if std::mem::replace(&mut self.ended, true) {
            return Err(Violation::AfterEnd);
        }
        Ok(())
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests;

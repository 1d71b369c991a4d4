//! Where a body ends.

use super::chunked::{BodyError, Chunked};

/// How a message's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    None,
    Length(u64),
    Chunked,
    /// The connection's end is the body's: responses only.
    UntilClose,
}

impl BodyKind {
    pub(super) fn has_bytes(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }
}

/// Follows a body through any split of its bytes and says which of them belong to it.
#[derive(Debug, Clone)]
pub struct BodyTracker {
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Failed(BodyError),
}

impl BodyTracker {
    pub fn new(kind: BodyKind) -> Self {
        let state = match kind {
            BodyKind::None => State::Length(0),
            BodyKind::Length(length) => State::Length(length),
            BodyKind::Chunked => State::Chunked(Chunked::new()),
            BodyKind::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// How many of the next bytes of the connection belong to the body. Fewer than all only when the body is done;
    /// what is left is the next message. After an error nothing of `input` may be forwarded.
    pub fn advance(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        match &mut self.state {
            State::Length(left) => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left = left.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
                Ok(taken)
            }
            State::Chunked(chunked) => {
                let taken = chunked.advance(input);
                if let Err(error) = taken {
                    self.state = State::Failed(error);
                }
                taken
            }
            State::UntilClose => Ok(input.len()),
            State::Failed(error) => Err(*error),
        }
    }

    /// Whether the body's last byte has been seen. Never true of a body that ends with the connection.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Length(left) => *left == 0,
            State::Chunked(chunked) => chunked.is_done(),
            State::UntilClose | State::Failed(_) => false,
        }
    }

    /// Told that the connection ended: fails when the body is cut short.
    pub fn end_of_input(&self) -> Result<(), BodyError> {
        match &self.state {
            State::UntilClose => Ok(()),
            State::Failed(error) => Err(*error),
            State::Length(_) | State::Chunked(_) if self.is_done() => Ok(()),
            State::Length(_) | State::Chunked(_) => Err(BodyError::CutShort),
        }
    }
}

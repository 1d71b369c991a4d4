//! Frames over a stream socket. Sans-IO: bytes in, messages out.
//!
//! A frame is a header of four bytes, little-endian, and a body. The low 24 bits of the header are the length of the
//! body, the high 8 bits its kind. Kind 0 is a message as JSON, which is all that most connections carry. The other kinds
//! belong to [`crate::stream`] and are accepted by [`Decoder::take_frame`] alone: for [`Decoder::take`] they are a
//! length that is too large.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::stream::{Frame, parse_body};

/// What one side accepts from the other. A command's arguments and environment are 2 MiB for the kernel unless the limit of
/// the stack was raised; escaped as JSON they grow at most six-fold.
pub const MAX_REQUEST: usize = MAX_BODY;
/// Replies of an init are small; a hostile one must not make a reader allocate.
pub const MAX_REPLY: usize = 64 << 10;

/// What 24 bits of length can say.
const MAX_BODY: usize = (1 << 24) - 1;
/// A buffer that has grown beyond this is given back when it is empty: an init must stay small.
const KEPT_CAPACITY: usize = 64 << 10;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    #[error("message of {size} bytes is larger than the {max} that are accepted")]
    TooLarge { size: usize, max: usize },
    #[error("message is not what the protocol allows: {0}")]
    Malformed(String),
}

/// The bytes of one message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let body = serde_json::to_vec(message).map_err(|e| FrameError::Malformed(e.to_string()))?;
    let header = header(0, body.len()).ok_or(FrameError::TooLarge {
        size: body.len(),
        max: MAX_BODY,
    })?;
    let mut bytes = Vec::with_capacity(body.len() + 4);
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// `None` when the length does not fit.
pub(crate) fn header(kind: u8, length: usize) -> Option<[u8; 4]> {
    let length = u32::try_from(length).ok().filter(|_| length <= MAX_BODY)?;
    Some((u32::from(kind) << 24 | length).to_le_bytes())
}

/// Collects bytes and gives back whole messages.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How much of the buffer has been given back already. It is moved away at the next push, once for all frames.
    taken: usize,
    max: usize,
}

impl Decoder {
    pub fn new(max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            taken: 0,
            max,
        }
    }

    /// From now on no message may be larger than this.
    pub fn limit(&mut self, max: usize) {
        self.max = max;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        drop(self.buffer.drain(..self.taken));
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, `None` when more bytes are needed. After an error the stream cannot be
    /// trusted any more and must be closed.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some((head, rest)) = self.unread().split_first_chunk::<4>() else {
            return Ok(None);
        };
        let size = u32::from_le_bytes(*head) as usize;
        if size > self.max {
            return Err(self.too_large(size));
        }
        let Some(body) = rest.get(..size) else {
            return Ok(None);
        };
        let message = message(body)?;
        self.consume(4 + size);
        Ok(Some(message))
    }

    /// The next whole frame of any kind. As with [`Self::take`], an error is the end of the connection.
    pub fn take_frame<T: DeserializeOwned>(&mut self) -> Result<Option<Frame<T>>, FrameError> {
        let Some((head, rest)) = self.unread().split_first_chunk::<4>() else {
            return Ok(None);
        };
        let [low, middle, high, kind] = *head;
        let size = u32::from_le_bytes([low, middle, high, 0]) as usize;
        if size > self.max {
            return Err(self.too_large(size));
        }
        // Before the body has arrived: a frame that is refused is not collected first.
        if kind != 0 {
            Frame::<T>::check(kind, size)?;
        }
        let Some(body) = rest.get(..size) else {
            return Ok(None);
        };
        let frame = match kind {
            0 => Frame::Message(message(body)?),
            kind => parse_body(kind, body)?,
        };
        self.consume(4 + size);
        Ok(Some(frame))
    }

    fn unread(&self) -> &[u8] {
        self.buffer.get(self.taken..).unwrap_or_default()
    }

    fn consume(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.buffer.len() {
            self.taken = 0;
            self.buffer.clear();
            if self.buffer.capacity() > KEPT_CAPACITY {
                self.buffer = Vec::new();
            }
        }
    }

    fn too_large(&self, size: usize) -> FrameError {
        let max = self.max;
        FrameError::TooLarge { size, max }
    }
}

fn message<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(body).map_err(|e| FrameError::Malformed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exec::Request;

    proptest! {
        #[test]
        fn messages_survive_any_split(texts: Vec<String>, cuts: Vec<u8>) {
            let mut wire = Vec::new();
            for text in &texts {
                wire.extend(encode(text).unwrap());
            }
            let mut decoder = Decoder::new(MAX_REQUEST);
            let mut seen = Vec::new();
            let mut cuts = cuts.into_iter().cycle();
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                let step = usize::from(cuts.next().unwrap_or(7)).clamp(1, rest.len());
                let (now, later) = rest.split_at(step);
                decoder.push(now);
                rest = later;
                while let Some(text) = decoder.take::<String>().unwrap() {
                    seen.push(text);
                }
            }
            prop_assert_eq!(seen, texts);
        }

        #[test]
        fn garbage_is_an_error_or_incomplete(bytes: Vec<u8>) {
            let mut decoder = Decoder::new(1024);
            decoder.push(&bytes);
            // The property is that this returns: no panic, no allocation by a hostile length.
            let _ = decoder.take::<Request>();
            prop_assert!(decoder.buffer.len() <= bytes.len());
        }
    }

    #[test]
    fn a_hostile_length_is_refused_before_the_body_arrives() {
        let mut decoder = Decoder::new(MAX_REPLY);
        decoder.push(&u32::MAX.to_le_bytes());
        assert_eq!(
            decoder.take::<String>(),
            Err(FrameError::TooLarge {
                size: u32::MAX as usize,
                max: MAX_REPLY
            })
        );
    }

    #[test]
    fn a_message_that_no_header_can_describe_is_refused() {
        let text = "x".repeat(MAX_BODY);
        assert!(matches!(encode(&text), Err(FrameError::TooLarge { .. })));
        assert_eq!(header(0x7f, 1), Some([1, 0, 0, 0x7f]));
    }

    #[test]
    fn memory_of_a_large_message_is_given_back() {
        let mut decoder = Decoder::new(MAX_REQUEST);
        let text = "x".repeat(1 << 20);
        decoder.push(&encode(&text).unwrap());
        assert_eq!(decoder.take::<String>(), Ok(Some(text)));
        assert!(decoder.buffer.capacity() <= KEPT_CAPACITY);
    }
}

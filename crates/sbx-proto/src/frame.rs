//! Length-prefixed JSON messages over a stream socket. Sans-IO: bytes in, messages out.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// What one side accepts from the other. A command's arguments and environment are 2 MiB for the kernel where nobody has
/// raised the limit of the stack; escaped as JSON they grow at most six-fold.
pub const MAX_REQUEST: usize = 16 << 20;
/// Replies of an init are small; a hostile one must not make a reader allocate.
pub const MAX_REPLY: usize = 64 << 10;

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
    let size = u32::try_from(body.len()).map_err(|_| FrameError::TooLarge {
        size: body.len(),
        max: u32::MAX as usize,
    })?;
    let mut bytes = Vec::with_capacity(body.len() + 4);
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Collects bytes and gives back whole messages.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    max: usize,
}

impl Decoder {
    pub fn new(max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            max,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, `None` when more bytes are needed. After an error the stream cannot be
    /// trusted any more and must be closed.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let size = u32::from_le_bytes(*head) as usize;
        if size > self.max {
            return Err(FrameError::TooLarge {
                size,
                max: self.max,
            });
        }
        let Some(body) = rest.get(..size) else {
            return Ok(None);
        };
        let message =
            serde_json::from_slice(body).map_err(|e| FrameError::Malformed(e.to_string()))?;
        self.buffer.drain(..4 + size);
        Ok(Some(message))
    }
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
}

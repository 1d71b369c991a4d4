//! Frames of the terminal WebSocket (`GET /pty/{id}/ws`).
//!
//! Binary messages carry bytes behind a one-byte channel number; text messages carry JSON control frames. With `pty=0`
//! the session has pipes instead of a terminal, and stdout and stderr stay apart: that is the byte-exact transport.

use serde::{Deserialize, Serialize};

const STDIN: u8 = 0x00;
const STDOUT: u8 = 0x01;
const STDERR: u8 = 0x02;
const REPLAY: u8 = 0x03;

/// WebSocket close code for a client that another one replaced (`takeover=1`).
pub const TAKEN_OVER: u16 = 4001;

/// A binary message from the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<'a> {
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
    /// Output from before this connection, and the offset of its first byte.
    Replay {
        offset: u64,
        bytes: &'a [u8],
    },
}

impl<'a> Output<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let (channel, offset, bytes) = match self {
            Self::Stdout(bytes) => (STDOUT, None, bytes),
            Self::Stderr(bytes) => (STDERR, None, bytes),
            Self::Replay { offset, bytes } => (REPLAY, Some(offset.to_be_bytes()), bytes),
        };
        let mut message = Vec::with_capacity(bytes.len() + 9);
        message.push(channel);
        message.extend(offset.into_iter().flatten());
        message.extend_from_slice(bytes);
        message
    }

    pub fn decode(message: &'a [u8]) -> Option<Self> {
        let (channel, bytes) = message.split_first()?;
        match *channel {
            STDOUT => Some(Self::Stdout(bytes)),
            STDERR => Some(Self::Stderr(bytes)),
            REPLAY => {
                let (offset, bytes) = bytes.split_first_chunk::<8>()?;
                let offset = u64::from_be_bytes(*offset);
                Some(Self::Replay { offset, bytes })
            }
            _ => None,
        }
    }
}

/// A binary message to the daemon: bytes for stdin.
pub fn encode_input(bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(STDIN);
    message.extend_from_slice(bytes);
    message
}

pub fn decode_input(message: &[u8]) -> Option<&[u8]> {
    match message.split_first()? {
        (&STDIN, bytes) => Some(bytes),
        _ => None,
    }
}

/// A text message from the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Notice {
    Connected {
        #[serde(default)]
        session_id: String,
        #[serde(default)]
        mode: String,
    },
    Exit {
        exit_code: i32,
    },
    Error {
        #[serde(default)]
        error: String,
        #[serde(default)]
        code: String,
    },
    Pong,
    #[serde(other)]
    Unknown,
}

/// A text message to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Control {
    Resize { cols: u16, rows: u16 },
    Signal { signal: String },
    Ping,
}

/// The body of `POST /pty`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtyRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The answer of `GET /pty/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtyStatus {
    pub session_id: String,
    pub running: bool,
    pub output_offset: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_survive_the_wire(bytes in prop::collection::vec(any::<u8>(), 0..64), offset: u64) {
            for output in [Output::Stdout(&bytes), Output::Stderr(&bytes), Output::Replay { offset, bytes: &bytes }] {
                let message = output.encode();
                prop_assert_eq!(Output::decode(&message), Some(output));
            }
            let input = encode_input(&bytes);
            prop_assert_eq!(decode_input(&input), Some(bytes.as_slice()));
        }

        #[test]
        fn hostile_messages_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..16)) {
            let _ = Output::decode(&bytes);
            let _ = decode_input(&bytes);
        }
    }

    #[test]
    fn controls_are_tagged() {
        let text = r#"{"type":"resize","cols":80,"rows":24}"#;
        let resize = Control::Resize { cols: 80, rows: 24 };
        assert_eq!(serde_json::from_str::<Control>(text).unwrap(), resize);
        let exit = serde_json::to_string(&Notice::Exit { exit_code: 3 }).unwrap();
        assert_eq!(exit, r#"{"type":"exit","exit_code":3}"#);
    }
}

//! The chunked transfer coding, followed byte by byte but not decoded.
//!
//! Sizes, extensions and trailers are read as strictly as heads are: an ending that the next parser reads otherwise
//! would move the boundary between two requests.

use super::lines::{is_space, is_token, is_value};

/// The most bytes between a chunk's size and the end of its line.
pub const MAX_EXTENSION: usize = 4 * 1024;

/// The most bytes of all trailers together.
pub const MAX_TRAILERS: usize = 16 * 1024;

/// Sixteen hexadecimal digits fill a `u64`.
const MAX_SIZE_DIGITS: u8 = 16;

/// Trailers that would change the message if an origin merged them into its headers (RFC 9110 section 6.5.1).
const FORBIDDEN: &[&str] = &[
    "content-length",
    "transfer-encoding",
    "host",
    "connection",
    "expect",
    "upgrade",
];

/// Long enough to tell every forbidden name from longer ones.
const NAME_PREFIX: usize = 18;

/// Why a body cannot be followed any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("a chunk's size is not a hexadecimal number of at most 64 bits")]
    BadChunkSize,
    #[error("a chunk's extension is malformed or too long")]
    BadExtension,
    #[error("a chunk does not end where its size says")]
    BadChunkEnd,
    #[error("a trailer is malformed or not allowed")]
    BadTrailer,
    #[error("the trailers are too long")]
    TrailersTooLong,
    #[error("the connection ended within the body")]
    CutShort,
}

#[derive(Debug, Clone)]
pub(super) struct Chunked {
    state: State,
    /// Bytes of the current extension, or of all trailers.
    length: usize,
    /// The start of the current trailer's name, in lower case.
    name: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size {
        digits: u8,
        size: u64,
    },
    /// White space after the size, which RFC 9112 lets stand before an extension.
    AfterSize {
        size: u64,
    },
    Extension {
        size: u64,
    },
    SizeLf {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    Done,
}

impl Chunked {
    pub(super) fn new() -> Self {
        Self {
            state: State::Size { digits: 0, size: 0 },
            length: 0,
            name: Vec::new(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub(super) fn advance(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        let mut taken = 0;
        while let Some(rest) = input.get(taken..).filter(|rest| !rest.is_empty()) {
            match self.state {
                State::Done => break,
                State::Data { left } => {
                    let step = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    let left = left.saturating_sub(u64::try_from(step).unwrap_or(u64::MAX));
                    self.state = if left == 0 {
                        State::DataCr
                    } else {
                        State::Data { left }
                    };
                    taken += step;
                }
                _ => {
                    self.state = self.step(rest.first().copied().unwrap_or_default())?;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    fn step(&mut self, byte: u8) -> Result<State, BodyError> {
        match (self.state, byte) {
            (State::Size { digits, size }, _) => self.size(digits, size, byte),
            (State::AfterSize { size }, b' ' | b'\t') => {
                self.extension(byte, State::AfterSize { size })
            }
            (State::AfterSize { size }, b';') => self.extension(byte, State::Extension { size }),
            (State::AfterSize { size } | State::Extension { size }, b'\r') => {
                Ok(State::SizeLf { size })
            }
            (State::AfterSize { .. }, _) => Err(BodyError::BadExtension),
            (State::Extension { size }, _) => self.extension(byte, State::Extension { size }),
            (State::SizeLf { size: 0 }, b'\n') => {
                self.length = 0;
                Ok(State::TrailerStart)
            }
            (State::SizeLf { size }, b'\n') => Ok(State::Data { left: size }),
            (State::SizeLf { .. }, _) => Err(BodyError::BadExtension),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::Size { digits: 0, size: 0 }),
            (State::DataCr | State::DataLf | State::Data { .. }, _) => Err(BodyError::BadChunkEnd),
            (State::LastLf, b'\n') | (State::Done, _) => Ok(State::Done),
            (State::LastLf, _) => Err(BodyError::BadTrailer),
            (
                State::TrailerStart | State::TrailerName | State::TrailerValue | State::TrailerLf,
                _,
            ) => self.trailer(byte),
        }
    }

    fn size(&mut self, digits: u8, size: u64, byte: u8) -> Result<State, BodyError> {
        self.length = 0;
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if digits > 0 => return Ok(State::SizeLf { size }),
            b';' if digits > 0 => return self.extension(byte, State::Extension { size }),
            _ if digits > 0 && is_space(byte) => {
                return self.extension(byte, State::AfterSize { size });
            }
            _ => return Err(BodyError::BadChunkSize),
        };
        if digits >= MAX_SIZE_DIGITS {
            return Err(BodyError::BadChunkSize);
        }
        Ok(State::Size {
            digits: digits + 1,
            size: (size << 4) | u64::from(digit),
        })
    }

    fn extension(&mut self, byte: u8, next: State) -> Result<State, BodyError> {
        self.length += 1;
        if self.length > MAX_EXTENSION || !is_value(byte) {
            Err(BodyError::BadExtension)
        } else {
            Ok(next)
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<State, BodyError> {
        self.length += 1;
        if self.length > MAX_TRAILERS {
            return Err(BodyError::TrailersTooLong);
        }
        match (self.state, byte) {
            (State::TrailerStart, b'\r') => Ok(State::LastLf),
            (State::TrailerStart, _) => {
                self.name.clear();
                self.trailer_name(byte)
            }
            (State::TrailerName, b':') if self.name_allowed() => Ok(State::TrailerValue),
            (State::TrailerName, _) => self.trailer_name(byte),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, _) if is_value(byte) => Ok(State::TrailerValue),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            _ => Err(BodyError::BadTrailer),
        }
    }

    fn trailer_name(&mut self, byte: u8) -> Result<State, BodyError> {
        if !is_token(byte) {
            return Err(BodyError::BadTrailer);
        }
        if self.name.len() < NAME_PREFIX {
            self.name.push(if byte == b'_' {
                b'-'
            } else {
                byte.to_ascii_lowercase()
            });
        }
        Ok(State::TrailerName)
    }

    fn name_allowed(&self) -> bool {
        !FORBIDDEN.iter().any(|name| name.as_bytes() == self.name)
    }
}

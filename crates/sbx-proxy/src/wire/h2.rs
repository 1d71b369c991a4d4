//! As much of HTTP/2 (RFC 9113) as it takes to say no: what a client says up to its first request, and one response.

mod answer;
mod hpack;

/// What every client begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The most bytes up to the end of the first request's head.
pub const MAX_OPENING: usize = 32 * 1024;

/// A client that is about to ask has no use for more.
const MAX_FRAMES: usize = 100;
/// The initial SETTINGS_MAX_FRAME_SIZE (RFC 9113, section 6.5.2).
const MAX_PAYLOAD: usize = 16 * 1024;
/// What a client takes unasked as long as it has not said otherwise.
const DEFAULT_WINDOW: u32 = 65_535;
const INITIAL_WINDOW: u16 = 4;

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const PRIORITY: u8 = 2;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PUSH_PROMISE: u8 = 5;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    pub(super) const CONTINUATION: u8 = 9;
}

mod flag {
    pub(super) const ACK: u8 = 1;
    pub(super) const END_STREAM: u8 = 1;
    pub(super) const END_HEADERS: u8 = 4;
    pub(super) const PADDED: u8 = 8;
    pub(super) const PRIORITY: u8 = 0x20;
}

/// How far a client has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// What it is told so far, our own preface first. When more arrives, this goes on.
    pub replies: Vec<u8>,
    pub request: Option<Request>,
}

/// The first request of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    stream: u32,
    /// How much of a body the client takes unasked.
    window: u32,
    method: Option<String>,
    accept: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum H2Error {
    #[error("the client does not speak HTTP/2")]
    NotHttp2,
    #[error("an unexpected or malformed frame")]
    Protocol,
    #[error("a frame of the wrong size")]
    FrameSize,
    #[error("a window that is too large")]
    Window,
    #[error("a head that cannot be read")]
    Compression,
    #[error("the client says too much before it asks")]
    TooMuch,
    #[error("the client closes the connection (GOAWAY)")]
    GoAway,
}

impl H2Error {
    /// What the client is told in the end.
    pub fn goaway(self) -> Vec<u8> {
        let code = match self {
            Self::GoAway => 0,
            Self::NotHttp2 | Self::Protocol => 1,
            Self::Window => 3,
            Self::FrameSize => 6,
            Self::Compression => 9,
            Self::TooMuch => 11,
        };
        answer::goaway(0, code)
    }
}

impl Request {
    /// The `Accept` header.
    pub fn accept(&self) -> Option<&str> {
        self.accept.as_deref()
    }
}

/// Reads what a client said so far.
pub fn read_opening(input: &[u8]) -> Result<Opening, H2Error> {
    let mut reader = Reader {
        replies: answer::frame(kind::SETTINGS, 0, 0, &[]),
        window: DEFAULT_WINDOW,
        settled: false,
        block: None,
    };
    let mut request = None;
    if let Some(rest) = after_preface(input)? {
        let mut frames = Frames {
            rest,
            seen: 0,
            read: PREFACE.len(),
        };
        while request.is_none()
            && let Some(frame) = frames.next_frame()?
        {
            request = reader.take(&frame)?;
        }
    }
    let replies = reader.replies;
    Ok(Opening { replies, request })
}

/// Nothing when the preface has not arrived in full.
fn after_preface(input: &[u8]) -> Result<Option<&[u8]>, H2Error> {
    match input.strip_prefix(PREFACE) {
        Some(rest) => Ok(Some(rest)),
        None if PREFACE.starts_with(input) => Ok(None),
        None => Err(H2Error::NotHttp2),
    }
}

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

struct Frames<'a> {
    rest: &'a [u8],
    seen: usize,
    read: usize,
}

impl<'a> Frames<'a> {
    /// The next frame that has arrived in full. A header that is too much is refused before what it announces.
    fn next_frame(&mut self) -> Result<Option<Frame<'a>>, H2Error> {
        let Some((header, rest)) = self.rest.split_first_chunk::<9>() else {
            return Ok(None);
        };
        let [a, b, c, kind, flags, s0, s1, s2, s3] = *header;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
        if length > MAX_PAYLOAD {
            return Err(H2Error::FrameSize);
        }
        self.seen += 1;
        self.read += header.len() + length;
        if self.seen > MAX_FRAMES || self.read > MAX_OPENING {
            return Err(H2Error::TooMuch);
        }
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            return Ok(None);
        };
        self.rest = rest;
        Ok(Some(Frame {
            kind,
            flags,
            stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
            payload,
        }))
    }
}

struct Reader {
    replies: Vec<u8>,
    window: u32,
    /// The client's own settings have come.
    settled: bool,
    /// A head that goes on in the next frame.
    block: Option<(u32, Vec<u8>)>,
}

impl Reader {
    fn take(&mut self, frame: &Frame<'_>) -> Result<Option<Request>, H2Error> {
        if let Some((stream, block)) = self.block.take() {
            return self.go_on(stream, block, frame);
        }
        if !self.settled && (frame.kind != kind::SETTINGS || frame.flags & flag::ACK != 0) {
            return Err(H2Error::Protocol);
        }
        let connection = frame.stream == 0;
        match frame.kind {
            kind::SETTINGS if connection => self.settings(frame)?,
            kind::PING if connection => self.ping(frame)?,
            kind::HEADERS if frame.stream % 2 == 1 => {
                let block = fragment(frame)?.to_vec();
                return self.head(frame.stream, block, frame.flags);
            }
            kind::GOAWAY if connection => return Err(H2Error::GoAway),
            kind::WINDOW_UPDATE if frame.payload.len() != 4 => return Err(H2Error::FrameSize),
            kind::PRIORITY if connection => return Err(H2Error::Protocol),
            kind::PRIORITY if frame.payload.len() != 5 => return Err(H2Error::FrameSize),
            // Of no stream yet, or not for a client to say.
            kind::DATA
            | kind::HEADERS
            | kind::RST_STREAM
            | kind::SETTINGS
            | kind::PUSH_PROMISE
            | kind::PING
            | kind::GOAWAY
            | kind::CONTINUATION => return Err(H2Error::Protocol),
            // WINDOW_UPDATE, PRIORITY, and unknown types, which are ignored (RFC 9113, section 5.5).
            _ => {}
        }
        Ok(None)
    }

    fn settings(&mut self, frame: &Frame<'_>) -> Result<(), H2Error> {
        if frame.flags & flag::ACK != 0 {
            let empty = frame.payload.is_empty();
            return if empty {
                Ok(())
            } else {
                Err(H2Error::FrameSize)
            };
        }
        let (settings, rest) = frame.payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(H2Error::FrameSize);
        }
        for [i0, i1, value @ ..] in settings {
            if u16::from_be_bytes([*i0, *i1]) == INITIAL_WINDOW {
                self.window = u32::from_be_bytes(*value);
            }
            if self.window > u32::MAX >> 1 {
                return Err(H2Error::Window);
            }
        }
        self.settled = true;
        let ack = answer::frame(kind::SETTINGS, flag::ACK, 0, &[]);
        self.replies.extend(ack);
        Ok(())
    }

    fn ping(&mut self, frame: &Frame<'_>) -> Result<(), H2Error> {
        if frame.payload.len() != 8 {
            return Err(H2Error::FrameSize);
        }
        if frame.flags & flag::ACK == 0 {
            let pong = answer::frame(kind::PING, flag::ACK, 0, frame.payload);
            self.replies.extend(pong);
        }
        Ok(())
    }

    /// Nothing may come between the parts of a head.
    fn go_on(
        &mut self,
        stream: u32,
        mut block: Vec<u8>,
        frame: &Frame<'_>,
    ) -> Result<Option<Request>, H2Error> {
        if frame.kind != kind::CONTINUATION || frame.stream != stream {
            return Err(H2Error::Protocol);
        }
        block.extend_from_slice(frame.payload);
        self.head(stream, block, frame.flags)
    }

    fn head(&mut self, stream: u32, block: Vec<u8>, flags: u8) -> Result<Option<Request>, H2Error> {
        if flags & flag::END_HEADERS == 0 {
            self.block = Some((stream, block));
            return Ok(None);
        }
        let fields = hpack::read(&block).ok_or(H2Error::Compression)?;
        Ok(Some(Request {
            stream,
            window: self.window,
            method: fields.method,
            accept: fields.accept,
        }))
    }
}

/// The part of a head in a frame, without padding and priority.
fn fragment<'a>(frame: &Frame<'a>) -> Result<&'a [u8], H2Error> {
    let mut payload = frame.payload;
    if frame.flags & flag::PADDED != 0 {
        let (padding, rest) = payload.split_first().ok_or(H2Error::FrameSize)?;
        let end = rest.len().checked_sub(usize::from(*padding));
        payload = end
            .and_then(|end| rest.get(..end))
            .ok_or(H2Error::Protocol)?;
    }
    if frame.flags & flag::PRIORITY != 0 {
        payload = payload.get(5..).ok_or(H2Error::FrameSize)?;
    }
    Ok(payload)
}

#[cfg(test)]
mod tests;

//! What is said to a client, as frames.

use super::{MAX_PAYLOAD, Request, flag, kind};

/// Places in HPACK's static table.
const STATUS: usize = 8;
const CACHE_CONTROL: usize = 24;
const CONTENT_LENGTH: usize = 28;
const CONTENT_TYPE: usize = 31;
const VIA: usize = 60;

impl Request {
    /// A whole response, after which nothing more is answered.
    pub fn answer(&self, status: u16, media: &str, body: &str) -> Vec<u8> {
        let body = body.as_bytes();
        let fits = u32::try_from(body.len()).is_ok_and(|length| length <= self.window);
        let head_only = self.method.as_deref() == Some("HEAD");
        let mut head = Vec::new();
        field(&mut head, STATUS, &status.to_string());
        field(&mut head, CONTENT_TYPE, media);
        // A client without room for it learns the status at least.
        if fits {
            field(&mut head, CONTENT_LENGTH, &body.len().to_string());
        }
        field(&mut head, CACHE_CONTROL, "no-store");
        field(&mut head, VIA, "2 sbx");
        let parts = match fits && !head_only {
            true => body.chunks(MAX_PAYLOAD).collect(),
            false => Vec::new(),
        };
        let last = |is_last| if is_last { flag::END_STREAM } else { 0 };
        let flags = flag::END_HEADERS | last(parts.is_empty());
        let mut out = frame(kind::HEADERS, flags, self.stream, &head);
        for (n, part) in parts.iter().enumerate() {
            let flags = last(n + 1 == parts.len());
            out.extend(frame(kind::DATA, flags, self.stream, part));
        }
        out.extend(goaway(self.stream, 0));
        out
    }
}

/// The end of the connection: what was asked after the stream `last` was not looked at.
pub(super) fn goaway(last: u32, code: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
    frame(kind::GOAWAY, 0, 0, &payload)
}

/// A payload never has more than [`MAX_PAYLOAD`] bytes here.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default();
    let [_, a, b, c] = length.to_be_bytes();
    let mut out = vec![a, b, c, kind, flags];
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A literal without indexing (RFC 7541, section 6.2.2), with a name from the static table.
fn field(head: &mut Vec<u8>, name: usize, value: &str) {
    integer(head, 4, name);
    integer(head, 7, value.len());
    head.extend_from_slice(value.as_bytes());
}

/// With its first `prefix` bits in a byte whose others are zero.
fn integer(head: &mut Vec<u8>, prefix: u32, value: usize) {
    let most = (1usize << prefix) - 1;
    let byte = |value: usize| u8::try_from(value).unwrap_or(u8::MAX);
    let Some(mut rest) = value.checked_sub(most) else {
        return head.push(byte(value));
    };
    head.push(byte(most));
    while rest >= 0x80 {
        head.push(byte(rest & 0x7f | 0x80));
        rest >>= 7;
    }
    head.push(byte(rest));
}

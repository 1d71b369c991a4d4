//! One HTTP/1.1 exchange (RFC 9112) over a Unix socket, with `Connection: close` and a bounded response.
//!
//! The daemon is local and of our own version, so only what it sends is parsed: a status line, headers, and a body with
//! Content-Length or up to the end of the stream. A transfer encoding is refused.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sbx_api::{VERSION, VERSION_HEADER};

/// No answer of the daemon is larger.
const MAX_RESPONSE: usize = 16 << 20;
const MAX_HEADERS: usize = 64;
/// When [`Timeout::keep_waiting`] is asked for the first time, and how often after that.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(1);
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// How long each read or write may take.
pub(crate) struct Timeout<'a> {
    pub(crate) limit: Duration,
    /// Whether the peer is still worth waiting for; asked only when an answer is late.
    pub(crate) keep_waiting: &'a dyn Fn() -> bool,
}

impl Timeout<'_> {
    /// Waits for the whole limit in any case.
    pub(crate) fn fixed(limit: Duration) -> Self {
        Self {
            limit,
            keep_waiting: &|| true,
        }
    }

    fn wait<T>(
        &self,
        stream: &UnixStream,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let begin = Instant::now();
        let mut next_check = FIRST_CHECK_DELAY;
        loop {
            let left = self.limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let next = Some(next_check.min(left));
            stream.set_read_timeout(next)?;
            stream.set_write_timeout(next)?;
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if timed_out(&error) => {
                    if next_check < left && !(self.keep_waiting)() {
                        return Err(error);
                    }
                    next_check = CHECK_INTERVAL;
                }
                other => return other,
            }
        }
    }
}

/// SO_RCVTIMEO and SO_SNDTIMEO report EAGAIN.
pub(crate) fn timed_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Sends the request and reads the whole answer.
pub(crate) fn exchange(
    mut stream: &UnixStream,
    method: &str,
    path: &str,
    body: &[u8],
    timeout: &Timeout<'_>,
) -> io::Result<Response> {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: sandboxd\r\n{VERSION_HEADER}: {VERSION}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    let mut unsent = request.as_slice();
    while !unsent.is_empty() {
        let count = timeout.wait(stream, || stream.write(unsent))?;
        unsent = unsent.get(count..).unwrap_or_default();
    }

    let mut received = Vec::new();
    let mut chunk = [0_u8; 16 << 10];
    loop {
        if let Some(response) = parse(&received, Stream::Open)? {
            return Ok(response);
        }
        let count = timeout.wait(stream, || stream.read(&mut chunk))?;
        if count == 0 && received.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "connection closed without an answer",
            ));
        }
        if count == 0 {
            return parse(&received, Stream::Ended)?
                .ok_or_else(|| malformed("connection closed in the middle of an answer"));
        }
        received.extend_from_slice(chunk.get(..count).unwrap_or_default());
        if received.len() > MAX_RESPONSE {
            return Err(malformed("answer is larger than 16 MiB"));
        }
    }
}

/// A path segment, with everything but letters, digits and `.-_` percent-encoded.
pub(crate) fn segment(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Open,
    Ended,
}

/// The response, or `None` while it is incomplete.
fn parse(bytes: &[u8], stream: Stream) -> io::Result<Option<Response>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let status = head
        .parse(bytes)
        .map_err(|error| malformed(&error.to_string()))?;
    let httparse::Status::Complete(start) = status else {
        return Ok(None);
    };
    let body = bytes.get(start..).unwrap_or_default();
    let header = |name: &str| {
        head.headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))
    };
    if header("transfer-encoding").is_some() {
        return Err(malformed("answer has a transfer encoding"));
    }
    let length = match header("content-length") {
        Some(header) => Some(
            std::str::from_utf8(header.value)
                .ok()
                .and_then(|text| text.trim().parse::<usize>().ok())
                .ok_or_else(|| malformed("answer has a bad length"))?,
        ),
        None => None,
    };
    let status = head.code.unwrap_or_default();
    let body = match (length, stream) {
        (Some(length), _) => body.get(..length),
        (None, Stream::Ended) => Some(body),
        (None, Stream::Open) => (status == 204).then_some(&[][..]),
    };
    Ok(body.map(|body| Response {
        status,
        body: body.to_vec(),
    }))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn complete_answers_end_without_the_connection_ending() {
        let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(
            parse(wire, Stream::Open).unwrap(),
            Some(Response {
                status: 200,
                body: b"{}".to_vec()
            })
        );
        assert_eq!(parse(&wire[..30], Stream::Open).unwrap(), None);
        let short = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}";
        assert_eq!(parse(short, Stream::Ended).unwrap(), None);
        let bare = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(parse(bare, Stream::Open).unwrap().unwrap().status, 204);
    }

    #[test]
    fn segments_cannot_escape_their_path() {
        assert_eq!(segment("shell-app.1"), "shell-app.1");
        assert_eq!(segment("../x y\n?"), "..%2Fx%20y%0A%3F");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_incomplete(bytes: Vec<u8>) {
            drop(parse(&bytes, Stream::Ended));
        }
    }
}

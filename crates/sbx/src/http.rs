//! One HTTP/1.1 exchange over a Unix socket: request bytes out, a bounded response in.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sbx_api::{VERSION, VERSION_HEADER};

/// A daemon that sends more than this is not ours.
const MAX_RESPONSE: usize = 16 << 20;
const MAX_HEADERS: usize = 64;
/// When a wait is first doubted, and how often from then on.
const FIRST_DOUBT: Duration = Duration::from_secs(1);
const MORE_DOUBTS: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// How long every single wait may last.
pub(crate) struct Patience<'a> {
    pub(crate) limit: Duration,
    /// Whether it makes sense to wait on; asked now and then, and never of one who answers at once.
    pub(crate) worth_it: &'a dyn Fn() -> bool,
}

impl Patience<'_> {
    /// Without a doubt.
    pub(crate) fn blind(limit: Duration) -> Self {
        Self {
            limit,
            worth_it: &|| true,
        }
    }

    fn wait<T>(
        &self,
        stream: &UnixStream,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let begin = Instant::now();
        let mut doubt = FIRST_DOUBT;
        loop {
            let left = self.limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let next = Some(doubt.min(left));
            stream.set_read_timeout(next)?;
            stream.set_write_timeout(next)?;
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if timed_out(&error) => {
                    if doubt < left && !(self.worth_it)() {
                        return Err(error);
                    }
                    doubt = MORE_DOUBTS;
                }
                other => return other,
            }
        }
    }
}

/// A socket's way to say so.
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
    patience: &Patience<'_>,
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
        let count = patience.wait(stream, || stream.write(unsent))?;
        unsent = unsent.get(count..).unwrap_or_default();
    }

    let mut received = Vec::new();
    let mut chunk = [0_u8; 16 << 10];
    loop {
        if let Some(response) = parse(&received, Stream::Open)? {
            return Ok(response);
        }
        let count = patience.wait(stream, || stream.read(&mut chunk))?;
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

/// A path segment with everything but the plainest characters escaped.
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

/// The response when all of it is there.
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
    fn segments_cannot_leave_their_place() {
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

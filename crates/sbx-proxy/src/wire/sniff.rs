//! What a connection carries, told by its first bytes.
//!
//! A TLS or HTTP connection that is malformed is never called something else: then a client could have its requests
//! read by an origin that policy only lets it reach for other traffic.

use super::http1::{self, HeadError, RequestHead};
use super::tls::{self, ClientHello};

/// What the first bytes of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traffic {
    NeedMore,
    Tls(ClientHello),
    BadTls,
    /// The head and the bytes it took.
    Http(Box<RequestHead>, usize),
    BadHttp(HeadError),
    /// Neither TLS nor HTTP.
    Other,
}

/// Whether it is a request must show within so many bytes. Some origins skip any number of empty lines, others serve
/// methods of any length: what is still open then is refused, since it cannot be ruled out that a request comes of it.
const MAX_UNDECIDED: usize = 8 * 1024;

const KNOWN_METHODS: &[&[u8]] = &[
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI",
];

/// How a target starts that makes it a request before its line ends, when the method is one we do not know.
const TARGET_STARTS: &[&[u8]] = &[b"/", b"* ", b"http://", b"https://"];
/// What else makes it one: targets have any form and scheme (`ftp://`, `x:/y`), and origins serve what follows.
const VERSION: &[u8] = b"HTTP/";

/// Classifies the bytes that a client sent first.
pub fn classify(bytes: &[u8]) -> Traffic {
    match tls::sniff(bytes) {
        tls::Sniff::Hello(hello) => return Traffic::Tls(hello),
        tls::Sniff::Malformed => return Traffic::BadTls,
        tls::Sniff::NeedMore => return Traffic::NeedMore,
        tls::Sniff::NotTls => {}
    }
    match looks_like_http(bytes) {
        Guess::NeedMore => Traffic::NeedMore,
        Guess::No => Traffic::Other,
        Guess::Yes => match http1::parse_request(bytes) {
            Ok(Some((head, consumed))) => Traffic::Http(Box::new(head), consumed),
            Ok(None) => Traffic::NeedMore,
            Err(error) => Traffic::BadHttp(error),
        },
    }
}

/// Whether it is no more than the first word of a request so far: many other protocols begin like that and wait.
pub fn is_prefix(bytes: &[u8]) -> bool {
    match tls::sniff(bytes) {
        tls::Sniff::NotTls => matches!(looks_like_http(bytes), Guess::NeedMore),
        tls::Sniff::NeedMore => tls::may_be_another_protocol(bytes),
        tls::Sniff::Hello(_) | tls::Sniff::Malformed => false,
    }
}

enum Guess {
    NeedMore,
    Yes,
    No,
}

/// A method and a space, then what a target starts with or, later on the line, a version. The second half keeps the
/// banner `SSH-2.0-name comment` and commands like `NICK name` apart from methods we do not know.
///
/// Origins differ in what they skip before a method and in what they take for the space behind it, so any of it counts:
/// that it must be one space is for the parser to say.
fn looks_like_http(bytes: &[u8]) -> Guess {
    match bytes.get(..MAX_UNDECIDED) {
        None => begins_as_http(bytes),
        Some(window) => match begins_as_http(window) {
            Guess::NeedMore => Guess::Yes,
            settled @ (Guess::Yes | Guess::No) => settled,
        },
    }
}

fn begins_as_http(bytes: &[u8]) -> Guess {
    let bytes = without_gap(bytes, is_gap);
    let end = bytes
        .iter()
        .position(|&byte| !http1::is_token(byte))
        .unwrap_or(bytes.len());
    let (method, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
    match rest {
        [] => Guess::NeedMore,
        _ if method.is_empty() => Guess::No,
        [byte, ..] if is_gap(*byte) && KNOWN_METHODS.contains(&method) => Guess::Yes,
        // A word on a line of its own is a command of something else.
        [byte, ..] if is_inner_gap(*byte) => rest_of_line(rest),
        _ => Guess::No,
    }
}

fn without_gap(bytes: &[u8], is_gap: fn(u8) -> bool) -> &[u8] {
    let end = bytes.iter().position(|&byte| !is_gap(byte));
    end.and_then(|end| bytes.get(end..)).unwrap_or_default()
}

/// What some parser takes for white space: ASCII's, the separators that Python splits at, and those of Latin-1.
fn is_gap(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=b' ' | 0x85 | 0xa0)
}

fn is_inner_gap(byte: u8) -> bool {
    is_gap(byte) && !matches!(byte, b'\r' | b'\n')
}

/// From the gap behind the method on.
fn rest_of_line(rest: &[u8]) -> Guess {
    let target = without_gap(rest, is_inner_gap);
    let starts = |start: &&[u8]| {
        let begin = target.get(..start.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(start))
    };
    let mut lines = rest.splitn(2, |&byte| byte == b'\n');
    let line = lines.next().unwrap_or_default();
    if TARGET_STARTS.iter().any(starts) || has_version(line) {
        return Guess::Yes;
    }
    match lines.next() {
        Some(_) => Guess::No,
        None => Guess::NeedMore,
    }
}

fn has_version(line: &[u8]) -> bool {
    line.windows(1 + VERSION.len()).any(|window| {
        matches!(window, [gap, word @ ..] if is_gap(*gap) && word.eq_ignore_ascii_case(VERSION))
    })
}

#[cfg(test)]
mod tests;

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

/// No method that anyone serves is longer.
const MAX_METHOD: usize = 32;

const KNOWN_METHODS: &[&[u8]] = &[
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI",
];

/// How a target starts when the method is one we do not know.
const TARGET_STARTS: &[&[u8]] = &[b"/", b"* ", b"http://", b"https://"];

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

/// Whether it is no more than a word so far: it may become a request, but many protocols begin with one and wait.
pub fn is_word(bytes: &[u8]) -> bool {
    matches!(tls::sniff(bytes), tls::Sniff::NotTls)
        && matches!(looks_like_http(bytes), Guess::NeedMore)
}

enum Guess {
    NeedMore,
    Yes,
    No,
}

/// A method and a space, then what a target starts with. The second half keeps the banner `SSH-2.0-name comment`
/// and commands like `NICK name` apart from methods we do not know.
fn looks_like_http(bytes: &[u8]) -> Guess {
    let bytes = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    if matches!(bytes, [] | [b'\r']) {
        return Guess::NeedMore;
    }
    let end = bytes
        .iter()
        .position(|&byte| !http1::is_token(byte))
        .unwrap_or(bytes.len());
    let (method, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
    if method.is_empty() || method.len() > MAX_METHOD {
        return Guess::No;
    }
    match rest {
        [] => Guess::NeedMore,
        [b' ', ..] if KNOWN_METHODS.contains(&method) => Guess::Yes,
        [b' ', target @ ..] => target_start(target),
        _ => Guess::No,
    }
}

fn target_start(target: &[u8]) -> Guess {
    let mut guess = Guess::No;
    for start in TARGET_STARTS {
        let shared = start.len().min(target.len());
        let (Some(expected), Some(found)) = (start.get(..shared), target.get(..shared)) else {
            continue;
        };
        if !found.eq_ignore_ascii_case(expected) {
            continue;
        }
        if shared == start.len() {
            return Guess::Yes;
        }
        guess = Guess::NeedMore;
    }
    guess
}

#[cfg(test)]
mod tests;

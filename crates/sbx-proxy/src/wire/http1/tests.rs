//! Tables of what is taken and what is refused, and properties that hold for all bytes.

mod body;
mod destinations;
mod props;
mod requests;
mod responses;
mod rewriting;
mod smuggling;

use super::{HeadError, RequestHead, ResponseHead, parse_request, parse_response};

/// A whole request head from its lines.
fn head(lines: &[&str]) -> Vec<u8> {
    format!("{}\r\n\r\n", lines.join("\r\n")).into_bytes()
}

fn request(bytes: &[u8]) -> RequestHead {
    let (head, consumed) = parse_request(bytes).unwrap().unwrap();
    assert!(consumed <= bytes.len());
    head
}

#[track_caller]
fn refused(bytes: &[u8], expected: HeadError) {
    assert_eq!(
        parse_request(bytes),
        Err(expected),
        "{}",
        bytes.escape_ascii()
    );
}

fn response(bytes: &[u8]) -> ResponseHead {
    parse_response(bytes).unwrap().unwrap().0
}

//! HTTP/1 heads and the bodies behind them.

use sbx_proxy::wire::http1::{
    BodyKind, BodyTracker, MAX_HEAD, RequestHead, ResponseHead, Rewrite, parse_request,
    parse_response,
};
use sbx_proxy::wire::sniff::{Traffic, classify};

use crate::prefixes::{lengths, settles};

/// Heads and bodies end at the same byte however they arrive, and what the origin is sent means what was received.
pub fn fuzz_http1_head(data: &[u8]) {
    if let Ok(Some((head, used))) = settles(data, &Ok(None), parse_request) {
        assert!(used <= data.len() && used <= MAX_HEAD + 2);
        assert_ne!(head.body(), BodyKind::UntilClose);
        check_lines(head.bytes());
        check_rewrite(&head);
        check_body(head.body(), data.get(used..).unwrap_or_default());
    }
    if let Ok(Some((head, used))) = settles(data, &Ok(None), parse_response) {
        assert!(used <= data.len() && used <= MAX_HEAD);
        check_response(&head, data.get(used..).unwrap_or_default());
    }
    settles(data, &Traffic::NeedMore, classify);
}

/// Nothing that a lenient parser might take for another line, and nothing that ends a string in C.
fn check_lines(head: &[u8]) {
    let text = head.strip_suffix(b"\r\n\r\n");
    assert!(text.is_some());
    for line in text.unwrap_or_default().split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        assert!(!line.is_empty());
        assert!(!line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
}

fn check_rewrite(head: &RequestHead) {
    let Ok(bytes) = head.rewrite_with(&Rewrite::default()) else {
        assert_eq!(head.method(), "CONNECT");
        return;
    };
    check_lines(&bytes);
    let again = match parse_request(&bytes) {
        Ok(Some((again, used))) if used == bytes.len() => Some(again),
        // What is added when an absolute target becomes an origin's may make a head of the largest size too large.
        Err(_) if bytes.len() > MAX_HEAD || head.headers().len() > 255 => return,
        Ok(_) | Err(_) => None,
    };
    assert!(again.is_some(), "{}", bytes.escape_ascii());
    let Some(again) = again else {
        return;
    };
    assert_eq!(again.method(), head.method());
    assert_eq!(again.target().origin_form(), head.target().origin_form());
    assert_eq!(again.version(), head.version());
    assert_eq!(again.body(), head.body());
    assert_eq!(again.keep_alive(), head.keep_alive());
    assert_eq!(again.upgrade(), head.upgrade());
    assert_eq!(again.expects_continue(), head.expects_continue());
    assert_eq!(again.host(), head.host().or(head.authority()));
    assert_eq!(
        again.rewrite_with(&Rewrite::default()).as_deref(),
        Ok(bytes.as_slice())
    );
}

fn check_response(head: &ResponseHead, rest: &[u8]) {
    assert!((100..=999).contains(&head.status()));
    assert_eq!(head.body("HEAD"), BodyKind::None);
    assert!(!(head.is_interim() && head.is_switching()));
    check_body(head.body("GET"), rest);
}

/// The body of the whole is that of any two parts.
fn check_body(kind: BodyKind, bytes: &[u8]) {
    let mut whole = BodyTracker::new(kind);
    let expected = whole.advance(bytes);
    if let Ok(used) = expected {
        assert!(used <= bytes.len());
        assert!(used == bytes.len() || whole.is_done());
    }
    for length in lengths(bytes) {
        let (first, second) = bytes.split_at_checked(length).unwrap_or((bytes, &[]));
        let mut tracker = BodyTracker::new(kind);
        let parts = tracker
            .advance(first)
            .and_then(|a| tracker.advance(second).map(|b| a + b));
        assert_eq!(parts, expected, "cut after {length} bytes");
        assert_eq!(tracker.is_done(), whole.is_done());
    }
}

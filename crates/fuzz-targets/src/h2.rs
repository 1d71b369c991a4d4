//! Openings of HTTP/2 clients.

use sbx_proxy::wire::h2::{MAX_OPENING, Opening, read_opening};

use crate::prefixes::lengths;

/// What was said is not taken back when more arrives, it is decided within a bound, and answers are whole frames.
pub fn fuzz_h2_opening(data: &[u8]) {
    let whole = read_opening(data);
    for length in lengths(data) {
        let part = read_opening(data.get(..length).unwrap_or_default());
        match (part, &whole) {
            (Err(error), whole) => assert_eq!(&Err(error), whole),
            (Ok(part), Ok(whole)) => goes_on(&part, whole),
            (Ok(part), Err(_)) => assert!(part.request.is_none()),
        }
    }
    let Ok(Opening { replies, request }) = whole else {
        return;
    };
    check_frames(&replies);
    match request {
        None => assert!(data.len() < MAX_OPENING + 9),
        Some(request) => {
            for body in ["", "no\n", &"x".repeat(40_000)] {
                check_frames(&request.answer(403, "text/plain", body));
            }
        }
    }
}

fn goes_on(part: &Opening, whole: &Opening) {
    assert!(whole.replies.starts_with(&part.replies));
    assert!(part.request.is_none() || part.request == whole.request);
}

fn check_frames(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let header = bytes.split_first_chunk::<9>();
        assert!(header.is_some(), "half a header");
        let Some(([a, b, c, ..], rest)) = header else {
            return;
        };
        let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap_or(usize::MAX);
        let payload = rest.split_at_checked(length);
        assert!(payload.is_some(), "half a frame");
        bytes = payload.map_or(&[], |(_, rest)| rest);
    }
}

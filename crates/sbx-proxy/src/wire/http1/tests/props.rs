//! Properties: however the bytes arrive, the answer is the same, and it never is a panic.

use proptest::prelude::*;

use super::super::{BodyKind, BodyTracker, HeadError, Rewrite, parse_request, parse_response};

/// Lines that mean something to the parser, right and wrong, so that random heads get far.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "GET / HTTP/1.1",
            "POST http://a/ HTTP/1.1",
            "CONNECT a:443 HTTP/1.1",
            "HTTP/1.1 200 OK",
            "HTTP/1.0 304 x",
            "Host: a",
            "Host: b",
            "Content-Length: 5",
            "Content-Length: 6",
            "Transfer-Encoding: chunked",
            "Connection: close, x",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Expect: 100-continue",
            " folded",
            "",
        ])
        .prop_map(str::to_owned),
        "[!-~]{1,8}: [ -~]{0,12}",
        "[ -~]{0,16}",
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let ending = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r"]);
    let lines = prop::collection::vec((line(), ending), 0..10).prop_map(|lines| {
        lines
            .into_iter()
            .flat_map(|(line, end)| line.into_bytes().into_iter().chain(end.bytes()))
            .collect()
    });
    prop_oneof![4 => lines, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

fn good_head() -> impl Strategy<Value = Vec<u8>> {
    let first = prop::sample::select(vec![
        "GET / HTTP/1.1",
        "POST http://a/x?y HTTP/1.1",
        "OPTIONS * HTTP/1.1",
    ]);
    let field = "[A-Za-z]{1,8}-X:[ \t]{0,2}[!-~]{0,12}";
    (first, prop::collection::vec(field, 0..8)).prop_map(|(first, fields)| {
        let fields: String = fields.into_iter().map(|field| field + "\r\n").collect();
        format!("{first}\r\nHost: a\r\n{fields}\r\n").into_bytes()
    })
}

/// Asserts that the first answer to a growing prefix is the answer to the whole.
fn same_for_every_prefix<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, HeadError>,
) -> Result<(), TestCaseError> {
    let whole = parse(bytes);
    for end in 0..=bytes.len() {
        let answer = parse(&bytes[..end]);
        if answer != Ok(None) {
            prop_assert_eq!(&answer, &whole);
            if let Ok(Some((_, consumed))) = answer {
                prop_assert_eq!(consumed, end);
                return Ok(());
            }
        }
    }
    prop_assert!(!matches!(whole, Ok(Some(_))));
    Ok(())
}

/// Any mixture of chunks, with the bytes of the next message after them.
fn chunked_body() -> impl Strategy<Value = (Vec<u8>, usize)> {
    let chunk = (prop::collection::vec(any::<u8>(), 1..40), "(;[!-~]{0,8})?");
    let trailer = "X-[A-Za-z]{1,8}: [ -~]{0,12}";
    (
        prop::collection::vec(chunk, 0..6),
        prop::collection::vec(trailer, 0..3),
        prop::collection::vec(any::<u8>(), 0..20),
    )
        .prop_map(|(chunks, trailers, next)| {
            let mut out = Vec::new();
            for (data, extension) in chunks {
                out.extend(format!("{:x}{extension}\r\n", data.len()).bytes());
                out.extend(data);
                out.extend(b"\r\n");
            }
            out.extend(b"0\r\n");
            trailers
                .into_iter()
                .for_each(|trailer| out.extend(format!("{trailer}\r\n").bytes()));
            out.extend(b"\r\n");
            let end = out.len();
            out.extend(next);
            (out, end)
        })
}

/// Feeds the bytes in pieces of these sizes, over and over.
fn feed(tracker: &mut BodyTracker, bytes: &[u8], sizes: &[usize]) -> usize {
    let mut taken = 0;
    let mut sizes = sizes.iter().cycle();
    while taken < bytes.len() && !tracker.is_done() {
        let end = bytes.len().min(taken + sizes.next().unwrap());
        taken += tracker.advance(&bytes[taken..end]).unwrap();
    }
    taken
}

proptest! {
    #[test]
    fn requests_in_any_split(bytes in bytes()) {
        same_for_every_prefix(&bytes, parse_request)?;
    }

    #[test]
    fn responses_in_any_split(bytes in bytes()) {
        same_for_every_prefix(&bytes, parse_response)?;
    }

    #[test]
    fn good_heads_pass_and_survive_rewriting(bytes in good_head()) {
        same_for_every_prefix(&bytes, parse_request)?;
        let (head, _) = parse_request(&bytes).unwrap().unwrap();
        let rewritten = head.rewrite_with(&Rewrite::default()).unwrap();
        let (again, consumed) = parse_request(&rewritten).unwrap().unwrap();
        prop_assert_eq!(consumed, rewritten.len());
        prop_assert!(head.headers().iter().map(|h| h.line).eq(again.headers().iter().map(|h| h.line)));
        prop_assert_eq!(again.rewrite_with(&Rewrite::default()).unwrap(), rewritten);
    }

    #[test]
    fn bodies_end_where_the_encoder_ended(
        (bytes, end) in chunked_body(),
        sizes in prop::collection::vec(1..50_usize, 1..5),
    ) {
        let mut tracker = BodyTracker::new(BodyKind::Chunked);
        prop_assert_eq!(feed(&mut tracker, &bytes, &sizes), end);
        prop_assert!(tracker.is_done());
        let length = u64::try_from(end).unwrap();
        let mut tracker = BodyTracker::new(BodyKind::Length(length));
        prop_assert_eq!(feed(&mut tracker, &bytes, &sizes), end);
    }

    #[test]
    fn any_chunks_in_any_split(bytes in "[0-9a-f;: \r\nx]{0,60}", at in 0..60_usize) {
        let bytes = bytes.as_bytes();
        let whole = BodyTracker::new(BodyKind::Chunked).advance(bytes);
        let mut tracker = BodyTracker::new(BodyKind::Chunked);
        let (first, second) = bytes.split_at(at.min(bytes.len()));
        let split = tracker.advance(first).and_then(|a| tracker.advance(second).map(|b| a + b));
        prop_assert_eq!(split, whole);
    }
}

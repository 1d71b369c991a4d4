//! Openings of clients, and what they are told.

use proptest::prelude::*;

use super::answer::frame;
use super::*;

const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const ACK: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];

/// `GET https://a.test/`, with an `accept` that is not packed.
fn head(accept: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x87, 0x84, 0x41, 6];
    head.extend(b"a.test");
    head.extend([0x53, u8::try_from(accept.len()).unwrap()]);
    head.extend(accept.as_bytes());
    head
}

fn opening(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &SETTINGS, &frames.concat()].concat()
}

fn request(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame(kind::HEADERS, flags, stream, payload)
}

#[test]
fn a_request() {
    let ping = frame(kind::PING, 0, 0, b"12345678");
    let update = frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]);
    let unknown = frame(200, 0xff, 7, b"?");
    let asks = request(3, 5, &head("text/html"));
    let bytes = opening(&[update, ping, unknown, asks, b"more".to_vec()]);
    let read = read_opening(&bytes).unwrap();
    let pong = frame(kind::PING, flag::ACK, 0, b"12345678");
    assert_eq!(read.replies, [&SETTINGS[..], &ACK, &pong].concat());
    let request = read.request.unwrap();
    assert_eq!((request.stream, request.accept()), (3, Some("text/html")));
    assert_eq!(request.method.as_deref(), Some("GET"));
    assert_eq!(request.window, 65_535);
}

#[test]
fn heads_in_parts_padded_and_with_a_priority() {
    let whole = head("*/*");
    let (first, second) = whole.split_at(9);
    let parts = opening(&[
        request(1, 0, first),
        frame(kind::CONTINUATION, 0, 1, &[]),
        frame(kind::CONTINUATION, flag::END_HEADERS, 1, second),
    ]);
    let padded = [&[2, 0, 0, 0, 0, 9][..], &whole, &[0, 0]].concat();
    let padded = opening(&[request(1, 0x2c, &padded)]);
    for bytes in [parts, padded] {
        let read = read_opening(&bytes).unwrap();
        assert_eq!(read.request.unwrap().accept(), Some("*/*"));
    }
}

#[test]
fn what_is_refused() {
    let whole = head("*/*");
    let block = || request(1, 0, &whole);
    let continued = |stream| frame(kind::CONTINUATION, 4, stream, &[]);
    for (frames, error) in [
        (vec![frame(kind::DATA, 0, 1, b"x")], H2Error::Protocol),
        (
            vec![frame(kind::RST_STREAM, 0, 1, &[0; 4])],
            H2Error::Protocol,
        ),
        (
            vec![frame(kind::PUSH_PROMISE, 4, 1, &[0; 8])],
            H2Error::Protocol,
        ),
        (vec![request(2, 4, &whole)], H2Error::Protocol),
        (vec![request(0, 4, &whole)], H2Error::Protocol),
        (vec![continued(1)], H2Error::Protocol),
        (vec![block(), continued(3)], H2Error::Protocol),
        (
            vec![block(), frame(kind::PING, 0, 0, &[0; 8])],
            H2Error::Protocol,
        ),
        (vec![request(1, 12, &[9, 1])], H2Error::Protocol),
        (vec![request(1, 0x24, &[0; 4])], H2Error::FrameSize),
        (vec![request(1, 4, &[0x80])], H2Error::Compression),
        (vec![frame(kind::SETTINGS, 0, 1, &[])], H2Error::Protocol),
        (
            vec![frame(kind::SETTINGS, 0, 0, &[0; 5])],
            H2Error::FrameSize,
        ),
        (
            vec![frame(kind::SETTINGS, 1, 0, &[0; 6])],
            H2Error::FrameSize,
        ),
        (
            vec![frame(kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0])],
            H2Error::Window,
        ),
        (vec![frame(kind::PING, 0, 0, &[0; 7])], H2Error::FrameSize),
        (vec![frame(kind::PING, 0, 1, &[0; 8])], H2Error::Protocol),
        (
            vec![frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3])],
            H2Error::FrameSize,
        ),
        (
            vec![frame(kind::PRIORITY, 0, 1, &[0; 4])],
            H2Error::FrameSize,
        ),
        (vec![frame(kind::GOAWAY, 0, 0, &[0; 8])], H2Error::GoAway),
        // Bounded in the size of a frame, in frames and in bytes.
        (
            vec![vec![0, 0x40, 1, 200, 0, 0, 0, 0, 0]],
            H2Error::FrameSize,
        ),
        (
            vec![frame(kind::PING, 1, 0, &[0; 8]); 101],
            H2Error::TooMuch,
        ),
        (vec![frame(200, 0, 0, &[0; 16_000]); 3], H2Error::TooMuch),
        (
            vec![
                block(),
                frame(kind::CONTINUATION, 0, 1, &[0; 16_384]),
                frame(kind::CONTINUATION, 0, 1, &[0; 16_384]),
            ],
            H2Error::TooMuch,
        ),
    ] {
        let last = frames
            .last()
            .map(|frame| frame.get(..9).map(<[u8]>::to_vec));
        assert_eq!(read_opening(&opening(&frames)), Err(error), "{last:?}");
    }
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSX"] {
        assert_eq!(read_opening(bytes), Err(H2Error::NotHttp2));
    }
    // Its settings come first.
    for first in [ACK.to_vec(), request(1, 4, &whole)] {
        let bytes = [PREFACE, &first].concat();
        assert_eq!(read_opening(&bytes), Err(H2Error::Protocol));
    }
    let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(H2Error::Protocol.goaway(), goaway);
}

/// Kind, flags, stream and payload of each frame.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let mut frames = Frames {
            rest: bytes,
            seen: 0,
            read: 0,
        };
        let frame = frames.next_frame().unwrap().expect("a whole frame");
        found.push((
            frame.kind,
            frame.flags,
            frame.stream,
            frame.payload.to_vec(),
        ));
        bytes = frames.rest;
    }
    found
}

#[test]
fn an_answer() {
    let bytes = opening(&[request(5, 4, &head("*/*"))]);
    let asked = read_opening(&bytes).unwrap().request.unwrap();
    let said = frames(&asked.answer(403, "text/plain", "no\n"));
    let mut head = b"\x08\x03403\x0f\x10\x0atext/plain\x0f\x0d\x013".to_vec();
    head.extend(b"\x0f\x09\x08no-store\x0f\x2d\x052 sbx");
    let goaway = vec![0, 0, 0, 5, 0, 0, 0, 0];
    let expected = [
        (kind::HEADERS, 4, 5, head.clone()),
        (kind::DATA, 1, 5, b"no\n".to_vec()),
        (kind::GOAWAY, 0, 0, goaway.clone()),
    ];
    assert_eq!(said, expected);
    // Without a body, where there is none to be.
    let headed = Request {
        method: Some("HEAD".into()),
        ..asked.clone()
    };
    let said = frames(&headed.answer(403, "text/plain", "no\n"));
    assert_eq!(
        said,
        [(kind::HEADERS, 5, 5, head), (kind::GOAWAY, 0, 0, goaway)]
    );
    let small = opening(&[
        frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 2, 0, 9, 1, 1, 1, 1]),
        request(5, 4, &[0x82]),
    ]);
    let small = read_opening(&small).unwrap().request.unwrap();
    let said = frames(&small.answer(403, "text/plain", "no\n"));
    assert_eq!((said.len(), said[0].1), (2, 5));
    assert!(!said[0].3.contains(&b'\x0d'));
    // A long one is cut into frames.
    let long = "x".repeat(40_000);
    let said = frames(&asked.answer(403, &"m".repeat(300), &long));
    let lengths: Vec<_> = said
        .iter()
        .map(|(_, flags, _, p)| (*flags, p.len()))
        .collect();
    assert_eq!(lengths[1..4], [(0, 16_384), (0, 16_384), (1, 7_232)]);
}

proptest! {
    /// Whatever arrives, and however: nothing that was said is taken back.
    #[test]
    fn any_bytes_settle(frames in prop::collection::vec(any_frame(), 0..8), cut in 0usize..40, noise in any::<bool>()) {
        let mut bytes = opening(&frames);
        if noise {
            let at = cut * 7 % bytes.len();
            bytes[at] ^= 1 << (cut % 8);
        }
        let whole = read_opening(&bytes);
        for end in 0..bytes.len() {
            match (read_opening(&bytes[..end]), &whole) {
                (Err(error), whole) => prop_assert_eq!(&Err(error), whole),
                (Ok(part), Ok(whole)) => {
                    prop_assert!(whole.replies.starts_with(&part.replies));
                    prop_assert!(part.request.is_none() || part.request == whole.request);
                }
                (Ok(part), Err(_)) => prop_assert!(part.request.is_none()),
            }
        }
    }

    #[test]
    fn any_noise(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_opening(&bytes);
        let _ = read_opening(&[PREFACE, &SETTINGS, &bytes].concat());
        let _ = read_opening(&opening(&[request(1, 4, &bytes)]));
    }
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        Just(head("application/json")),
        Just(Vec::new()),
        Just(vec![0; 6]),
        Just(vec![0; 8]),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    (0u8..11, any::<u8>(), 0u32..4, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload))
}

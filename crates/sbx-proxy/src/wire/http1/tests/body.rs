//! Where bodies end, and which never do.

use super::super::BodyError as E;
use super::super::{BodyKind, BodyTracker, MAX_EXTENSION, MAX_TRAILERS};

#[track_caller]
fn chunked(bytes: &[u8]) -> Result<usize, E> {
    let whole = BodyTracker::new(BodyKind::Chunked).advance(bytes);
    let mut tracker = BodyTracker::new(BodyKind::Chunked);
    let mut one_by_one = Ok(0);
    for byte in bytes {
        match (tracker.advance(&[*byte]), &mut one_by_one) {
            (Ok(step), Ok(taken)) => *taken += step,
            (Err(error), slot) => *slot = Err(error),
            (Ok(_), Err(_)) => panic!("an error must last"),
        }
    }
    assert_eq!(whole, one_by_one);
    whole
}

#[test]
fn lengths() {
    let mut tracker = BodyTracker::new(BodyKind::Length(5));
    assert_eq!(tracker.advance(b"abc"), Ok(3));
    assert_eq!(tracker.end_of_input(), Err(E::CutShort));
    assert_eq!(tracker.advance(b"deGET"), Ok(2));
    assert!(tracker.is_done());
    assert_eq!(
        (tracker.advance(b"x"), tracker.end_of_input()),
        (Ok(0), Ok(()))
    );
    assert!(BodyTracker::new(BodyKind::None).is_done());
    assert_eq!(
        BodyTracker::new(BodyKind::Length(u64::MAX)).advance(b"abc"),
        Ok(3)
    );
}

#[test]
fn until_close() {
    let mut tracker = BodyTracker::new(BodyKind::UntilClose);
    assert_eq!(tracker.advance(b"0\r\n\r\n"), Ok(5));
    assert!(!tracker.is_done());
    assert_eq!(tracker.end_of_input(), Ok(()));
}

#[test]
fn chunks_that_pass() {
    for body in [
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "00000000000000Aa\r\n", // only the start: 170 bytes would follow
        "1;name=value;q=\"a\tb\"\r\nx\r\n0;last\r\n\r\n",
        "1 ;a\r\nx\r\n0  \r\n\r\n",
        "0\r\nTrailer: value\r\nOther:\r\n\r\n",
        "5\r\n\r\n0\r\n\r\n0\r\n\r\n",
    ] {
        let bytes = format!("{body}GET / HTTP/1.1");
        let whole = !body.contains("Aa");
        let expected = if whole { body.len() } else { bytes.len() };
        assert_eq!(chunked(bytes.as_bytes()), Ok(expected), "{body:?}");
    }
}

#[test]
fn chunks_that_do_not() {
    let cases: &[(&str, E)] = &[
        ("\r\n", E::BadChunkSize),
        (" 5\r\n", E::BadChunkSize),
        ("+5\r\n", E::BadChunkSize),
        ("-5\r\n", E::BadChunkSize),
        ("0x5\r\n", E::BadChunkSize),
        ("g\r\n", E::BadChunkSize),
        (";a\r\n", E::BadChunkSize),
        ("5\n", E::BadChunkSize),
        ("10000000000000000\r\n", E::BadChunkSize),
        ("00000000000000005\r\n", E::BadChunkSize),
        ("5_0\r\n", E::BadChunkSize),
        ("5 5\r\n", E::BadExtension),
        ("5\rX", E::BadExtension),
        ("5\r\r\n", E::BadExtension),
        ("5;a\nhello", E::BadExtension),
        ("5;a\rhello", E::BadExtension),
        ("5;a\0\r\n", E::BadExtension),
        ("5 \n", E::BadExtension),
        ("1\r\nxy\r\n", E::BadChunkEnd),
        ("1\r\nx\n", E::BadChunkEnd),
        ("1\r\nx\rX", E::BadChunkEnd),
        ("1\r\nx0\r\n\r\n", E::BadChunkEnd),
        ("0\r\n\n", E::BadTrailer),
        ("0\r\n\rX", E::BadTrailer),
        ("0\r\n folded\r\n", E::BadTrailer),
        ("0\r\nname\r\n", E::BadTrailer),
        ("0\r\nname : x\r\n", E::BadTrailer),
        ("0\r\n: x\r\n", E::BadTrailer),
        ("0\r\na: b\nc: d\r\n", E::BadTrailer),
        ("0\r\na: b\rc: d\r\n", E::BadTrailer),
        ("0\r\na: \0\r\n", E::BadTrailer),
        ("0\r\nContent-Length: 5\r\n\r\n", E::BadTrailer),
        ("0\r\ntransfer_ENCODING: chunked\r\n\r\n", E::BadTrailer),
        ("0\r\nHost: b\r\n\r\n", E::BadTrailer),
        ("0\r\nGET /admin HTTP/1.1\r\nHost: b\r\n\r\n", E::BadTrailer),
    ];
    for (body, expected) in cases {
        assert_eq!(chunked(body.as_bytes()), Err(*expected), "{body:?}");
    }
}

#[test]
fn a_cut_chunk_is_noticed() {
    for cut in ["", "5", "5\r\nhel", "5\r\nhello\r\n", "0\r\n", "0\r\n\r"] {
        let mut tracker = BodyTracker::new(BodyKind::Chunked);
        assert_eq!(tracker.advance(cut.as_bytes()), Ok(cut.len()));
        assert_eq!(
            (tracker.is_done(), tracker.end_of_input()),
            (false, Err(E::CutShort)),
            "{cut:?}"
        );
    }
}

#[test]
fn bounds() {
    let extension = |length: usize| format!("0;{}\r\n\r\n", "x".repeat(length - 1));
    assert!(chunked(extension(MAX_EXTENSION).as_bytes()).is_ok());
    assert_eq!(
        chunked(extension(MAX_EXTENSION + 1).as_bytes()),
        Err(E::BadExtension)
    );
    let trailers = "0\r\n".to_owned() + &"a: b\r\n".repeat(MAX_TRAILERS / 6 + 1);
    assert_eq!(chunked(trailers.as_bytes()), Err(E::TrailersTooLong));
    let name = format!("0\r\n{}: x\r\n\r\n", "content-length".repeat(8));
    assert_eq!(
        chunked(name.as_bytes()),
        Ok(name.len()),
        "a longer name is another name"
    );
}

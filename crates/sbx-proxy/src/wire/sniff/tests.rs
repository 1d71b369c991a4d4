//! What first bytes are taken for.

use proptest::prelude::*;

use super::*;

#[test]
fn http_is_recognised() {
    for line in [
        "GET / HTTP/1.1",
        "get / HTTP/1.1",
        "PROPFIND /dav HTTP/1.1",
        "M-SEARCH * HTTP/1.1",
        "BREW http://a/ HTTP/1.1",
    ] {
        let bytes = format!("{line}\r\nHost: a\r\n\r\nrest");
        let head = bytes.len() - 4;
        let answer = classify(bytes.as_bytes());
        match line.contains(" * ") {
            true => assert_eq!(answer, Traffic::BadHttp(HeadError::BadTarget)),
            false => assert!(
                matches!(answer, Traffic::Http(_, used) if used == head),
                "{line}: {answer:?}"
            ),
        }
    }
    let (_, used) = match classify(b"\r\nGET / HTTP/1.0\r\n\r\n") {
        Traffic::Http(head, used) => (head, used),
        other => panic!("{other:?}"),
    };
    assert_eq!(used, 20);
}

#[test]
fn bad_http_is_not_something_else() {
    for (bytes, error) in [
        (&b"GET /\r\n"[..], HeadError::BadRequestLine),
        (b"GET x HTTP/1.1\r\n", HeadError::BadTarget),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HeadError::BadVersion),
        (b"GET / HTTP/1.1\nHost: a\n\n", HeadError::BareLf),
        (
            b"BREW https://a/ HTTP/1.1\r\n",
            HeadError::UnsupportedScheme,
        ),
        (b"CONNECT a HTTP/1.1\r\n", HeadError::NoPort),
        (
            b"PROPFIND ftp://a/ HTTP/1.1\r\n",
            HeadError::UnsupportedScheme,
        ),
        (b"REPORT ws://a/ HTTP/1.1\r\n", HeadError::UnsupportedScheme),
        (b"SEARCH x:/y http/1.1\r\n", HeadError::BadVersion),
        (b"FOO a b c HTTP/1.1\r\n", HeadError::BadRequestLine),
    ] {
        assert_eq!(
            classify(bytes),
            Traffic::BadHttp(error),
            "{}",
            bytes.escape_ascii()
        );
    }
    assert_eq!(classify(b"\x16\x03\x01\x00\x00"), Traffic::BadTls);
}

/// Some origin reads each of these as a request, so none may pass as something else.
#[test]
fn a_request_behind_oddities_is_bad_http() {
    let request = b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    for lead in [
        &b"\n"[..],
        b"\n\n",
        b"\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
        b"\r\r\n",
        b" ",
        b"\t",
        b"\x0b\x0c",
        b"\x1c",
        b"\xa0",
    ] {
        let answer = classify(&[lead, request].concat());
        let lead = lead.escape_ascii();
        assert!(matches!(answer, Traffic::BadHttp(_)), "{lead}: {answer:?}");
    }
    for line in [
        "GET\t/ HTTP/1.1",
        "GET\n/ HTTP/1.1",
        "GET\r\n",
        "get\t/ HTTP/1.1",
        "get  / HTTP/1.1",
        "PROPFIND \t http://a/ HTTP/1.1",
        &format!("{} / HTTP/1.1", "A".repeat(100)),
        &"A".repeat(70_000),
        &"\n".repeat(9_000),
        &format!("{}GET / HTTP/1.1", " ".repeat(9_000)),
    ] {
        let answer = classify(format!("{line}\r\nHost: evil.test\r\n\r\n").as_bytes());
        assert!(
            matches!(answer, Traffic::BadHttp(_)),
            "{line:?}: {answer:?}"
        );
    }
}

#[test]
fn other_protocols() {
    for bytes in [
        &b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13\r\n"[..],
        b"SSH-2.0-Go\r\n",
        b"NICK agent\r\n",
        b"EHLO example\r\n",
        b"PING\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\x05\x01\x00",
        b"\r\n\x01",
        b"  \n$ make\n",
        b"get key\r\n",
        b"see HTTP\r\n",
        b"say xHTTP/1.1\r\n",
        b"DESCRIBE rtsp://a/ RTSP/1.0\r\n",
        b"PASS a\r\nGET / HTTP/1.1\r\n",
        b"\x16\0\0\0\0\0",
        b"stats\n/",
        b"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz=",
    ] {
        assert_eq!(classify(bytes), Traffic::Other, "{}", bytes.escape_ascii());
    }
}

#[test]
fn undecided() {
    for bytes in [
        &b""[..],
        b"\r",
        b"\r\n",
        b"\r\r\n",
        b"\n \t\n",
        b"G",
        b" G",
        b"FOO\t\t",
        b"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
        b"GET",
        b"GET ",
        b"FOO ",
        b"FOO h",
        b"FOO https:/",
        b"FOO *",
        b"FOO bar",
        b"FOO bar HTTP",
        b"\x16",
        b"\x16\0\0\0\0",
    ] {
        assert_eq!(
            classify(bytes),
            Traffic::NeedMore,
            "{}",
            bytes.escape_ascii()
        );
    }
}

proptest! {
    #[test]
    fn any_bytes_settle(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        "[\r\n \t\x0b]{0,4}[A-Z]{0,8}[ \t\n]{0,2}[/*htps:. 0-9HTP\r\n]{0,30}".prop_map(String::into_bytes),
    ]) {
        let whole = classify(&bytes);
        for end in 0..bytes.len() {
            let answer = classify(&bytes[..end]);
            prop_assert!(answer == Traffic::NeedMore || answer == whole, "{:?} at {}, then {:?}", answer, end, whole);
        }
    }

    /// What some origin could take for a request is taken apart, or refused.
    #[test]
    fn no_request_is_something_else(
        lead in prop::collection::vec(gap(), 0..6),
        method in "[A-Za-z][A-Za-z-]{0,40}",
        space in prop::collection::vec(gap().prop_filter("a line ends", |b| !b"\r\n".contains(b)), 1..4),
        target in prop_oneof!["/[a-z/]{0,8}", "[a-z]{1,5}://[a-z]{1,8}/", "[!-~]{1,20}", Just("*".to_owned())],
    ) {
        let line = format!("{target} HTTP/1.1\r\nHost: evil.test\r\n\r\n");
        let bytes = [&lead, method.as_bytes(), &space, line.as_bytes()].concat();
        let strict = matches!(&*lead, b"" | b"\r\n") && space == b" ";
        match classify(&bytes) {
            Traffic::Http(..) => prop_assert!(strict),
            Traffic::BadHttp(_) => {}
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

fn gap() -> impl Strategy<Value = u8> {
    prop::sample::select(b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0".to_vec())
}

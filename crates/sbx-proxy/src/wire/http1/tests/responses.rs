//! Responses of tidy and of sloppy origins.

use super::super::HeadError as E;
use super::super::{BodyKind, parse_response};
use super::response;

fn ok(lines: &[&str]) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n", lines.join("\r\n")).into_bytes()
}

#[test]
fn bodies() {
    let cases: &[(&[&str], BodyKind)] = &[
        (&["X: y"], BodyKind::UntilClose),
        (&["Content-Length: 5"], BodyKind::Length(5)),
        (&["Content-Length:\t5 "], BodyKind::Length(5)),
        (
            &["Content-Length: 5", "content-length: 5"],
            BodyKind::Length(5),
        ),
        (&["Content-Length: 5, 5"], BodyKind::Length(5)),
        (&["Transfer-Encoding: chunked"], BodyKind::Chunked),
        (&["Transfer-Encoding:  gzip,Chunked "], BodyKind::Chunked),
        (
            &["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
            BodyKind::Chunked,
        ),
    ];
    for (lines, body) in cases {
        assert_eq!(response(&ok(lines)).body("GET"), *body, "{lines:?}");
        assert_eq!(response(&ok(lines)).body("HEAD"), BodyKind::None);
        assert_eq!(response(&ok(lines)).body("CONNECT"), BodyKind::None);
    }
}

#[test]
fn statuses_without_body() {
    for (status, interim, switching) in [
        ("100 Continue", true, false),
        ("103 Early Hints", true, false),
        ("101 Switching Protocols", false, true),
        ("204 No Content", false, false),
        ("304 Not Modified", false, false),
    ] {
        let head = response(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes());
        assert_eq!(head.body("GET"), BodyKind::None, "{status}");
        assert_eq!(
            (head.is_interim(), head.is_switching()),
            (interim, switching),
            "{status}"
        );
    }
    let not_modified = response(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n");
    assert_eq!(not_modified.body("GET"), BodyKind::None);
}

#[test]
fn sloppy_but_certain() {
    for bytes in [
        &b"HTTP/1.1 200\r\n\r\n"[..],
        b"HTTP/1.1 200 \r\n\r\n",
        b"HTTP/1.0 200 OK\nX: y\n\n",
        b"HTTP/1.1 200 OK\r\nX: y\n\r\n",
        b"HTTP/1.1 200 \xfcber\r\nX: \x01\xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n  folded: z\r\n\r\n",
        b"HTTP/1.1 599 What?\r\n\r\n",
    ] {
        let (head, consumed) = parse_response(bytes).unwrap().unwrap();
        assert_eq!((head.bytes(), consumed), (bytes, bytes.len()));
        assert_eq!(head.body("GET"), BodyKind::UntilClose);
    }
    let folded = response(b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n");
    assert_eq!(folded.headers().get("x"), Some(&b"y\r\n z"[..]));
}

#[test]
fn refused() {
    let cases: &[(&[&str], E)] = &[
        (
            &["Content-Length: 5", "Transfer-Encoding: chunked"],
            E::LengthAndEncoding,
        ),
        (
            &["Content-Length: 5", "Content-Length: 6"],
            E::DuplicateContentLength,
        ),
        (&["Content-Length: 5, 6"], E::DuplicateContentLength),
        (&["Content-Length: +5"], E::BadContentLength),
        (&["Content-Length: -1"], E::BadContentLength),
        (&["Content-Length: "], E::BadContentLength),
        (
            &["Content-Length: 99999999999999999999"],
            E::BadContentLength,
        ),
        (&["Transfer-Encoding: xchunked"], E::BadTransferEncoding),
        (
            &["Transfer-Encoding: chunked, gzip"],
            E::BadTransferEncoding,
        ),
        (
            &["Transfer-Encoding: chunked, chunked"],
            E::BadTransferEncoding,
        ),
        (&["Transfer-Encoding: identity"], E::BadTransferEncoding),
        (&["Transfer-Encoding:"], E::BadTransferEncoding),
        (&["Transfer-Encoding: chunked", " x"], E::ObsFold),
        (&["Content-Length: 5", "\t5"], E::ObsFold),
        (&[" X: y"], E::ObsFold),
        (&["Content-Length : 5"], E::BadHeaderName),
        (&["X y: z"], E::BadHeaderName),
        (&["X: \0"], E::BadHeaderValue),
        (&["X: a\rb"], E::BareCr),
    ];
    for (lines, expected) in cases {
        assert_eq!(parse_response(&ok(lines)), Err(*expected), "{lines:?}");
    }
    for line in [
        "",
        "HTTP/1.1",
        "HTTP/1.1 20 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 2000",
        "HTTP/1.1 099 x",
        "ICY 200 OK",
    ] {
        let bytes = format!("{line}\r\n\r\n");
        assert_eq!(
            parse_response(bytes.as_bytes()),
            Err(E::BadStatusLine),
            "{line}"
        );
    }
    for version in ["HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "http/1.1"] {
        let bytes = format!("{version} 200 OK\r\n\r\n");
        assert_eq!(
            parse_response(bytes.as_bytes()),
            Err(E::BadVersion),
            "{version}"
        );
    }
}

#[test]
fn framing_that_contradicts_the_status() {
    for head in [
        "100 x\r\nContent-Length: 5",
        "204 x\r\nTransfer-Encoding: chunked",
        "101 x\r\nContent-Length: 1",
    ] {
        let bytes = format!("HTTP/1.1 {head}\r\n\r\n");
        assert_eq!(
            parse_response(bytes.as_bytes()),
            Err(E::UnexpectedBody),
            "{head}"
        );
    }
    let old = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(parse_response(old), Err(E::TransferEncodingOnHttp10));
}

#[test]
fn keep_alive() {
    for (bytes, expected) in [
        ("HTTP/1.1 200 OK\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", true),
    ] {
        assert_eq!(response(bytes.as_bytes()).keep_alive(), expected, "{bytes}");
    }
}

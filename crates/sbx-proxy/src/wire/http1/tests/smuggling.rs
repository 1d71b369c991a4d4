//! Every known way to make two parsers disagree on a request: none gets through.

use super::super::HeadError as E;
use super::super::{MAX_HEAD, MAX_HEADERS};
use super::{head, refused};

/// A `POST` with these headers after `Host`.
fn post(headers: &[&str]) -> Vec<u8> {
    head(&[&["POST / HTTP/1.1", "Host: a"], headers].concat())
}

#[test]
fn two_ways_to_end_a_body() {
    let clte = ["Content-Length: 6", "Transfer-Encoding: chunked"];
    refused(&post(&clte), E::LengthAndEncoding);
    refused(&post(&[clte[1], clte[0]]), E::LengthAndEncoding);
    refused(
        &post(&["content-length: 0", "tRANSFER-eNCODING: CHUNKED"]),
        E::LengthAndEncoding,
    );
    refused(
        &post(&["Content-Length: 6", "Transfer-Encoding: identity"]),
        E::LengthAndEncoding,
    );
}

#[test]
fn transfer_encoding_in_disguise() {
    let values = [
        "xchunked",
        "x chunked",
        "  chunked",
        "\tchunked",
        " \tchunked",
        "chunked ",
        "chunked\t",
        "chunked, identity",
        "identity, chunked",
        "gzip, chunked",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "identity",
        "\"chunked\"",
        "'chunked'",
        "chunked;q=1",
        "chunke",
        "chunkedd",
        "chu nked",
        "chunk\u{e9}d",
        "\u{a0}chunked",
        "",
    ];
    for value in values {
        refused(
            &post(&[&format!("Transfer-Encoding: {value}")]),
            E::BadTransferEncoding,
        );
    }
    for twice in [
        ["chunked", "chunked"],
        ["chunked", "identity"],
        ["x", "chunked"],
    ] {
        let lines = twice.map(|value| format!("Transfer-Encoding: {value}"));
        refused(&post(&[&lines[0], &lines[1]]), E::DuplicateTransferEncoding);
    }
    for value in [
        "\u{b}chunked",
        "\u{c}chunked",
        "chunked\0",
        "\u{7f}chunked",
        "chunked\u{1}",
    ] {
        refused(
            &post(&[&format!("Transfer-Encoding: {value}")]),
            E::BadHeaderValue,
        );
    }
    refused(
        &head(&["POST / HTTP/1.0", "Host: a", "Transfer-Encoding: chunked"]),
        E::TransferEncodingOnHttp10,
    );
}

#[test]
fn header_names_in_disguise() {
    let names = [
        "Transfer-Encoding :",
        "Transfer-Encoding\t:",
        "Transfer Encoding:",
        "Transfer-Encoding\0:",
        "Transfer-Encoding\u{b}:",
        "Transfer_Encoding:",
        "transfer_encoding:",
        "Transfer-Enc\u{f6}ding:",
        "(Transfer-Encoding:",
        "Transfer-Encoding",
        "",
        ":",
    ];
    for name in names {
        if !name.is_empty() {
            refused(&post(&[&format!("{name} chunked")]), E::BadHeaderName);
        }
    }
    refused(&post(&["Content-Length : 5"]), E::BadHeaderName);
    refused(&post(&["Content_Length: 5"]), E::BadHeaderName);
    refused(&post(&[": x"]), E::BadHeaderName);
    refused(&post(&["no colon"]), E::BadHeaderName);
    refused(&head(&["GET / HTTP/1.1", "Host : a"]), E::BadHeaderName);
}

#[test]
fn folded_lines() {
    for fold in [" ", "\t", " x", "\tchunked", " Content-Length: 5"] {
        refused(&post(&["X: y", fold]), E::ObsFold);
    }
    refused(&post(&["Transfer-Encoding:", " chunked"]), E::ObsFold);
    refused(
        &post(&["Transfer-Encoding: chunked", " , identity"]),
        E::ObsFold,
    );
    refused(&head(&["GET / HTTP/1.1", " Host: a"]), E::ObsFold);
}

#[test]
fn line_endings() {
    refused(b"GET / HTTP/1.1\nHost: a\n\n", E::BareLf);
    refused(b"GET / HTTP/1.1\r\nHost: a\n\r\n", E::BareLf);
    refused(b"GET / HTTP/1.1\r\nHost: a\r\n\n", E::BareLf);
    refused(
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n",
        E::BareLf,
    );
    refused(
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n",
        E::BareCr,
    );
    refused(b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", E::BareCr);
    refused(b"GET / HTTP/1.1\rHost: a\r\n\r\n", E::BareCr);
    refused(b"GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", E::BareCr);
    refused(b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", E::BareLf);
    refused(
        b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        E::LeadingEmptyLines,
    );
    refused(b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", E::BareCr);
}

#[test]
fn lengths() {
    let values = [
        "+5",
        "-5",
        "-1",
        "5 ",
        " 5",
        "\t5",
        "5\t",
        "5, 5",
        "5,",
        ",5",
        "5 5",
        "5;",
        "0x5",
        "5.0",
        "5e0",
        "05",
        "00",
        "1_000",
        "\u{665}",
        "",
        "five",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999999999",
    ];
    for value in values {
        refused(
            &post(&[&format!("Content-Length: {value}")]),
            E::BadContentLength,
        );
    }
    refused(
        &post(&["Content-Length: 5", "Content-Length: 5"]),
        E::DuplicateContentLength,
    );
    refused(
        &post(&["Content-Length: 5", "Content-Length: 6"]),
        E::DuplicateContentLength,
    );
    refused(
        &post(&["Content-Length: 0", "content-length: 5"]),
        E::DuplicateContentLength,
    );
    refused(&post(&["Content-Length: 5\u{0}"]), E::BadHeaderValue);
}

#[test]
fn values() {
    for byte in (0..=0x1f_u8)
        .chain([0x7f])
        .filter(|byte| !b"\t\r\n".contains(byte))
    {
        let mut bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX: y".to_vec();
        bytes.push(byte);
        bytes.extend_from_slice(b"z\r\n\r\n");
        refused(&bytes, E::BadHeaderValue);
    }
}

#[test]
fn connection_must_not_hide_what_matters() {
    for name in [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "close, Host",
        "Authorization",
        "Cookie",
        "Connection",
    ] {
        refused(
            &post(&["Content-Length: 5", &format!("Connection: {name}")]),
            E::BadConnection,
        );
    }
    refused(&post(&["Connection: a b"]), E::BadConnection);
    refused(
        &post(&["Connection: close", "Connection: keep-alive, host"]),
        E::BadConnection,
    );
}

#[test]
fn expectations() {
    for value in [
        "",
        "100-continue, 100-continue",
        "y 100-continue",
        "200-ok",
        "100-continue;q=1",
    ] {
        refused(
            &post(&["Content-Length: 5", &format!("Expect: {value}")]),
            E::BadExpect,
        );
    }
    let twice = [
        "Content-Length: 5",
        "Expect: 100-continue",
        "Expect: 100-continue",
    ];
    refused(&post(&twice), E::BadExpect);
}

#[test]
fn connect_has_no_body() {
    let connect = |more: &str| head(&["CONNECT a:443 HTTP/1.1", "Host: a:443", more]);
    refused(&connect("Content-Length: 5"), E::UnexpectedBody);
    refused(&connect("Transfer-Encoding: chunked"), E::UnexpectedBody);
}

#[test]
fn bounds() {
    let mut lines = vec!["GET / HTTP/1.1".to_owned(), "Host: a".to_owned()];
    lines.extend((0..MAX_HEADERS).map(|n| format!("X-{n}: y")));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    refused(&head(&lines), E::TooManyHeaders);
    assert_eq!(
        super::request(&head(&lines[..lines.len() - 1]))
            .headers()
            .len(),
        MAX_HEADERS
    );

    let long = |length: usize| {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
        format!("{start}{}\r\n\r\n", "y".repeat(length - start.len() - 4)).into_bytes()
    };
    assert_eq!(super::request(&long(MAX_HEAD)).bytes().len(), MAX_HEAD);
    refused(&long(MAX_HEAD + 1), E::TooLarge);
    refused(&vec![b'A'; MAX_HEAD], E::TooLarge);
}

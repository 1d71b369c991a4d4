//! What the origin is sent.

use super::super::{HeadError, Rewrite};
use super::{head, request};

fn rewritten(lines: &[&str], rewrite: &Rewrite<'_>) -> Vec<u8> {
    request(&head(lines)).rewrite_with(rewrite).unwrap()
}

#[track_caller]
fn becomes(lines: &[&str], expected: &[&str]) {
    let bytes = rewritten(lines, &Rewrite::default());
    assert_eq!(
        String::from_utf8(bytes.clone()).unwrap(),
        String::from_utf8(head(expected)).unwrap()
    );
    assert_eq!(request(&bytes).body(), request(&head(lines)).body());
}

#[test]
fn the_rest_keeps_its_bytes() {
    becomes(
        &[
            "POST http://h:80/p?q HTTP/1.1",
            "hOST:  h ",
            "X:\ty  ",
            "Content-Length: 3",
            "x:",
            "TE: trailers",
        ],
        &[
            "POST /p?q HTTP/1.1",
            "hOST:  h ",
            "X:\ty  ",
            "Content-Length: 3",
            "x:",
            "TE: trailers",
        ],
    );
}

#[test]
fn hop_by_hop_headers_end_here() {
    becomes(
        &[
            "GET http://h/ HTTP/1.1",
            "Host: h",
            "Proxy-Connection: keep-alive",
            "proxy-authorization: Basic c2VjcmV0",
            "Connection: keep-alive, X-Hop,TE",
            "X-Hop: 1",
            "te: trailers",
            "Accept: */*",
        ],
        &[
            "GET / HTTP/1.1",
            "Host: h",
            "Connection: keep-alive",
            "Accept: */*",
        ],
    );
    becomes(
        &["GET / HTTP/1.1", "Host: h", "Connection: x", "X: y"],
        &["GET / HTTP/1.1", "Host: h"],
    );
    becomes(
        &["GET / HTTP/1.1", "Host: h", "Connection:close ,"],
        &["GET / HTTP/1.1", "Host: h", "Connection:close ,"],
    );
}

#[test]
fn upgrades_pass_unless_they_are_http2() {
    let websocket = [
        "GET / HTTP/1.1",
        "Host: h",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: x",
    ];
    becomes(&websocket, &websocket);
    becomes(
        &[
            "GET / HTTP/1.1",
            "Host: h",
            "Connection: Upgrade, HTTP2-Settings, close",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABk",
        ],
        &["GET / HTTP/1.1", "Host: h", "Connection: close"],
    );
}

#[test]
fn an_absolute_target_leaves_its_host_behind() {
    becomes(
        &["GET http://H:8080 HTTP/1.0", "X: y"],
        &["GET / HTTP/1.0", "Host: h:8080", "X: y"],
    );
    becomes(
        &["OPTIONS http://h HTTP/1.1", "Host: h"],
        &["OPTIONS * HTTP/1.1", "Host: h"],
    );
    becomes(&["GET / HTTP/1.0"], &["GET / HTTP/1.0"]);
}

#[test]
fn changes_asked_for() {
    let lines = [
        "GET / HTTP/1.1",
        "Host: h",
        "authorization: old",
        "X: y",
        "Authorization: older",
        "Cookie: c",
    ];
    let rewrite = Rewrite {
        target: Some("/new"),
        host: Some("other:81"),
        set: &[("Authorization", b"Bearer t")],
        remove: &["cookie"],
    };
    let expected = [
        "GET /new HTTP/1.1",
        "Host: other:81",
        "X: y",
        "Authorization: Bearer t",
    ];
    assert_eq!(rewritten(&lines, &rewrite), head(&expected));
    assert_eq!(
        request(&head(&lines)).rewrite("/x", None).unwrap()[..6],
        *b"GET /x"
    );
}

#[test]
fn changes_that_would_break_the_head_fail() {
    let request = request(&head(&["GET / HTTP/1.1", "Host: h"]));
    for target in ["", "x", "/ HTTP/1.1\r\nX: y", "/a b", "/#", "http://h/"] {
        assert_eq!(
            request.rewrite(target, None),
            Err(HeadError::BadTarget),
            "{target:?}"
        );
    }
    for host in ["", "a\r\nX: y", "u@a", "a b"] {
        assert_eq!(
            request.rewrite("/", Some(host)),
            Err(HeadError::BadHost),
            "{host:?}"
        );
    }
    for name in [
        "",
        "a b",
        "a:",
        "Host",
        "Content-Length",
        "transfer-encoding",
        "Connection",
    ] {
        let set: &[(&str, &[u8])] = &[(name, b"x")];
        let rewrite = Rewrite {
            set,
            ..Rewrite::default()
        };
        assert_eq!(
            request.rewrite_with(&rewrite),
            Err(HeadError::BadHeaderName),
            "{name:?}"
        );
        let rewrite = Rewrite {
            remove: &[name],
            ..Rewrite::default()
        };
        assert_eq!(
            request.rewrite_with(&rewrite),
            Err(HeadError::BadHeaderName),
            "{name:?}"
        );
    }
    let rewrite = Rewrite {
        set: &[("X", b"a\r\nY: z")],
        ..Rewrite::default()
    };
    assert_eq!(
        request.rewrite_with(&rewrite),
        Err(HeadError::BadHeaderValue)
    );
}

#[test]
fn a_tunnel_has_no_origin_form() {
    let connect = request(&head(&["CONNECT a:443 HTTP/1.1", "Host: a:443"]));
    assert_eq!(
        connect.rewrite_with(&Rewrite::default()),
        Err(HeadError::BadTarget)
    );
}

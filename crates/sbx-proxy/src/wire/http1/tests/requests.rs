//! Requests that pass, and what is read from them.

use super::super::{Authority, BodyKind, Target, Version, parse_request};
use super::{head, request};

fn authority(text: &str) -> Authority {
    Authority::parse(text).unwrap()
}

#[test]
fn the_four_forms() {
    let cases: &[(&str, &str, Target)] = &[
        (
            "GET /a?b HTTP/1.1",
            "h:8080",
            Target::Origin("/a?b".to_owned()),
        ),
        (
            "GET //evil/x HTTP/1.1",
            "h",
            Target::Origin("//evil/x".to_owned()),
        ),
        (
            "GET /gr\u{fc}n HTTP/1.1",
            "h",
            Target::Origin("/gr\u{fc}n".to_owned()),
        ),
        ("GET http://h/a HTTP/1.1", "h", absolute("h", "/a")),
        ("GET HTTP://H/a HTTP/1.1", "h:80", absolute("h", "/a")),
        ("GET http://h:80 HTTP/1.1", "h", absolute("h:80", "/")),
        ("GET http://h?q=u@x HTTP/1.1", "h", absolute("h", "/?q=u@x")),
        (
            "GET http://[::1]:81/ HTTP/1.1",
            "[0:0::1]:81",
            absolute("[::1]:81", "/"),
        ),
        ("OPTIONS http://h HTTP/1.1", "h", absolute("h", "*")),
        ("OPTIONS * HTTP/1.1", "h", Target::Asterisk),
        (
            "CONNECT h:443 HTTP/1.1",
            "h:443",
            Target::Authority(authority("h:443")),
        ),
        (
            "CONNECT h:22 HTTP/1.1",
            "h",
            Target::Authority(authority("h:22")),
        ),
        (
            "CONNECT [2001:db8::1]:443 HTTP/1.1",
            "[2001:db8::1]:443",
            Target::Authority(authority("[2001:db8::1]:443")),
        ),
    ];
    for (line, host, target) in cases {
        let head = request(&head(&[line, &format!("Host: {host}")]));
        assert_eq!(head.target(), target, "{line}");
        assert_eq!(head.host(), Some(&authority(host)));
    }
}

fn absolute(host: &str, path: &str) -> Target {
    Target::Absolute {
        authority: authority(host),
        path: path.to_owned(),
    }
}

#[test]
fn authorities() {
    let all = authority("Example.COM:8443");
    assert_eq!(
        (all.host(), all.port(), all.to_string()),
        ("example.com", Some(8443), "example.com:8443".to_owned())
    );
    let v6 = authority("[2001:DB8:0::1]");
    assert_eq!(
        (v6.host(), v6.port(), v6.to_string()),
        ("2001:db8::1", None, "[2001:db8::1]".to_owned())
    );
    assert_eq!(v6.ip(), Some("2001:db8::1".parse().unwrap()));
    assert_eq!(
        authority("10.0.0.1").ip(),
        Some("10.0.0.1".parse().unwrap())
    );
    assert_eq!(authority("a_b-c.d.").host(), "a_b-c.d.");
}

#[test]
fn bodies() {
    let cases: &[(&str, BodyKind)] = &[
        ("X: y", BodyKind::None),
        ("Content-Length: 0", BodyKind::Length(0)),
        ("content-length:17", BodyKind::Length(17)),
        (
            "Content-Length: 9223372036854775807",
            BodyKind::Length(9_223_372_036_854_775_807),
        ),
        ("Transfer-Encoding: chunked", BodyKind::Chunked),
        ("transfer-encoding:Chunked", BodyKind::Chunked),
        ("X-Transfer-Encoding: nonsense", BodyKind::None),
    ];
    for (line, body) in cases {
        assert_eq!(
            request(&head(&["POST / HTTP/1.1", "Host: a", line])).body(),
            *body,
            "{line}"
        );
    }
}

#[test]
fn keep_alive() {
    let cases = [
        ("HTTP/1.1", "X: y", true),
        ("HTTP/1.1", "Connection: close", false),
        ("HTTP/1.1", "Connection: Keep-Alive, CLOSE", false),
        ("HTTP/1.0", "X: y", false),
        ("HTTP/1.0", "Connection: keep-alive", true),
        ("HTTP/1.0", "Connection: close, keep-alive", false),
    ];
    for (version, line, expected) in cases {
        let head = request(&head(&[&format!("GET / {version}"), "Host: a", line]));
        assert_eq!(head.keep_alive(), expected, "{version} {line}");
    }
}

#[test]
fn expect_continue() {
    let post = |version: &str, length: &str| {
        let line = format!("POST / {version}");
        let length = format!("Content-Length: {length}");
        request(&head(&[&line, "Host: a", &length, "Expect: 100-Continue"])).expects_continue()
    };
    assert!(post("HTTP/1.1", "5"));
    assert!(!post("HTTP/1.1", "0"), "there is nothing to wait for");
    assert!(!post("HTTP/1.0", "5"));
}

#[test]
fn upgrades() {
    let get = |version: &str, lines: &[&str]| {
        let line = format!("GET / {version}");
        let head = request(&head(&[&[line.as_str(), "Host: a"], lines].concat()));
        head.upgrade().map(str::to_owned)
    };
    let upgrade = "Connection: keep-alive, Upgrade";
    assert_eq!(
        get("HTTP/1.1", &[upgrade, "Upgrade: WebSocket"]).as_deref(),
        Some("websocket")
    );
    assert_eq!(get("HTTP/1.1", &["Upgrade: websocket"]), None);
    assert_eq!(get("HTTP/1.1", &[upgrade]), None);
    assert_eq!(get("HTTP/1.0", &[upgrade, "Upgrade: websocket"]), None);
    assert_eq!(get("HTTP/1.1", &[upgrade, "Upgrade: h2c"]), None);
    assert_eq!(get("HTTP/1.1", &[upgrade, "Upgrade: websocket, H2C"]), None);
    assert_eq!(
        get("HTTP/1.1", &[upgrade, "Upgrade: websocket", "Upgrade: h2c"]),
        None
    );
}

#[test]
fn what_is_read() {
    let bytes = b"\r\nGET / HTTP/1.0\r\nAccept:\t*/* \t\r\nEmpty:\r\n\r\nrest";
    let (head, consumed) = parse_request(bytes).unwrap().unwrap();
    assert_eq!(consumed, bytes.len() - 4);
    assert_eq!(head.bytes(), &bytes[2..consumed]);
    assert_eq!(
        (head.method(), head.version(), head.host()),
        ("GET", Version::Http10, None)
    );
    let fields: Vec<_> = head
        .headers()
        .iter()
        .map(|header| (header.name, header.value, header.line))
        .collect();
    assert_eq!(
        fields,
        [
            ("Accept", &b"*/*"[..], &b"Accept:\t*/* \t"[..]),
            ("Empty", b"", b"Empty:")
        ]
    );
    assert_eq!(head.headers().get("ACCEPT"), Some(&b"*/*"[..]));
}

#[test]
fn needs_more() {
    for bytes in [
        &b""[..],
        b"\r",
        b"\r\n",
        b"\r\n\r",
        b"G",
        b"GET / HTTP/1.1\r",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r",
    ] {
        assert_eq!(parse_request(bytes), Ok(None), "{}", bytes.escape_ascii());
    }
}

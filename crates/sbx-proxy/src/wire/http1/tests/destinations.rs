//! Requests whose destination, or whose very first line, two parsers could read differently.

use super::super::HeadError as E;
use super::{head, refused, request};

#[test]
fn hosts() {
    let get = |lines: &[&str]| head(&[&["GET / HTTP/1.1"], lines].concat());
    refused(&get(&["X: y"]), E::MissingHost);
    refused(&get(&["Host: a", "Host: a"]), E::DuplicateHost);
    refused(&get(&["Host: a", "host: b"]), E::DuplicateHost);
    refused(
        &head(&["GET / HTTP/1.0", "Host: a", "Host: b"]),
        E::DuplicateHost,
    );
    let bad = [
        "",
        "a b",
        "a,b",
        "a/b",
        "u@a",
        "a:",
        "a:0",
        "a:080",
        "a:+80",
        "a:65536",
        "a:80:80",
        "a:b",
        "[::1",
        "::1",
        "[::1]x",
        "[::1%25lo]",
        "[1.2.3.4]",
        "a%2e",
        "a#",
        "a?",
        "a\\b",
        "b\u{fc}cher.de",
        "http://a",
    ];
    for host in bad {
        refused(&get(&[&format!("Host: {host}")]), E::BadHost);
    }
}

#[test]
fn target_and_host_disagree() {
    let get = |target: &str, host: &str| {
        head(&[&format!("GET {target} HTTP/1.1"), &format!("Host: {host}")])
    };
    refused(&get("http://a/", "b"), E::HostMismatch);
    refused(&get("http://a/", "a:81"), E::HostMismatch);
    refused(&get("http://a:8080/", "a"), E::HostMismatch);
    refused(&get("http://a./", "a"), E::HostMismatch);
    refused(&get("http://[::1]/", "[::2]"), E::HostMismatch);
    let connect = |target: &str, host: &str| {
        head(&[
            &format!("CONNECT {target} HTTP/1.1"),
            &format!("Host: {host}"),
        ])
    };
    // No parser behind this one reads it there.
    for host in ["b:443", "a:444", "proxy:3128", "a"] {
        let head = request(&connect("a:443", host));
        assert_eq!(head.authority().unwrap().to_string(), "a:443");
    }
    refused(&connect("a:443", "a:b"), E::BadHost);
}

#[test]
fn targets() {
    let cases: &[(&str, E)] = &[
        ("GET http://u@a/ HTTP/1.1", E::UserInfo),
        ("GET http://u:p@a/ HTTP/1.1", E::UserInfo),
        ("GET http://a@b:80/ HTTP/1.1", E::UserInfo),
        ("GET https://a/ HTTP/1.1", E::UnsupportedScheme),
        ("GET ftp://a/ HTTP/1.1", E::UnsupportedScheme),
        ("GET file:///etc HTTP/1.1", E::UnsupportedScheme),
        ("GET http:///x HTTP/1.1", E::BadAuthority),
        ("GET http:// HTTP/1.1", E::BadAuthority),
        ("GET http://a\\b/ HTTP/1.1", E::BadAuthority),
        ("GET http://a%00/ HTTP/1.1", E::BadAuthority),
        ("GET a HTTP/1.1", E::BadTarget),
        ("GET a:80 HTTP/1.1", E::BadTarget),
        ("GET * HTTP/1.1", E::BadTarget),
        ("GET ?x HTTP/1.1", E::BadTarget),
        ("GET /#x HTTP/1.1", E::BadTarget),
        ("GET /a\tb HTTP/1.1", E::BadTarget),
        ("GET /\u{0} HTTP/1.1", E::BadTarget),
        ("GET /\u{85} HTTP/1.1", E::BadTarget),
        ("CONNECT a HTTP/1.1", E::NoPort),
        ("CONNECT / HTTP/1.1", E::BadAuthority),
        ("CONNECT http://a/ HTTP/1.1", E::BadAuthority),
        ("CONNECT u@a:443 HTTP/1.1", E::UserInfo),
        ("CONNECT a:0 HTTP/1.1", E::BadAuthority),
    ];
    for (line, expected) in cases {
        refused(&head(&[line, "Host: a"]), *expected);
    }
    refused(b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", E::BadTarget);
}

#[test]
fn request_lines() {
    let cases: &[(&str, E)] = &[
        ("GET /", E::BadRequestLine),
        ("GET", E::BadRequestLine),
        ("GET  / HTTP/1.1", E::BadRequestLine),
        ("GET /  HTTP/1.1", E::BadRequestLine),
        ("GET / HTTP/1.1 ", E::BadRequestLine),
        (" GET / HTTP/1.1", E::BadRequestLine),
        ("GET /a b HTTP/1.1", E::BadRequestLine),
        ("GET\t/\tHTTP/1.1", E::BadRequestLine),
        ("G(T / HTTP/1.1", E::BadMethod),
        ("GET\0 / HTTP/1.1", E::BadMethod),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.1", E::BadMethod),
        ("GET / HTTP/0.9", E::BadVersion),
        ("GET / HTTP/1.2", E::BadVersion),
        ("GET / HTTP/2.0", E::BadVersion),
        ("GET / HTTP/2", E::BadVersion),
        ("GET / HTTP/11", E::BadVersion),
        ("GET / HTTP/1.10", E::BadVersion),
        ("GET / HTTP/01.1", E::BadVersion),
        ("GET / http/1.1", E::BadVersion),
        ("GET / HTTP/1,1", E::BadVersion),
        ("GET / HTTPS/1.1", E::BadVersion),
        ("PRI * HTTP/2.0", E::BadVersion),
    ];
    for (line, expected) in cases {
        refused(&head(&[line, "Host: a"]), *expected);
    }
    refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", E::BadVersion);
}

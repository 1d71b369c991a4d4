//! Requests of which two parsers could think differently: refused, on record, and nothing of them goes out.

use super::entrances::hello;
use super::world::World;
use crate::audit::{Entrance, Outcome};
use crate::wire::h2;

/// Lines of a request without the empty one at the end.
const SHAPES: &[&[&str]] = &[
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: 5",
        "Content-Length: 6",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: 5",
        "Content-Length: 5",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: 5, 5",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: +5",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: 0x5",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: 05",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length: -1",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content-Length : 5",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Content_Length: 5",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Transfer-Encoding : chunked",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: x",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Transfer-Encoding:\u{b}chunked",
    ],
    &[
        "POST http://one.test/ HTTP/1.1",
        "Host: one.test",
        "X: a",
        " Transfer-Encoding: chunked",
    ],
    &[
        "POST http://one.test/ HTTP/1.0",
        "Host: one.test",
        "Transfer-Encoding: chunked",
    ],
    &[
        "GET http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Host: two.test",
    ],
    &["GET http://one.test/ HTTP/1.1", "Host: two.test"],
    &["GET http://one.test/ HTTP/1.1", "Host: one.test:81"],
    &["GET http://one.test@two.test/ HTTP/1.1", "Host: two.test"],
    &["GET http://one.test/ HTTP/1.1"],
    &[
        "GET http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Connection: Host",
    ],
    &[
        "GET http://one.test/ HTTP/1.1",
        "Host: one.test",
        "Connection: content-length",
    ],
    &[
        "GET http://one.test/ HTTP/1.1",
        "Host: one.test",
        "X: a\rY: b",
    ],
    &[
        "GET http://one.test/ HTTP/1.1",
        "Host: one.test",
        "X: a\nTransfer-Encoding: chunked",
    ],
    &["GET http://one.test/ HTTP/1.1", "Host: one.test", "X: \0"],
    &["GET http://one.test/ HTTP/1.1", "Host: one.test", ": empty"],
    &["GET  http://one.test/ HTTP/1.1", "Host: one.test"],
    &["GET http://one.test/ x HTTP/1.1", "Host: one.test"],
    &["GET\thttp://one.test/\tHTTP/1.1", "Host: one.test"],
    &["GET http://one.test/#x HTTP/1.1", "Host: one.test"],
    &["GE(T http://one.test/ HTTP/1.1", "Host: one.test"],
    &[
        "CONNECT one.test:443 HTTP/1.1",
        "Host: one.test",
        "Content-Length: 5",
    ],
];

#[tokio::test]
async fn none_gets_through() {
    let world = World::new(&["allow **"]).await;
    for lines in SHAPES {
        let mut client = world.forward().await;
        // What a parser that reads on would take for the next request.
        let hidden = "GET http://two.test/hidden HTTP/1.1\r\nHost: two.test\r\n\r\n";
        client
            .send(format!("{}\r\n\r\n{hidden}", lines.join("\r\n")))
            .await;
        let answer = client.rest().await;
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
            "{lines:?}: {answer}"
        );
        assert!(answer.contains("\r\nConnection: close\r\n"));
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{lines:?}: {answer}");
        client.leave().await;
        let line = world.last_line();
        assert_eq!(
            (line.entrance, line.verdict),
            (Entrance::Http, Outcome::Deny),
            "{lines:?}"
        );
        assert!(
            line.reason.starts_with("invalid request: "),
            "{}",
            line.reason
        );
    }
    assert!(world.dialled().is_empty());
    assert_eq!(world.lines().len(), SHAPES.len());
}

#[tokio::test]
async fn nor_on_the_transparent_path() {
    let world = World::new(&["allow **"]).await;
    let mut tried = 0;
    for lines in SHAPES {
        let [first, headers @ ..] = lines else {
            continue;
        };
        // Where the form of the first line is at fault, it is another one here.
        if !first.ends_with(" http://one.test/ HTTP/1.1") || first.contains('(') {
            continue;
        }
        if headers == ["Host: two.test"] || headers == ["Host: one.test:81"] {
            continue;
        }
        let first = first.replace("http://one.test/", "/");
        let request = [&[first.as_str()], headers].concat().join("\r\n");
        let mut client = world.transparent("192.0.2.1:80").await;
        client
            .send(request + "\r\n\r\nGET /hidden HTTP/1.1\r\nHost: two.test\r\n\r\n")
            .await;
        client.is_reset().await;
        client.leave().await;
        let line = world.last_line();
        assert_eq!(
            (line.entrance, line.verdict),
            (Entrance::Transparent, Outcome::Deny)
        );
        tried += 1;
    }
    assert!(tried > 18, "{tried}");
    assert!(world.dialled().is_empty());
}

/// Origins skip what they find before a request, each something else: then it is still one.
#[tokio::test]
async fn nothing_before_a_request_hides_it() {
    let world = World::new(&["allow **", "deny evil.test"]).await;
    for lead in [
        "\n",
        "\n\n",
        "\r\n\r\n",
        "\r\n\r\n\r\n",
        " ",
        "\t",
        "\r\r\n",
    ] {
        let mut client = world.transparent("192.0.2.1:80").await;
        client
            .send(format!("{lead}GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"))
            .await;
        client.is_reset().await;
        client.leave().await;
        assert_eq!(world.last_line().verdict, Outcome::Deny, "{lead:?}");
    }
    let mut client = world.transparent("192.0.2.1:80").await;
    client
        .send("GET\t/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        .await;
    client.is_reset().await;
    client.leave().await;
    assert_eq!(world.last_line().verdict, Outcome::Deny);
    assert!(world.dialled().is_empty());
}

/// A denied name behind first words that are not taken for what they are, at an address that is allowed.
#[tokio::test]
async fn nor_does_a_first_message_of_another_kind() {
    let request = "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let behind = |line: &str| format!("{line}\r\nHost: one.test\r\n\r\n{request}").into_bytes();
    let recorded = |major, minor| {
        let mut bytes = hello(Some("evil.test"));
        bytes[1..3].copy_from_slice(&[major, minor]);
        bytes
    };
    let world = World::new(&["allow 192.0.2.1", "deny evil.test"]).await;
    for words in [
        behind("PROPFIND ftp://one.test/ HTTP/1.1"),
        behind("REPORT ws://one.test/ HTTP/1.1"),
        behind("SEARCH x:/y HTTP/1.1"),
        behind("FOO bar HTTP/1.1"),
        recorded(3, 5),
        recorded(3, 255),
        recorded(2, 1),
        recorded(9, 9),
        h2::PREFACE.to_vec(),
    ] {
        let mut client = world.transparent("192.0.2.1:80").await;
        client.send(&words).await;
        client.is_reset().await;
        client.leave().await;
        let words = words.escape_ascii();
        assert_eq!(world.last_line().verdict, Outcome::Deny, "{words}");
    }
    assert!(world.dialled().is_empty());
}

#[tokio::test]
async fn heads_without_measure() {
    let world = World::new(&["allow **"]).await;
    let long = format!("X: {}\r\n", "x".repeat(70_000));
    let many = "X: y\r\n".repeat(5_000);
    for headers in [long, many] {
        let mut client = world.forward().await;
        client
            .send(format!(
                "GET http://one.test/ HTTP/1.1\r\nHost: one.test\r\n{headers}"
            ))
            .await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        client.leave().await;
        assert_eq!(world.last_line().verdict, Outcome::Deny);
    }
    for (first, status) in [
        ("GET http://one.test/ HTTP/2.0", "505"),
        ("GET http://one.test/ HTTP/1.2", "505"),
    ] {
        let mut client = world.forward().await;
        client
            .send(format!("{first}\r\nHost: one.test\r\n\r\n"))
            .await;
        let answer = client.rest().await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    assert!(world.dialled().is_empty());
}

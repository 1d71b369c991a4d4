//! Plain HTTP, passed on as it came.

use tokio::io::AsyncWriteExt;

use super::origin::{answers, head, ok, say};
use super::world::{World, exactly, get, rest};
use crate::audit::{Entrance, Outcome, Via};

#[tokio::test]
async fn each_request_on_a_connection_has_its_own_verdict() {
    let world = World::new(&["allow one.test", "allow *.wild.test", "deny b.wild.test"]).await;
    let mut client = world.forward().await;
    let mut first = {
        client.send(get("one.test")).await;
        let mut origin = world.arrives().await;
        assert!(
            head(&mut origin)
                .await
                .starts_with("GET /x HTTP/1.1\r\nHost: one.test\r\n")
        );
        say(&mut origin, ok("1")).await;
        client.hears(&ok("1")).await;
        origin
    };
    // The same origin again: the same connection.
    client.send(get("one.test")).await;
    answers(&mut first, &mut client, "2").await;
    // Another one: another connection.
    client.send(get("a.wild.test")).await;
    let mut second = world.arrives().await;
    answers(&mut second, &mut client, "3").await;
    client.send(get("b.wild.test")).await;
    let denied = client.rest().await;
    assert!(denied.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{denied}");
    client.leave().await;
    let dialled: Vec<_> = world.dialled().iter().map(ToString::to_string).collect();
    assert_eq!(dialled, ["192.0.2.1:80", "192.0.2.11:80"]);
    let lines = world.lines();
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.host.as_str(), line.verdict, line.rule.as_deref()))
        .collect();
    let (allow, deny) = (Outcome::Allow, Outcome::Deny);
    assert_eq!(
        seen,
        [
            ("one.test", allow, Some("r0")),
            ("one.test", allow, Some("r0")),
            ("a.wild.test", allow, Some("r1")),
            ("b.wild.test", deny, Some("r2")),
        ]
    );
    assert!(
        lines
            .iter()
            .all(|line| (line.entrance, line.proxy) == (Entrance::Http, Via::Forward))
    );
    assert_eq!(lines[0].address, "192.0.2.1:80".parse().ok());
    assert_eq!(lines[0].received, ok("1").len() as u64);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let world = World::new(&["allow one.test", "allow two.test"]).await;
    let mut client = world.forward().await;
    client
        .send(get("one.test") + &get("one.test") + &get("two.test"))
        .await;
    // With the end of what the client says behind it: it still gets its answers.
    client.stream.shutdown().await.unwrap();
    let mut one = world.arrives().await;
    for answer in ["1", "2"] {
        answers(&mut one, &mut client, answer).await;
    }
    let mut two = world.arrives().await;
    answers(&mut two, &mut client, "3").await;
    assert_eq!(client.rest().await, "");
    client.leave().await;
    assert_eq!(world.lines().len(), 3);
}

#[tokio::test]
async fn headers_for_this_hop_end_here() {
    let world = World::new(&["allow one.test"]).await;
    let mut client = world.forward().await;
    client
        .send(
            "GET http://one.test/a?b HTTP/1.1\r\nHost: one.test\r\nProxy-Connection: keep-alive\r\n\
             Proxy-Authorization: Basic eDp5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Stays: 2\r\n\r\n",
        )
        .await;
    let mut origin = world.arrives().await;
    let got = head(&mut origin).await;
    let expected =
        "GET /a?b HTTP/1.1\r\nHost: one.test\r\nConnection: keep-alive\r\nX-Stays: 2\r\n\r\n";
    assert_eq!(got, expected);
}

#[tokio::test]
async fn a_service_of_the_host_knows_itself_by_another_name() {
    let world = World::new(&["allow localhost:8080"]).await;
    let mut client = world.forward().await;
    client.send(get("host.docker.internal:8080")).await;
    let mut origin = world.arrives().await;
    let got = head(&mut origin).await;
    assert_eq!(got, "GET /x HTTP/1.1\r\nHost: localhost:8080\r\n\r\n");
    // The same for a program that knows of no proxy.
    let mut client = world.transparent("10.0.2.3:8080").await;
    client
        .send("GET /y HTTP/1.1\r\nHost: host.docker.internal:8080\r\n\r\n")
        .await;
    let mut origin = world.arrives().await;
    let got = head(&mut origin).await;
    assert_eq!(got, "GET /y HTTP/1.1\r\nHost: localhost:8080\r\n\r\n");
    assert_eq!(world.dialled(), ["127.0.0.1:8080".parse().unwrap(); 2]);
    let mut client = world.forward().await;
    client.send(get("host.docker.internal:8081")).await;
    assert!(client.rest().await.contains("localhost:8081"));
    assert!(world.dialled().is_empty());
}

#[tokio::test]
async fn the_host_header_does_not_lead_elsewhere() {
    let world = World::new(&["allow one.test", "allow two.test", "allow 192.0.2.9"]).await;
    let request = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-A:  odd \r\n\r\n");
    let mut client = world.transparent("192.0.2.1:8000").await;
    client.send(request("one.test:1")).await;
    let mut origin = world.arrives().await;
    // Byte for byte.
    assert_eq!(head(&mut origin).await, request("one.test:1"));
    say(&mut origin, ok("")).await;
    client.hears(&ok("")).await;
    // An allowed name with another address: it is checked by the address, where no rule allows anything.
    client.send(request("two.test")).await;
    client.is_reset().await;
    client.leave().await;
    let line = world.last_line();
    assert_eq!(
        (line.verdict, line.host.as_str()),
        (Outcome::Deny, "two.test")
    );
    assert!(
        line.reason
            .contains("192.0.2.1 is not an address of two.test"),
        "{}",
        line.reason
    );
    // An address that a rule allows: there it goes, whatever the header says.
    let mut client = world.transparent("192.0.2.9:80").await;
    client.send(request("two.test")).await;
    head(&mut world.arrives().await).await;
    let dialled: Vec<_> = world.dialled().iter().map(ToString::to_string).collect();
    assert_eq!(dialled, ["192.0.2.1:8000", "192.0.2.9:80"]);
}

#[tokio::test]
async fn an_origin_that_does_not_answer() {
    let world = World::new(&["allow *.test"]).await;
    world.refuse(true);
    let mut client = world.forward().await;
    client.send(get("one.test")).await;
    let answer = client.rest().await;
    assert!(
        answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
        "{answer}"
    );
    assert!(answer.contains("cannot connect to one.test:80"), "{answer}");
    client.leave().await;
    let line = world.last_line();
    assert_eq!(line.verdict, Outcome::Allow);
    assert!(line.error.unwrap().contains("refused"));
    // A name without an address.
    let mut client = world.forward().await;
    client.send(get("no.test")).await;
    assert!(client.rest().await.contains("the name has no address"));
    let mut client = world.forward().await;
    client
        .send("CONNECT one.test:443 HTTP/1.1\r\nHost: one.test\r\n\r\n")
        .await;
    assert!(client.rest().await.starts_with("HTTP/1.1 502 "));
    let mut client = world.forward().await;
    client
        .send([5, 1, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 80])
        .await;
    assert_eq!(
        client.rest().await.as_bytes(),
        [5, 0, 5, 4, 0, 1, 0, 0, 0, 0, 0, 0]
    );
}

#[tokio::test]
async fn an_origin_that_breaks_its_word() {
    let world = World::new(&["allow one.test"]).await;
    for nonsense in [
        "",
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let (mut client, mut origin) = world.request(get("one.test")).await;
        say(&mut origin, nonsense).await;
        drop(origin);
        let answer = client.rest().await;
        assert!(
            answer.starts_with("HTTP/1.1 502 "),
            "{nonsense:?}: {answer}"
        );
        client.leave().await;
        assert!(world.last_error().starts_with("the origin failed"));
    }
    // Less than it promised: the client must be able to tell.
    let (mut client, mut origin) = world.request(get("one.test")).await;
    say(
        &mut origin,
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
    )
    .await;
    drop(origin);
    assert!(client.rest().await.ends_with("\r\n\r\nshort"));
}

#[tokio::test]
async fn an_origin_that_closes_what_was_kept() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.request(get("one.test")).await;
    say(&mut origin, ok("1")).await;
    client.hears(&ok("1")).await;
    // The request crossed the goodbye: the client need not know.
    client.send(get("one.test")).await;
    head(&mut origin).await;
    drop(origin);
    let mut origin = world.arrives().await;
    answers(&mut origin, &mut client, "2").await;
    // What must not be said twice is not.
    let post = "POST http://one.test/ HTTP/1.1\r\nHost: one.test\r\nContent-Length: 2\r\n\r\nhi";
    client.send(post).await;
    head(&mut origin).await;
    assert_eq!(exactly(&mut origin, 2).await, "hi");
    drop(origin);
    assert!(client.rest().await.starts_with("HTTP/1.1 502 "));
    client.leave().await;
    assert_eq!(world.dialled().len(), 2);
}

#[tokio::test]
async fn the_last_request_of_a_connection() {
    let world = World::new(&["allow one.test"]).await;
    for (request, response) in [
        ("GET http://one.test/ HTTP/1.0\r\n\r\n", ok("x")),
        (
            "GET http://one.test/ HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n",
            ok("x"),
        ),
        (
            &get("one.test"),
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx".into(),
        ),
        (
            &get("one.test"),
            "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx".into(),
        ),
    ] {
        let mut client = world.forward().await;
        client.send(request).await;
        let mut origin = world.arrives().await;
        assert!(head(&mut origin).await.contains("Host: one.test\r\n"));
        say(&mut origin, &response).await;
        assert_eq!(client.rest().await, response);
        assert_eq!(rest(&mut origin).await, "");
    }
}

#[tokio::test]
async fn requests_that_are_not_for_a_proxy() {
    let world = World::new(&["allow **"]).await;
    for request in [
        "GET / HTTP/1.1\r\nHost: one.test\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: one.test\r\n\r\n",
        "GET https://one.test/ HTTP/1.1\r\nHost: one.test\r\n\r\n",
        "CONNECT one.test HTTP/1.1\r\nHost: one.test\r\n\r\n",
        "CONNECT 1.2.3.4.5:443 HTTP/1.1\r\nHost: 1.2.3.4.5:443\r\n\r\n",
    ] {
        let mut client = world.forward().await;
        client.send(request).await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?}: {answer}");
        client.leave().await;
        assert_eq!(world.last_line().verdict, Outcome::Deny);
    }
    // And those that are, sent to another host.
    for request in [
        "GET http://one.test:8080/ HTTP/1.1\r\nHost: one.test:8080\r\n\r\n",
        "CONNECT one.test:443 HTTP/1.1\r\nHost: one.test\r\n\r\n",
    ] {
        let mut client = world.transparent("192.0.2.1:80").await;
        client.send(request).await;
        client.is_reset().await;
        client.leave().await;
        assert_eq!(world.last_line().verdict, Outcome::Deny);
    }
    let line = world.last_line();
    assert_eq!((line.host.as_str(), line.port), ("one.test", Some(443)));
    assert!(world.dialled().is_empty());
}

/// A server takes a request with its whole address (RFC 9112, 3.2.2), and so does who stands before it.
#[tokio::test]
async fn a_whole_address_for_the_server_itself() {
    let world = World::new(&["allow one.test", "allow 192.0.2.1", "deny two.test"]).await;
    let request = "GET http://one.test/x HTTP/1.1\r\nHost: one.test\r\n\r\n";
    let mut client = world.transparent("192.0.2.1:80").await;
    client.send(request).await;
    let mut origin = world.arrives().await;
    assert_eq!(head(&mut origin).await, request);
    say(&mut origin, ok("1")).await;
    client.hears(&ok("1")).await;
    // It is checked by what it says.
    let mut client = world.transparent("192.0.2.1:80").await;
    client
        .send("GET http://two.test/x HTTP/1.1\r\nHost: two.test\r\n\r\n")
        .await;
    client.is_reset().await;
}

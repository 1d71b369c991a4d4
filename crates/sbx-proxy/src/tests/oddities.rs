//! Clients and origins that behave badly, or only oddly.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::net::sockopt::set_socket_linger;
use sbx_policy::{LocalAddresses, Policy};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use super::origin::{answers, head, ok, say};
use super::world::{World, exactly, get, rest, rules};
use crate::audit::{self, Outcome, Part};
use crate::ca::{self, Authority};
use crate::limits::ConnectionBudget;
use crate::{Proxy, Settings, Sockets, system_dial};

/// From here on the clock jumps to the next deadline whenever nothing moves.
async fn closed_after(client: &mut super::world::Client) -> Duration {
    tokio::time::pause();
    let started = tokio::time::Instant::now();
    assert_eq!(client.rest().await, "");
    tokio::time::resume();
    started.elapsed()
}

#[tokio::test]
async fn an_unfinished_request_times_out() {
    let world = World::new(&["allow **"]).await;
    for (words, seconds) in [
        ("", 30),
        ("G", 20),
        ("GET http://one.test/ HTTP/1.1\r\nHost: on", 20),
        ("\u{5}", 20),
        ("\u{5}\u{1}", 20),
    ] {
        let mut client = world.forward().await;
        client.send(words).await;
        tokio::task::yield_now().await;
        let waited = closed_after(&mut client).await.as_secs();
        assert!(
            (seconds - 1..=seconds + 1).contains(&waited),
            "{words:?}: {waited}"
        );
    }
    for words in ["GET / HTTP/1.1\r\n", "\u{16}\u{3}\u{1}\u{1}\u{1}\u{1}"] {
        let mut client = world.transparent("192.0.2.1:80").await;
        client.send(words).await;
        tokio::time::pause();
        client.is_reset().await;
        tokio::time::resume();
        client.leave().await;
        assert_eq!(world.last_line().reason, "its first message is incomplete");
    }
    assert!(world.dialled().is_empty());
}

/// Many protocols begin with a word and wait for an answer to it.
#[tokio::test]
async fn first_bytes_of_an_unknown_protocol_are_passed_on() {
    let world = World::new(&["allow **"]).await;
    let word = async |text: &str| {
        let mut client = world.transparent("192.0.2.1:80").await;
        client.send(text).await;
        let mut origin = world.arrives().await;
        assert_eq!(exactly(&mut origin, text.len()).await, text);
        (client, origin)
    };
    for text in [
        "JDWP-Handshake",
        "P",
        "GET",
        "PRI",
        "AUTH ",
        "ping",
        "\r\n\n",
    ] {
        let (mut client, mut origin) = word(text).await;
        origin.write_all(b"answer").await.unwrap();
        client.hears("answer").await;
        // What comes next is of no known protocol.
        client.send("\u{1}\u{2}").await;
        assert_eq!(exactly(&mut origin, 2).await, "\u{1}\u{2}");
    }
    // Nor is it a way around what requests are checked by, however slowly they come.
    for (text, more) in [
        ("GET", " / HTTP/1.1\r\nHost: other.test\r\n\r\n"),
        ("PROPFIND", " / HTTP/1.1\r\nHost: other.test\r\n\r\n"),
        ("PRI", " * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("\n\n", "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"),
    ] {
        let (mut client, mut origin) = word(text).await;
        client.send(more).await;
        assert_eq!(rest(&mut origin).await, "", "{text}");
        assert_eq!(client.rest().await, "", "{text}");
        client.leave().await;
        let error = world.last_error();
        assert!(
            error.contains("began as another protocol"),
            "{text}: {error}"
        );
        assert_eq!(world.last_line().sent, text.len() as u64, "{text}");
    }
}

/// Some say a word and wait.
#[tokio::test]
async fn a_connection_is_logged_once_bytes_were_sent() {
    let world = World::new(&["allow **"]).await;
    let mut client = world.transparent("192.0.2.1:80").await;
    client.send("AUTH ").await;
    let mut origin = world.arrives().await;
    assert_eq!(exactly(&mut origin, 5).await, "AUTH ");
    assert_eq!(world.last_line().phase, audit::Phase::Open);
}

/// One byte at a time does not buy more time.
#[tokio::test]
async fn a_trickle_has_the_same_deadline() {
    let world = World::new(&["allow **"]).await;
    let mut client = world.forward().await;
    tokio::time::pause();
    let started = tokio::time::Instant::now();
    while client.stream.write_all(b"G").await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if client.stream.try_read(&mut [0]).is_ok_and(|read| read == 0) {
            break;
        }
    }
    assert!(started.elapsed() < Duration::from_secs(25));
}

#[tokio::test]
async fn a_kept_connection_is_not_kept_forever() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.request(get("one.test")).await;
    say(&mut origin, ok("")).await;
    client.hears(&ok("")).await;
    let waited = closed_after(&mut client).await.as_secs();
    assert!((74..=76).contains(&waited), "{waited}");
    assert_eq!(rest(&mut origin).await, "");
}

#[tokio::test]
async fn garbage_first_bytes() {
    let world = World::new(&["allow 192.0.2.1", "allow one.test"]).await;
    for words in [&[0; 100][..], &[0xff; 5000], b"\r\n\r\n\r\n", b"\0\x05\x01"] {
        let mut client = world.forward().await;
        client.send(words).await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{words:?}: {answer}");
        client.leave().await;
    }
    assert!(world.dialled().is_empty());
    // To an address that is allowed they may go: it is the other side's business.
    let mut client = world.transparent("192.0.2.1:9999").await;
    client.send([0; 100]).await;
    let mut origin = world.arrives().await;
    assert_eq!(exactly(&mut origin, 100).await, "\0".repeat(100));
}

#[tokio::test]
async fn a_reset_reaches_the_other_side() {
    let world = World::new(&["allow one.test"]).await;
    for request in [
        "GET http://one.test/ HTTP/1.1\r\nHost: one.test\r\n\r\n",
        "CONNECT one.test:443 HTTP/1.1\r\nHost: one.test:443\r\n\r\n",
    ] {
        for half_closed in [false, true] {
            let mut client = world.forward().await;
            client.send(request).await;
            let mut origin = world.arrives().await;
            if request.starts_with("GET") {
                head(&mut origin).await;
            } else {
                client.until("\r\n\r\n").await;
            }
            if half_closed {
                // It says goodbye, which the origin hears, and still waits for an answer.
                client.stream.shutdown().await.unwrap();
                assert_eq!(rest(&mut origin).await, "");
            }
            // The origin says nothing: only the break itself can end this.
            set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
            client.leave().await;
            assert_eq!(rest(&mut origin).await, "");
        }
    }
}

#[tokio::test]
async fn a_client_that_has_said_everything_gets_its_answer() {
    let world = World::new(&["allow one.test"]).await;
    let mut client = world.forward().await;
    client.send(get("one.test")).await;
    client.stream.shutdown().await.unwrap();
    let mut origin = world.arrives().await;
    head(&mut origin).await;
    assert_eq!(rest(&mut origin).await, "");
    say(&mut origin, ok("late")).await;
    assert_eq!(client.rest().await, ok("late"));
}

/// An origin that answers and stops reading: its last words arrive although the client's do not.
#[tokio::test]
async fn last_words_through_a_tunnel() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.tunnel("one.test").await;
    client.send(vec![b'x'; 100_000]).await;
    exactly(&mut origin, 1000).await;
    let last: String = "last words ".repeat(1000);
    say(&mut origin, &last).await;
    // There is something left to read: this breaks the connection, and the client is still talking.
    drop(origin);
    client.stream.try_write(b"more").unwrap();
    let got = client.rest().await;
    assert_eq!(got.len(), last.len());
}

#[tokio::test]
async fn connections_are_on_record_before_their_first_byte() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.tunnel("one.test").await;
    client.send("hello").await;
    assert_eq!(exactly(&mut origin, 5).await, "hello");
    let open = world.last_line();
    assert_eq!((open.phase, open.sent), (audit::Phase::Open, 0));
    assert_eq!(open.host, "one.test");
    drop(origin);
    client.leave().await;
    let closed = world.last_line();
    assert_eq!((closed.phase, closed.id), (audit::Phase::Closed, open.id));
    assert_eq!(closed.sent, 5);
    assert_eq!(world.all_lines().len(), 2);
}

/// The connection is on record; a request more on it is a line more.
#[tokio::test]
async fn a_request_on_the_same_way_is_one_line() {
    let world = World::new(&["allow one.test", "allow two.test"]).await;
    world.resolves("two.test", &[&["192.0.2.1"]]);
    let mut client = world.forward().await;
    client.send(get("one.test")).await;
    let mut origin = world.arrives().await;
    answers(&mut origin, &mut client, "1").await;
    client.send(get("one.test")).await;
    answers(&mut origin, &mut client, "2").await;
    // Another name is another decision, wherever it leads.
    client.send(get("two.test")).await;
    answers(&mut origin, &mut client, "3").await;
    client.leave().await;
    let phases: Vec<_> = (world.all_lines().iter())
        .map(|line| (line.host.clone(), line.phase))
        .collect();
    let (one, two) = ("one.test".to_owned(), "two.test".to_owned());
    let (open, closed) = (audit::Phase::Open, audit::Phase::Closed);
    assert_eq!(
        phases,
        [
            (one.clone(), open),
            (one.clone(), closed),
            (one, closed),
            (two.clone(), open),
            (two, closed),
        ]
    );
}

/// The real thing: a thread of its own, with sockets that it is given.
#[test]
fn an_outlet_serves_its_sockets_until_it_is_dropped() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let made = ca::create("one", now).unwrap();
    let settings = Settings {
        sandbox: "one".into(),
        log_dir: dir.path().into(),
        authority: Authority::load("one", &made.key_pem, now).unwrap(),
        local_addresses: Arc::new(|_| LocalAddresses::default()),
        lookup: Arc::new(|_| Box::pin(std::future::pending())),
        rule_time: Arc::new(Timestamp::now),
        dial: system_dial(),
        max_connections: 10,
        budget: Arc::new(ConnectionBudget::with_room(10)),
        bypass: Arc::new(|_| false),
    };
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let address = tcp.local_addr().unwrap();
    let (policy, watched) = watch::channel(Policy::compile(rules(&["allow 127.0.0.1"])));
    let sockets = Sockets {
        tcp: vec![OwnedFd::from(tcp)],
        ..Sockets::default()
    };
    let proxy = Proxy::start(settings, watched, sockets).unwrap();
    // No redirect: the address that was dialled is its own, and means nothing outside.
    let mut client = std::net::TcpStream::connect(address).unwrap();
    // It may be refused before it has said anything.
    let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    let mut open = std::net::TcpStream::connect(address).unwrap();
    drop((policy, proxy));
    assert!(matches!(open.read(&mut [0]), Ok(0) | Err(_)));
    assert!(std::net::TcpStream::connect(address).is_err());
    let log = std::fs::read_to_string(audit::file(dir.path(), "one", Part::Denied)).unwrap();
    let line: audit::Line = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(
        (line.verdict, line.reason.as_str()),
        (Outcome::Deny, "an address of the sandbox itself")
    );
}

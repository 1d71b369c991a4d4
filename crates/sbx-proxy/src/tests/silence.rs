//! Programs without a proxy that do not speak first.

use tokio::io::AsyncWriteExt;

use super::entrances::hello;
use super::origin::{answers, hears_nothing, say};
use super::resolving::lookup;
use super::world::{World, exactly, rest};
use crate::audit::{Outcome, Via};

const BANNER: &str = "SSH-2.0-OpenSSH_9.2p1\r\n";

#[tokio::test]
async fn a_server_that_speaks_first() {
    let world = World::new(&["allow one.test:22", "allow 192.0.2.9:25"]).await;
    lookup(&world, "one.test").await.unwrap();
    for (address, banner, words) in [
        ("192.0.2.1:22", BANNER, "SSH-2.0-client comment\r\n"),
        ("192.0.2.9:25", "220 mail ESMTP\r\n", "EHLO me\r\n"),
    ] {
        let mut client = world.transparent(address).await;
        let mut origin = world.arrives().await;
        say(&mut origin, banner).await;
        client.hears(banner).await;
        client.send(words).await;
        assert_eq!(exactly(&mut origin, words.len()).await, words);
        say(&mut origin, "more").await;
        client.hears("more").await;
        client.stream.shutdown().await.unwrap();
        assert_eq!(rest(&mut origin).await, "");
        drop(origin);
        client.leave().await;
        let line = world.last_line();
        assert_eq!((line.verdict, line.proxy), (Outcome::Allow, Via::Network));
        assert_eq!(line.address, address.parse().ok());
        assert_eq!(line.sent, words.len() as u64);
    }
    let lines = world.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.host == "one.test" && line.rule.as_deref() == Some("r0"))
    );
}

/// A client that waits for the banner and then names a denied host does not reach the server.
#[tokio::test]
async fn a_silent_client_cannot_avoid_name_rules() {
    let world = World::new(&["allow 192.0.2.0/24", "deny two.test"]).await;
    for words in [
        hello(Some("two.test")),
        b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: two.test\r\n".to_vec(),
        b"\x16\x03\x01\x00\x02\x01\x00".to_vec(),
    ] {
        let mut client = world.transparent("192.0.2.2:443").await;
        let mut origin = world.arrives().await;
        say(&mut origin, "hello\r\n").await;
        client.hears("hello\r\n").await;
        client.send(&words).await;
        client.stream.shutdown().await.unwrap();
        assert_eq!(client.rest().await, "");
        hears_nothing(origin).await;
        client.leave().await;
        assert!(world.last_error().starts_with("cut: "));
    }
    let denied = world
        .lines()
        .into_iter()
        .find(|line| line.verdict == Outcome::Deny)
        .unwrap();
    assert_eq!(
        (denied.host.as_str(), denied.rule.as_deref()),
        ("two.test", Some("r1"))
    );
    // The same when neither side spoke before: it is checked as if it had not been slow.
    let mut client = world.transparent("192.0.2.2:443").await;
    let origin = world.arrives().await;
    client.send(hello(Some("two.test"))).await;
    client.is_reset().await;
    hears_nothing(origin).await;
}

#[tokio::test]
async fn a_slow_client_is_served_by_what_it_says() {
    let world = World::new(&["allow 192.0.2.1", "allow one.test"]).await;
    let mut client = world.transparent("192.0.2.1:443").await;
    let mut origin = world.arrives().await;
    client.send(hello(Some("one.test"))).await;
    assert_eq!(exactly(&mut origin, 3).await, "\u{16}\u{3}\u{1}");
    drop(origin);
    client.leave().await;
    // One line, with the name that came late.
    let lines = world.lines();
    assert_eq!((lines.len(), lines[0].host.as_str()), (1, "one.test"));
    assert_eq!(lines[0].proxy, Via::Transparent);
    // Each request is checked by itself.
    world.set(&["allow 192.0.2.1", "deny two.test"]);
    let mut client = world.transparent("192.0.2.1:80").await;
    let origin = world.arrives().await;
    client
        .send("GET / HTTP/1.1\r\nHost: one.test\r\n\r\n")
        .await;
    let mut second = world.arrives().await;
    hears_nothing(origin).await;
    answers(&mut second, &mut client, "").await;
    client
        .send("GET / HTTP/1.1\r\nHost: two.test\r\n\r\n")
        .await;
    client.is_reset().await;
}

#[tokio::test]
async fn a_name_that_comes_late_can_still_open_its_address() {
    let world = World::new(&["allow one.test"]).await;
    let mut client = world.transparent("192.0.2.1:443").await;
    // By its address alone it may not go there, and nothing is dialled.
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    tokio::time::resume();
    assert!(world.dialled().is_empty());
    client.send(hello(Some("one.test"))).await;
    let mut origin = world.arrives().await;
    exactly(&mut origin, 3).await;
}

#[tokio::test]
async fn silence_where_nothing_is_allowed_ends_soon() {
    let world = World::new(&["deny 192.0.2.2"]).await;
    for address in ["192.0.2.1:22", "192.0.2.2:22"] {
        let mut client = world.transparent(address).await;
        let started = tokio::time::Instant::now();
        tokio::time::pause();
        client.is_reset().await;
        assert!(started.elapsed().as_secs() < 10);
        tokio::time::resume();
        client.leave().await;
        assert_eq!(world.last_line().verdict, Outcome::Deny);
    }
    assert!(world.dialled().is_empty());
}

#[tokio::test]
async fn a_silent_client_whose_server_does_not_answer_is_told_at_once() {
    let world = World::new(&["allow 192.0.2.1"]).await;
    world.refuse(true);
    let mut client = world.transparent("192.0.2.1:22").await;
    client.is_reset().await;
    client.leave().await;
    let line = world.last_line();
    assert!(line.verdict == Outcome::Allow && line.error.is_some());
}

#[tokio::test]
async fn a_client_that_only_listens() {
    let world = World::new(&["allow 192.0.2.1"]).await;
    for late in [false, true] {
        let mut client = world.transparent("192.0.2.1:13").await;
        let mut origin;
        if late {
            origin = world.arrives().await;
            client.stream.shutdown().await.unwrap();
        } else {
            client.stream.shutdown().await.unwrap();
            origin = world.arrives().await;
        }
        assert_eq!(rest(&mut origin).await, "");
        say(&mut origin, "12 o'clock").await;
        drop(origin);
        assert_eq!(client.rest().await, "12 o'clock");
        client.leave().await;
    }
    // A client that connects and leaves is on record: it reached the server.
    let client = world.transparent("192.0.2.1:13").await;
    let origin = world.arrives().await;
    drop(client.stream);
    drop(origin);
    client.served.await.unwrap();
    assert_eq!(world.lines().len(), 3);
    assert!(
        world
            .lines()
            .iter()
            .all(|line| line.address == "192.0.2.1:13".parse().ok())
    );
}

/// No name that it could still say would open that port.
#[tokio::test]
async fn a_closed_port_resets_a_silent_client() {
    let world = World::new(&["allow one.test:443"]).await;
    for (port, timeout) in [(25, 1), (443, 6)] {
        let mut client = world.transparent(&format!("192.0.2.1:{port}")).await;
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        client.is_reset().await;
        let took = began.elapsed();
        tokio::time::resume();
        let seconds = std::time::Duration::from_secs(timeout);
        assert!(took < seconds, "{port}: {took:?}");
    }
}

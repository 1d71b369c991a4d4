//! Rules that change while connections are open.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::entrances::hello;
use super::origin::{answers, ok, say};
use super::world::{Client, World, exactly, get, rules, soon};
use crate::audit::Outcome;
use crate::wire::h2;

const BOTH: &[&str] = &["allow one.test", "allow two.test"];

/// A tunnel that works.
async fn works(client: &mut Client, origin: &mut TcpStream) {
    client.send("ping").await;
    assert_eq!(exactly(origin, 4).await, "ping");
    say(origin, "pong").await;
    client.hears("pong").await;
}

/// It is broken off on both sides, and nothing that was said then gets through.
async fn is_cut(world: &World, mut client: Client, mut origin: TcpStream, reason: &str) {
    client.is_reset().await;
    let mut got = Vec::new();
    let _ = soon(origin.read_to_end(&mut got)).await;
    assert_eq!(String::from_utf8_lossy(&got), "");
    client.leave().await;
    let line = world.last_line();
    assert_eq!(line.verdict, Outcome::Allow);
    let error = line.error.unwrap();
    assert!(
        error.starts_with("cut: ") && error.contains(reason),
        "{error}"
    );
}

async fn connected(world: &World, host: &str) -> (Client, TcpStream) {
    let (mut client, mut origin) = world.tunnel(host).await;
    works(&mut client, &mut origin).await;
    (client, origin)
}

async fn socks(world: &World) -> (Client, TcpStream) {
    let mut client = world.forward().await;
    client
        .send(b"\x05\x01\x00\x05\x01\x00\x03\x08one.test\x00\x16")
        .await;
    assert_eq!(exactly(&mut client.stream, 12).await.as_bytes()[3], 0);
    let mut origin = world.arrives().await;
    works(&mut client, &mut origin).await;
    (client, origin)
}

async fn transparent(world: &World) -> (Client, TcpStream) {
    let mut client = world.transparent("192.0.2.1:443").await;
    let hello = hello(Some("one.test"));
    client.send(&hello).await;
    let mut origin = world.arrives().await;
    let mut got = vec![0; hello.len()];
    soon(origin.read_exact(&mut got)).await.unwrap();
    works(&mut client, &mut origin).await;
    (client, origin)
}

/// In the middle of both bodies.
async fn exchanging(world: &World) -> (Client, TcpStream) {
    let request =
        "POST http://one.test/ HTTP/1.1\r\nHost: one.test\r\nContent-Length: 1000\r\n\r\n";
    let (mut client, mut origin) = world.request(request).await;
    say(
        &mut origin,
        "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
    )
    .await;
    client.until("\r\n\r\n").await;
    works(&mut client, &mut origin).await;
    (client, origin)
}

#[tokio::test]
async fn what_is_denied_is_cut_and_the_rest_stays() {
    let world = World::new(BOTH).await;
    let (mut other, mut other_origin) = connected(&world, "two.test").await;
    for n in 0..4 {
        let (client, origin) = match n {
            0 => connected(&world, "one.test").await,
            1 => socks(&world).await,
            2 => transparent(&world).await,
            _ => exchanging(&world).await,
        };
        // A change that does not concern it.
        world.set(&["allow one.test", "allow two.test", "deny a.wild.test"]);
        let (mut client, mut origin) = (client, origin);
        works(&mut client, &mut origin).await;
        // A deny, in the middle of a word that is not on its way yet.
        world.set(&["allow one.test", "allow two.test", "deny one.test"]);
        client.send("secret").await;
        is_cut(&world, client, origin, "one.test").await;
        works(&mut other, &mut other_origin).await;
        world.set(BOTH);
    }
    // An allow that is gone, and a deny of the address.
    for texts in [
        &["allow two.test"][..],
        &["allow one.test", "deny 192.0.2.1", "allow two.test"],
    ] {
        let (client, origin) = connected(&world, "one.test").await;
        world.set(texts);
        is_cut(&world, client, origin, "").await;
        world.set(BOTH);
    }
    works(&mut other, &mut other_origin).await;
}

#[tokio::test]
async fn a_new_rule_counts_from_the_next_request() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.request(get("one.test")).await;
    say(&mut origin, ok("1")).await;
    client.hears(&ok("1")).await;
    world.set(BOTH);
    client.send(get("two.test")).await;
    let mut origin = world.arrives().await;
    answers(&mut origin, &mut client, "2").await;
    // And a denial too, though the connection is kept and nothing is going on.
    world.set(&["allow one.test"]);
    client.send(get("two.test")).await;
    assert!(client.rest().await.starts_with("HTTP/1.1 403 "));
    client.leave().await;
    let mut got = Vec::new();
    soon(origin.read_to_end(&mut got)).await.unwrap();
    assert!(got.is_empty());
}

#[tokio::test]
async fn a_rule_that_ends_by_itself_cuts_what_it_allowed() {
    let world = World::new(BOTH).await;
    let (mut other, mut other_origin) = connected(&world, "two.test").await;
    // Connected before the clock runs: a slow machine would find the rule gone.
    let (client, origin) = connected(&world, "one.test").await;
    let mut timed = rules(BOTH);
    timed[0].expires = Some(Timestamp::now() + SignedDuration::from_millis(400));
    world.set_rules(timed);
    let started = std::time::Instant::now();
    is_cut(&world, client, origin, "default deny").await;
    assert!(started.elapsed() < Duration::from_secs(20));
    works(&mut other, &mut other_origin).await;
    let mut client = world.forward().await;
    client.send(get("one.test")).await;
    assert!(client.rest().await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn a_name_that_is_denied_later_cuts_what_its_address_had_opened() {
    let world = World::new(&["allow 192.0.2.1"]).await;
    let (client, origin) = transparent(&world).await;
    world.set(&["allow 192.0.2.1", "deny one.test"]);
    is_cut(&world, client, origin, "one.test").await;
}

#[tokio::test]
async fn http2_without_tls_is_cut_when_a_name_is_denied() {
    let world = World::new(&["allow 192.0.2.1"]).await;
    let mut client = world.transparent("192.0.2.1:50051").await;
    client.send(h2::PREFACE).await;
    let mut origin = world.arrives().await;
    let said = exactly(&mut origin, h2::PREFACE.len()).await;
    assert_eq!(said.as_bytes(), h2::PREFACE);
    // On another port, and an address.
    world.set(&["allow 192.0.2.1", "deny two.test:80", "deny 192.0.2.7"]);
    works(&mut client, &mut origin).await;
    world.set(&["allow 192.0.2.1", "deny two.test"]);
    is_cut(&world, client, origin, "HTTP/2 without TLS").await;
}

#[tokio::test]
async fn a_tunnel_that_may_carry_anything_is_cut_when_it_no_longer_may() {
    let world = World::new(&["allow one.test", "allow-web **"]).await;
    let (client, origin) = connected(&world, "one.test").await;
    world.set(&["allow-web **"]);
    is_cut(&world, client, origin, "default deny").await;
    // A new one may carry what the rule is about.
    let (mut client, origin) = world.tunnel("one.test").await;
    client.send("SSH-2.0-x\r\n").await;
    assert_eq!(client.rest().await, "");
    super::origin::hears_nothing(origin).await;
    client.leave().await;
    assert!(world.last_error().contains("HTTP and HTTPS only"));
}

/// A client that never stops sending does not delay a change of the rules.
#[tokio::test]
async fn a_torrent_is_cut_too() {
    use std::io::{Read, Write};
    let world = World::new(BOTH).await;
    let (client, origin) = connected(&world, "one.test").await;
    let blocking = |stream: TcpStream| {
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    };
    let (mut source, mut sink) = (blocking(client.stream), blocking(origin));
    let torrent = std::thread::spawn(move || {
        let piece = vec![0; 256 << 10];
        while source.write_all(&piece).is_ok() {}
    });
    let (flows, flowing) = tokio::sync::oneshot::channel();
    let drain = std::thread::spawn(move || {
        let mut piece = vec![0; 256 << 10];
        let (mut taken, mut flows) = (0, Some(flows));
        while let Ok(read @ 1..) = sink.read(&mut piece) {
            taken += read;
            if taken > 20 << 20 {
                flows.take().map(|flows| flows.send(()));
            }
        }
    });
    soon(flowing).await.unwrap();
    world.set(&["allow two.test"]);
    soon(client.served).await.unwrap();
    torrent.join().unwrap();
    drain.join().unwrap();
    assert!(world.last_error().starts_with("cut: "));
}

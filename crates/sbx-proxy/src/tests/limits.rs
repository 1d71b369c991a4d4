//! More connections than there is room for.

use std::net::SocketAddr;

use sbx_proto::net::{GATEWAY_V4, PROXY_PORT};
use tokio::io::AsyncReadExt;

use super::origin::{head, ok, say};
use super::world::{World, exactly, get, rules, soon};
use crate::audit::Outcome;

const MANY: usize = 10_000;
const ROOM: usize = 16;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn the_longest_idle_connection_makes_room() {
    let world = World::with(rules(&["allow one.test"]), ROOM).await;
    let (mut busy, mut origin) = world.tunnel("one.test").await;
    let before = descriptors();
    let proxy = SocketAddr::from((GATEWAY_V4, PROXY_PORT));
    let mut open = std::collections::VecDeque::new();
    for n in 0..MANY {
        // To the proxy, to the world, and to the proxy with half a head.
        let dialled = if n % 2 == 0 {
            proxy
        } else {
            SocketAddr::from(([192, 0, 2, 9], 443))
        };
        let mut client = world
            .client(dialled)
            .await
            .expect("an idle connection makes room");
        if n % 3 == 0 {
            client.send("GET http://one.te").await;
        }
        open.push_back(client);
        if open.len() > 100 {
            // The oldest are long gone on the other side.
            let mut oldest = open.pop_front().unwrap();
            assert!(soon(&mut oldest.served).await.unwrap_err().is_cancelled());
            let mut byte = [0];
            assert!(!matches!(soon(oldest.stream.read(&mut byte)).await, Ok(1)));
        }
    }
    // Other tests have descriptors too.
    assert!(descriptors() < before + 2000);
    tokio::task::yield_now().await;
    assert_eq!(
        open.iter()
            .filter(|client| !client.served.is_finished())
            .count(),
        ROOM - 1
    );
    busy.send("still here").await;
    assert_eq!(exactly(&mut origin, 10).await, "still here");
    say(&mut origin, "me too").await;
    busy.hears("me too").await;
}

#[tokio::test]
async fn when_all_are_busy_the_next_is_turned_away() {
    let world = World::with(rules(&["allow one.test"]), 2).await;
    let (first, _origin) = world.tunnel("one.test").await;
    let (_second, _other) = world.tunnel("one.test").await;
    let proxy = SocketAddr::from((GATEWAY_V4, PROXY_PORT));
    assert!(world.client(proxy).await.is_none());
    let line = world.last_line();
    assert_eq!(
        (line.verdict, line.reason.as_str()),
        (Outcome::Deny, "too many connections")
    );
    drop(_origin);
    first.leave().await;
    world.tunnel("one.test").await;
}

#[tokio::test]
async fn a_connection_between_two_requests_makes_room() {
    let world = World::with(rules(&["allow one.test"]), 2).await;
    let mut kept = Vec::new();
    for _ in 0..5 {
        let (mut client, mut origin) = world.request(get("one.test")).await;
        say(&mut origin, ok("")).await;
        client.hears(&ok("")).await;
        kept.push((client, origin));
    }
    let gone = kept
        .iter()
        .filter(|(client, _)| client.served.is_finished())
        .count();
    assert_eq!(gone, 3);
    let (client, origin) = &mut kept[4];
    client.send(get("one.test")).await;
    head(origin).await;
}

/// What a connection costs that does nothing: the state of its task, and no buffers.
#[tokio::test]
async fn an_idle_connection_is_small() {
    let world = World::new(&["allow one.test"]).await;
    let (_, inner) = super::world::pair().await;
    let mut size = 0;
    crate::proxy::admit(&world.shared, inner, |shared, stream, slot| {
        let proxy = SocketAddr::from((GATEWAY_V4, PROXY_PORT));
        let future = crate::proxy::route(shared, crate::conn::Conn::new(stream), proxy, slot);
        size = size_of_val(&future);
        future
    });
    assert!(size < 16 << 10, "{size} bytes");
}

//! Connections that stop being HTTP.

use tokio::io::AsyncWriteExt;

use super::origin::{head, ok, say};
use super::world::{World, exactly, get, rest};

const UPGRADE: &str = "Host: one.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[tokio::test]
async fn websockets_speak_in_both_directions() {
    let world = World::new(&["allow one.test"]).await;
    for transparent in [false, true] {
        let mut client = if transparent {
            world.transparent("192.0.2.1:80").await
        } else {
            world.forward().await
        };
        let target = if transparent {
            "/ws"
        } else {
            "http://one.test/ws"
        };
        // The first frame does not wait for the answer.
        client
            .send(format!("GET {target} HTTP/1.1\r\n{UPGRADE}early"))
            .await;
        let mut origin = world.arrives().await;
        assert_eq!(
            head(&mut origin).await,
            format!("GET /ws HTTP/1.1\r\n{UPGRADE}")
        );
        say(&mut origin, format!("{SWITCHED}hello")).await;
        client.hears(&format!("{SWITCHED}hello")).await;
        assert_eq!(exactly(&mut origin, 5).await, "early");
        for n in 0..5 {
            let frame = format!("\u{1}\0frame {n}");
            client.send(&frame).await;
            assert_eq!(exactly(&mut origin, frame.len()).await, frame);
            say(&mut origin, &frame).await;
            client.hears(&frame).await;
        }
        client.stream.shutdown().await.unwrap();
        assert_eq!(rest(&mut origin).await, "");
        say(&mut origin, "bye").await;
        drop(origin);
        assert_eq!(client.rest().await, "bye");
        client.leave().await;
    }
}

#[tokio::test]
async fn an_upgrade_that_is_declined_is_a_response() {
    let world = World::new(&["allow one.test"]).await;
    let request = format!("GET http://one.test/ws HTTP/1.1\r\n{UPGRADE}");
    let (mut client, mut origin) = world.request(request).await;
    say(&mut origin, ok("no")).await;
    client.hears(&ok("no")).await;
    // The next request is checked.
    client.send(get("two.test")).await;
    assert!(client.rest().await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn an_upgrade_that_the_client_did_not_ask_for_is_refused() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.request(get("one.test")).await;
    say(&mut origin, SWITCHED).await;
    assert!(client.rest().await.starts_with("HTTP/1.1 502 "));
    assert_eq!(rest(&mut origin).await, "");
}

#[tokio::test]
async fn http2_is_not_offered_to_the_origin() {
    let world = World::new(&["allow one.test"]).await;
    let mut client = world.transparent("192.0.2.1:80").await;
    let offer = "GET / HTTP/1.1\r\nHost: one.test\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                 Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    client.send(offer).await;
    let mut origin = world.arrives().await;
    assert_eq!(
        head(&mut origin).await,
        "GET / HTTP/1.1\r\nHost: one.test\r\n\r\n"
    );
}

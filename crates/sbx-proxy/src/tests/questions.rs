//! How often the policy is asked: once about a name and once about each of its addresses, for each protocol.

use sbx_policy::{Protocol, Target};

use super::entrances::{absolute, connect, host_header, socks_name, tls};
use super::world::World;
use crate::gate::questions;

/// It has two addresses.
const NAME: &str = "b.wild.test";

async fn world() -> World {
    let world = World::new(&["allow b.wild.test", "allow 198.51.100.0/24"]).await;
    questions::take();
    world
}

/// The name and its addresses, each once.
fn once(port: u16, protocol: Protocol) -> Vec<String> {
    ["", " at 192.0.2.12", " at 2001:db8::12"]
        .map(|at| format!("{NAME}:{port}{at} {protocol:?}"))
        .to_vec()
}

#[tokio::test]
async fn a_request_asks_once_about_the_name_and_each_address() {
    let world = world().await;
    assert!(absolute(&world, NAME).await.allowed());
    assert_eq!(questions::take(), once(80, Protocol::Web));
}

#[tokio::test]
async fn a_transparent_connection_asks_once_about_the_name_and_each_address() {
    let world = world().await;
    let dialled = |port: u16| ([192, 0, 2, 12], port).into();
    assert!(tls(&world, dialled(443), Some(NAME)).await.allowed());
    assert_eq!(questions::take(), once(443, Protocol::Web));
    assert!(host_header(&world, dialled(80), NAME).await.allowed());
    assert_eq!(questions::take(), once(80, Protocol::Web));
}

/// A tunnel may turn out to carry anything, so the same is asked about the web and about other traffic.
#[tokio::test]
async fn a_tunnel_asks_once_for_each_protocol() {
    let world = world().await;
    let expected = [once(443, Protocol::Web), once(443, Protocol::Other)].concat();
    assert!(connect(&world, "b.wild.test:443").await.allowed());
    assert_eq!(questions::take(), expected);
    assert!(socks_name(&world, NAME, 443).await.allowed());
    assert_eq!(questions::take(), expected);
}

#[tokio::test]
async fn a_bare_address_is_asked_about_once() {
    let world = world().await;
    let target = Target::parse_loose("198.51.100.7:443").unwrap();
    let decision = world.shared.gate.decide_target(&target, Protocol::Web);
    assert!(decision.await.allowed());
    assert_eq!(questions::take(), ["198.51.100.7:443 Web"]);
}

/// Nor is it looked up.
#[tokio::test]
async fn a_denied_name_is_asked_about_once() {
    let world = world().await;
    assert!(!absolute(&world, "one.test").await.allowed());
    assert_eq!(questions::take(), ["one.test:80 Web"]);
    assert!(world.asked().is_empty());
}

//! What cannot be put on record does not happen.

use std::fs::{self, File};

use super::entrances::{binary, connect, hello};
use super::resolving::lookup;
use super::world::{World, get};

#[tokio::test]
async fn nothing_goes_out_while_the_log_cannot_be_written() {
    let world = World::new(&["allow **"]).await;
    fs::remove_dir_all(world.log_dir()).ok();
    File::create(world.log_dir()).unwrap();
    let mut client = world.forward().await;
    client.send(get("one.test")).await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("hint: sbx diagnose"), "{answer}");
    let mut client = world.forward().await;
    client
        .send("CONNECT one.test:443 HTTP/1.1\r\nHost: one.test:443\r\n\r\n")
        .await;
    assert!(client.rest().await.starts_with("HTTP/1.1 503 "));
    let mut client = world.forward().await;
    client
        .send([5, 1, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 80])
        .await;
    assert_eq!(client.rest().await.as_bytes()[..4], [5, 0, 5, 1]);
    for words in [
        hello(Some("one.test")),
        b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n".to_vec(),
        vec![1, 2],
        vec![],
    ] {
        let mut client = world.transparent("192.0.2.1:443").await;
        client.send(words).await;
        client.is_reset().await;
        client.leave().await;
    }
    // Not even a question.
    assert_eq!(lookup(&world, "one.test").await, None);
    assert!(world.dialled().is_empty());
    assert!(world.asked().is_empty());
    // It can be written again: everything goes on by itself.
    fs::remove_file(world.log_dir()).unwrap();
    assert!(connect(&world, "one.test:443").await.allowed());
    assert!(
        binary(&world, "192.0.2.9:443".parse().unwrap())
            .await
            .allowed()
    );
    assert!(lookup(&world, "one.test").await.is_some());
}

#[tokio::test]
async fn a_log_that_is_removed_is_begun_again() {
    let world = World::new(&["allow **"]).await;
    assert!(connect(&world, "one.test:443").await.allowed());
    fs::remove_dir_all(world.log_dir()).unwrap();
    assert!(connect(&world, "one.test:443").await.allowed());
    assert_eq!(world.lines().len(), 1);
}

#[tokio::test]
async fn what_was_open_when_the_log_broke_is_written_when_it_is_mended() {
    let world = World::new(&["allow **"]).await;
    let (client, origin) = world.tunnel("one.test").await;
    fs::remove_dir_all(world.log_dir()).ok();
    File::create(world.log_dir()).unwrap();
    drop(origin);
    client.leave().await;
    assert!(!world.shared.audit.is_healthy());
    fs::remove_file(world.log_dir()).unwrap();
    assert!(world.shared.audit.is_healthy());
    assert_eq!(world.last_line().host, "one.test");
}

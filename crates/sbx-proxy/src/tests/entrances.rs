//! Every way to ask for a host, and what came of it.

use std::net::{IpAddr, SocketAddr};

use tokio::io::AsyncWriteExt;

use super::world::{Client, World};
use crate::audit::{Entrance, Line, Outcome};

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) line: Line,
    pub(super) dialled: Vec<SocketAddr>,
}

impl Seen {
    pub(super) fn allowed(&self) -> bool {
        self.line.verdict == Outcome::Allow
    }
}

pub(super) async fn connect(world: &World, authority: &str) -> Seen {
    let mut client = world.forward().await;
    client
        .send(format!(
            "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        ))
        .await;
    finish(world, client).await
}

/// A tunnel that turns out to carry neither TLS nor HTTP: whether it was carried, too.
pub(super) async fn connect_binary(world: &World, authority: &str) -> (Seen, bool) {
    let mut client = world.forward().await;
    client
        .send(format!(
            "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        ))
        .await;
    client.send([0, 1, 2, 3]).await;
    let seen = finish(world, client).await;
    let cut = seen.line.error.as_deref();
    let cut = cut.is_some_and(|error| error.starts_with("cut: "));
    let carried = seen.allowed() && !cut;
    (seen, carried)
}

pub(super) async fn absolute(world: &World, authority: &str) -> Seen {
    let mut client = world.forward().await;
    client
        .send(format!(
            "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        ))
        .await;
    finish(world, client).await
}

pub(super) async fn socks_name(world: &World, name: &str, port: u16) -> Seen {
    let length = u8::try_from(name.len()).unwrap();
    socks(world, &[&[3, length], name.as_bytes()].concat(), port).await
}

pub(super) async fn socks_ip(world: &World, ip: IpAddr, port: u16) -> Seen {
    let address = match ip {
        IpAddr::V4(ip) => [&[1], &ip.octets()[..]].concat(),
        IpAddr::V6(ip) => [&[4], &ip.octets()[..]].concat(),
    };
    socks(world, &address, port).await
}

async fn socks(world: &World, address: &[u8], port: u16) -> Seen {
    let mut client = world.forward().await;
    let request = [&[5, 1, 0, 5, 1, 0], address, &port.to_be_bytes()].concat();
    client.send(request).await;
    finish(world, client).await
}

/// TLS to an address, with or without a name.
pub(super) async fn tls(world: &World, dialled: SocketAddr, name: Option<&str>) -> Seen {
    transparent(world, dialled, hello(name)).await
}

pub(super) async fn host_header(world: &World, dialled: SocketAddr, host: &str) -> Seen {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    transparent(world, dialled, request.into_bytes()).await
}

/// Neither TLS nor HTTP.
pub(super) async fn binary(world: &World, dialled: SocketAddr) -> Seen {
    transparent(world, dialled, vec![0, 1, 2, 3]).await
}

async fn transparent(world: &World, dialled: SocketAddr, bytes: Vec<u8>) -> Seen {
    let mut client = world.client(dialled).await.expect("there is room");
    client.send(bytes).await;
    finish(world, client).await
}

/// Lets the connection end from both sides.
async fn finish(world: &World, mut client: Client) -> Seen {
    world.dialled();
    // It may be broken off already.
    let _ = client.stream.shutdown().await;
    loop {
        tokio::select! {
            biased;
            ended = &mut client.served => break ended.unwrap(),
            origin = world.arrives() => drop(origin),
        }
    }
    let line = world.last_line();
    assert_ne!(line.entrance, Entrance::Dns);
    Seen {
        line,
        dialled: world.dialled(),
    }
}

/// The first message of a TLS client.
pub(super) fn hello(name: Option<&str>) -> Vec<u8> {
    let sized = |data: &[u8]| {
        let length = u16::try_from(data.len()).unwrap();
        [&length.to_be_bytes(), data].concat()
    };
    let extensions = match name {
        Some(name) => {
            let list = sized(&[&[0], &sized(name.as_bytes())[..]].concat());
            [&[0, 0], &sized(&list)[..]].concat()
        }
        None => Vec::new(),
    };
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(sized(&extensions));
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1], &length[1..], &body].concat();
    [&[22, 3, 1], &sized(&message)[..]].concat()
}

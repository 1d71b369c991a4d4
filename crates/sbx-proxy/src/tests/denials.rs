//! What a client is told that may not go where it wants.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::entrances::hello;
use super::world::{Client, World, soon};
use crate::audit::{Entrance, Outcome, Via};
use crate::wire::h2;

fn connector(world: &World) -> TlsConnector {
    speaking(world, &[])
}

/// A client that knows these protocols.
fn speaking(world: &World, protocols: &[&[u8]]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(world.authority_pem.as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// A tunnel that is said to be there.
async fn tunnel(world: &World, authority: &str) -> Client {
    let mut client = world.forward().await;
    client
        .send(format!(
            "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        ))
        .await;
    client
        .hears("HTTP/1.1 200 Connection established\r\n\r\n")
        .await;
    client
}

async fn over_tls(world: &World, authority: &str, name: &str) -> TlsStream<TcpStream> {
    let client = tunnel(world, authority).await;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    soon(connector(world).connect(name, client.stream))
        .await
        .unwrap()
}

async fn ask(mut tls: TlsStream<TcpStream>, headers: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    tls.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(tls.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn https_clients_are_told_in_their_own_tunnel() {
    let world = World::new(&["allow one.test", "deny two.test", "allow two.test:443"]).await;
    let answer = ask(over_tls(&world, "two.test:443", "two.test").await, "").await;
    assert!(
        answer.starts_with("HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain"),
        "{answer}"
    );
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    assert!(
        body.starts_with("Blocked by local rule for two.test:443\n"),
        "{body}"
    );
    assert!(
        body.contains("hint: sbx policy rm network --sandbox one --resource two.test\n"),
        "{body}"
    );
    // By default.
    let answer = ask(
        over_tls(&world, "a.wild.test:8443", "a.wild.test").await,
        "",
    )
    .await;
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let expected = "Blocked by network policy: domain a.wild.test:8443\n  rule: none\n  origin: default\n  \
                    detail: No matching allow rule (default deny)\n  \
                    hint: sbx policy allow network --sandbox one a.wild.test:8443\n";
    assert_eq!(body, expected);
    // An address instead of a name.
    let answer = ask(over_tls(&world, "192.0.2.9:443", "192.0.2.9").await, "").await;
    assert!(answer.contains("domain 192.0.2.9:443\n"), "{answer}");
    assert!(world.dialled().is_empty());
    let lines = world.lines();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert_eq!(
            (line.entrance, line.proxy),
            (Entrance::Connect, Via::Forward)
        );
        assert_eq!(line.verdict, Outcome::Deny);
        assert!(!line.reason.is_empty());
    }
    assert_eq!(
        (lines[0].rule.as_deref(), lines[0].rule_name.as_deref()),
        (Some("r1"), Some("rule 1"))
    );
    assert_eq!(lines[1].rule, None);
}

#[tokio::test]
async fn programs_are_told_as_programs() {
    let world = World::new(&["deny two.test"]).await;
    let accept = "Accept: text/html;q=0.5, application/json\r\n";
    let answer = ask(over_tls(&world, "two.test:443", "two.test").await, accept).await;
    let mut client = world.forward().await;
    client
        .send(format!(
            "GET http://two.test:443/ HTTP/1.1\r\nHost: two.test:443\r\n{accept}\r\n"
        ))
        .await;
    for answer in [answer, client.rest().await] {
        assert!(
            answer.contains("\r\nContent-Type: application/json\r\n"),
            "{answer}"
        );
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(body["target"], "two.test:443");
        assert_eq!(body["deny_kind"], "explicit");
        assert_eq!(body["rule"]["id"], "r0");
    }
}

/// `GET` of HTTP/2 after its preface and empty settings, with this `accept`; then more than fits into one read.
fn h2_request(accept: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x87, 0x84, 0x53, u8::try_from(accept.len()).unwrap()];
    head.extend(accept.as_bytes());
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    bytes.extend([0, 0, u8::try_from(head.len()).unwrap(), 1, 4, 0, 0, 0, 1]);
    bytes.extend(head);
    bytes
}

/// Kinds of frames, and the body.
fn h2_frames(mut bytes: &[u8]) -> (Vec<u8>, String) {
    let (mut kinds, mut body) = (Vec::new(), Vec::new());
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        kinds.push(*kind);
        if *kind == 0 {
            body.extend_from_slice(&rest[..length]);
        }
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty());
    (kinds, String::from_utf8(body).unwrap())
}

const H2_ANSWER: [u8; 5] = [4, 4, 1, 0, 7];

#[tokio::test]
async fn clients_of_http2_alone_are_told_too() {
    let world = World::new(&["deny two.test"]).await;
    let ask = async |accept: &str| {
        let client = tunnel(&world, "two.test:443").await;
        let name = ServerName::try_from("two.test").unwrap();
        let tls = speaking(&world, &[b"h2"]).connect(name, client.stream);
        let mut tls = soon(tls).await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        tls.write_all(&h2_request(accept)).await.unwrap();
        let mut said = Vec::new();
        soon(tls.read_to_end(&mut said)).await.unwrap();
        assert!(said.windows(5).any(|at| at == b"\x08\x03403"));
        said
    };
    let (kinds, body) = h2_frames(&ask("*/*").await);
    assert_eq!(kinds, H2_ANSWER);
    assert!(
        body.starts_with("Blocked by local rule for two.test:443\n"),
        "{body}"
    );
    let (_, body) = h2_frames(&ask("application/json").await);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["target"], "two.test:443");
    // Who speaks both has the older one, as before.
    let client = tunnel(&world, "two.test:443").await;
    let name = ServerName::try_from("two.test").unwrap();
    let tls = speaking(&world, &[b"h2", b"http/1.1"]).connect(name, client.stream);
    let answer = self::ask(soon(tls).await.unwrap(), "").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(world.dialled().is_empty());
}

#[tokio::test]
async fn and_without_tls() {
    let world = World::new(&["deny two.test"]).await;
    for size in [1, 20, 1000] {
        let mut client = tunnel(&world, "two.test:50051").await;
        for part in h2_request("*/*").chunks(size) {
            client.send(part).await;
        }
        let mut said = Vec::new();
        soon(client.stream.read_to_end(&mut said)).await.unwrap();
        let (kinds, body) = h2_frames(&said);
        assert_eq!(kinds, H2_ANSWER);
        assert!(body.contains("two.test:50051\n"), "{body}");
    }
}

/// What is no HTTP/2 after all is not waited for, and what does not end neither.
#[tokio::test]
async fn bad_http2_in_a_denied_tunnel() {
    let world = World::new(&["deny two.test"]).await;
    let ping_first = b"\0\0\x08\x06\0\0\0\0\0xxxxxxxx";
    let huge = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0, 0, 1, 4, 0, 0, 0, 1];
    for words in [&ping_first[..], &huge] {
        let mut client = tunnel(&world, "two.test:50051").await;
        client.send([h2::PREFACE, words].concat()).await;
        let mut said = Vec::new();
        soon(client.stream.read_to_end(&mut said)).await.unwrap();
        assert_eq!(h2_frames(&said).0, [4, 7]);
    }
    let mut client = tunnel(&world, "two.test:50051").await;
    client.send(h2::PREFACE).await;
    tokio::time::pause();
    let mut said = Vec::new();
    soon(client.stream.read_to_end(&mut said)).await.unwrap();
    tokio::time::resume();
    assert_eq!(h2_frames(&said).0, [4]);
}

/// A client that speaks neither is told that much.
#[tokio::test]
async fn other_protocols_over_tls_get_an_alert() {
    let world = World::new(&["deny two.test"]).await;
    let client = tunnel(&world, "two.test:443").await;
    let name = ServerName::try_from("two.test").unwrap();
    let tls = speaking(&world, &[b"imap"]).connect(name, client.stream);
    let error = soon(tls).await.unwrap_err().to_string();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
}

#[tokio::test]
async fn other_words_in_a_denied_tunnel() {
    let world = World::new(&["allow one.test"]).await;
    let mut client = tunnel(&world, "two.test:80").await;
    client
        .send("GET / HTTP/1.1\r\nHost: two.test\r\n\r\n")
        .await;
    assert!(client.rest().await.starts_with("HTTP/1.1 403 "));
    // There is no way to tell these, and they do not hang.
    for words in ["SSH-2.0-x\r\n", "\u{16}\u{3}\u{1}\0\u{1}x", ""] {
        let mut client = tunnel(&world, "two.test:22").await;
        client.send(words).await;
        client.stream.shutdown().await.unwrap();
        assert_eq!(client.rest().await, "");
        client.leave().await;
    }
    assert_eq!(world.lines().len(), 4);
    // Nor does one that says nothing.
    let mut client = tunnel(&world, "two.test:22").await;
    tokio::time::pause();
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_the_handshake_is_on_record() {
    let world = World::new(&["deny two.test"]).await;
    let hello = hello(Some("two.test"));
    for cut in [hello.len(), hello.len() / 2, 0] {
        let mut client = tunnel(&world, "two.test:443").await;
        client.send(&hello[..cut]).await;
        client.leave().await;
        let line = world.last_line();
        assert_eq!(
            (line.verdict, line.host.as_str()),
            (Outcome::Deny, "two.test")
        );
    }
    assert_eq!(world.lines().len(), 3);
}

#[tokio::test]
async fn plain_http_socks_and_programs_without_a_proxy() {
    let world = World::new(&["deny two.test", "deny 192.0.2.2"]).await;
    let mut client = world.forward().await;
    // The answer arrives although the client never stops talking.
    let request =
        "POST http://two.test/ HTTP/1.1\r\nHost: two.test\r\nContent-Length: 9999999\r\n\r\n";
    client
        .send(format!("{request}{}", "x".repeat(1 << 20)))
        .await;
    let answer = client.until("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    client.leave().await;
    let line = world.last_line();
    assert_eq!(
        (line.entrance, line.rule.as_deref()),
        (Entrance::Http, Some("r0"))
    );

    let mut client = world.forward().await;
    client.send([5, 2, 2, 0]).await;
    client.hears("\u{5}\0").await;
    client.send([5, 1, 0, 1, 192, 0, 2, 2, 0, 22]).await;
    assert_eq!(
        client.rest().await.as_bytes(),
        [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]
    );
    client.leave().await;
    let line = world.last_line();
    assert_eq!(
        (line.entrance, line.rule.as_deref()),
        (Entrance::Socks5, Some("r1"))
    );

    for (words, via) in [
        (hello(Some("two.test")), Via::Transparent),
        (
            b"GET / HTTP/1.1\r\nHost: two.test\r\n\r\n".to_vec(),
            Via::Transparent,
        ),
        (b"SSH-2.0-x\r\n".to_vec(), Via::Network),
        (vec![], Via::Network),
    ] {
        let mut client = world.transparent("192.0.2.2:22").await;
        client.send(&words).await;
        client.is_reset().await;
        client.leave().await;
        let line = world.last_line();
        assert_eq!((line.entrance, line.proxy), (Entrance::Transparent, via));
        assert_eq!(line.verdict, Outcome::Deny);
        assert!(line.rule.is_some() && !line.reason.is_empty());
    }
    assert!(world.dialled().is_empty());
}

#[tokio::test]
async fn socks_that_is_not_spoken_here() {
    let world = World::new(&["allow **"]).await;
    for (words, answer) in [
        // Only with a password.
        (&[5, 1, 2][..], &[5, 0xff][..]),
        // SOCKS 4.
        (&[4, 1, 0, 80, 192, 0, 2, 1, 0], &[0, 91, 0, 0, 0, 0, 0, 0]),
        // BIND, UDP ASSOCIATE, an unknown kind of address, port 0.
        (
            &[5, 1, 0, 5, 2, 0, 1, 192, 0, 2, 1, 0, 80],
            &[5, 0, 5, 7, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 3, 0, 1, 192, 0, 2, 1, 0, 80],
            &[5, 0, 5, 7, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 9, 192, 0, 2, 1, 0, 80],
            &[5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 0],
            &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
    ] {
        let mut client = world.forward().await;
        client.send(words).await;
        let mut got = Vec::new();
        soon(client.stream.read_to_end(&mut got)).await.unwrap();
        assert_eq!(got, answer, "{words:?}");
    }
    assert!(world.dialled().is_empty());
}

#[tokio::test]
async fn tls_that_is_to_be_left_alone_is_not_opened() {
    let world = World::new(&["allow one.test"]).await;
    let mut client = world.forward().await;
    client
        .send("CONNECT pinned.test:443 HTTP/1.1\r\nHost: pinned.test:443\r\n\r\n")
        .await;
    client.hears("HTTP/1.1 403 Forbidden\r\n").await;
}

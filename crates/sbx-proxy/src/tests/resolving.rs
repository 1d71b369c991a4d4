//! The resolver over both of its sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sbx_policy::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::world::{World, pair, soon};
use crate::audit::{Entrance, Outcome, Via};
use crate::dns;
use crate::proxy::admit;

const REFUSED: u8 = 5;
const NXDOMAIN: u8 = 3;

fn question(name: &str, qtype: u16, qclass: u16) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out.extend(qtype.to_be_bytes());
    out.extend(qclass.to_be_bytes());
    out
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u8,
    pub(super) truncated: bool,
    pub(super) data: Vec<Vec<u8>>,
}

impl Reply {
    fn parse(bytes: &[u8], asked: &[u8]) -> Self {
        assert_eq!(bytes[..2], asked[..2], "another question's answer");
        let count = u16::from_be_bytes([bytes[6], bytes[7]]);
        let mut data = Vec::new();
        let mut rest = bytes.get(asked.len()..).unwrap_or_default();
        for _ in 0..count {
            let length = usize::from(u16::from_be_bytes([rest[10], rest[11]]));
            data.push(rest[12..12 + length].to_vec());
            rest = &rest[12 + length..];
        }
        Self {
            code: bytes[3] & 15,
            truncated: bytes[2] & 2 != 0,
            data,
        }
    }

    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let address = |data: &Vec<u8>| match <[u8; 4]>::try_from(data.as_slice()) {
            Ok(v4) => IpAddr::from(v4),
            Err(_) => <[u8; 16]>::try_from(data.as_slice()).unwrap().into(),
        };
        self.data.iter().map(address).collect()
    }
}

/// A socket in the sandbox, and the resolver behind it.
struct Udp {
    socket: UdpSocket,
    server: JoinHandle<()>,
}

impl Udp {
    async fn of(world: &World) -> Self {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        sbx_sys::pktinfo::enable(&server).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(server.local_addr().unwrap()).await.unwrap();
        let server = tokio::spawn(dns::serve_udp(Arc::clone(&world.shared), server));
        Self { socket, server }
    }

    async fn raw(&self, message: &[u8]) -> Vec<u8> {
        self.socket.send(message).await.unwrap();
        let mut buffer = vec![0; 4096];
        let length = soon(self.socket.recv(&mut buffer)).await.unwrap();
        buffer.truncate(length);
        buffer
    }

    async fn ask(&self, name: &str, qtype: u16) -> Reply {
        let question = question(name, qtype, 1);
        Reply::parse(&self.raw(&question).await, &question)
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn tcp(world: &World, questions: &[Vec<u8>]) -> Vec<Reply> {
    let (mut stream, inner) = pair().await;
    let served = admit(&world.shared, inner, dns::serve_tcp).unwrap();
    let mut replies = Vec::new();
    for question in questions {
        let length = u16::try_from(question.len()).unwrap();
        stream.write_all(&length.to_be_bytes()).await.unwrap();
        stream.write_all(question).await.unwrap();
    }
    for question in questions {
        let length = soon(stream.read_u16()).await.unwrap();
        let mut reply = vec![0; usize::from(length)];
        soon(stream.read_exact(&mut reply)).await.unwrap();
        replies.push(Reply::parse(&reply, question));
    }
    drop(stream);
    soon(served).await.unwrap();
    replies
}

/// The addresses of a name, if they may be known.
pub(super) async fn lookup(world: &World, name: &str) -> Option<Vec<IpAddr>> {
    let questions = [question(name, 1, 1), question(name, 28, 1)];
    let replies = tcp(world, &questions).await;
    let known = replies.iter().all(|reply| reply.code != REFUSED);
    known.then(|| replies.iter().flat_map(Reply::addresses).collect())
}

#[tokio::test]
async fn names_that_may_be_known() {
    let world = World::new(&["allow *.wild.test:443"]).await;
    let udp = Udp::of(&world).await;
    assert_eq!(
        udp.ask("B.Wild.test", 1).await.addresses(),
        [IpAddr::from([192, 0, 2, 12])]
    );
    let v6: IpAddr = "2001:db8::12".parse().unwrap();
    assert_eq!(udp.ask("b.wild.test", 28).await.addresses(), [v6]);
    for qtype in [64, 65] {
        let empty = udp.ask("b.wild.test", qtype).await;
        assert_eq!((empty.code, empty.data.len()), (0, 0));
    }
    // No address of this kind, and no such name.
    let empty = udp.ask("a.wild.test", 28).await;
    assert_eq!((empty.code, empty.data.len()), (0, 0));
    assert_eq!(udp.ask("no.wild.test", 1).await.code, NXDOMAIN);
    assert_eq!(
        world.asked(),
        ["b.wild.test", "a.wild.test", "no.wild.test"]
    );
    let line = &world.lines()[0];
    assert_eq!(
        (line.entrance, line.proxy, line.verdict),
        (Entrance::Dns, Via::Dns, Outcome::Allow)
    );
    assert_eq!(
        (line.host.as_str(), line.rule.as_deref()),
        ("b.wild.test", Some("r0"))
    );
}

#[tokio::test]
async fn names_backwards() {
    let world = World::new(&["allow *.wild.test"]).await;
    let udp = Udp::of(&world).await;
    let backwards = "12.2.0.192.in-addr.arpa";
    assert_eq!(udp.ask(backwards, 12).await.code, REFUSED);
    let line = world.last_line();
    assert_eq!((line.host.as_str(), line.port), (backwards, None));
    assert_eq!(
        (line.verdict, line.deny_kind),
        (Outcome::Deny, Some(Kind::RecordType))
    );
    udp.ask("b.wild.test", 1).await;
    let found = udp.ask(backwards, 12).await;
    assert_eq!(found.data, [b"\x01b\x04wild\x04test\0".to_vec()]);
    for name in ["1.0.0.10.in-addr.arpa", "secret.wild.test"] {
        assert_eq!(udp.ask(name, 12).await.code, REFUSED, "{name}");
        assert_eq!(world.last_line().host, name);
    }
    // No other resolver was asked.
    assert_eq!(world.asked(), ["b.wild.test"]);
}

#[tokio::test]
async fn names_that_may_not_be_known() {
    let world = World::new(&[
        "allow *.wild.test",
        "deny b.wild.test",
        "allow 192.0.2.0/24",
    ])
    .await;
    let udp = Udp::of(&world).await;
    for (name, rule) in [
        ("one.test", None),
        ("b.wild.test", Some("r1")),
        ("wild.test", None),
    ] {
        for qtype in [1, 28, 65] {
            let reply = udp.ask(name, qtype).await;
            assert_eq!((reply.code, reply.data.len()), (REFUSED, 0), "{name}");
            let line = world.last_line();
            assert_eq!((line.verdict, line.host.as_str()), (Outcome::Deny, name));
            assert_eq!(line.rule.as_deref(), rule);
        }
    }
    // Under an allowed wildcard these would be a way to carry anything.
    for qtype in [16, 10, 255, 15, 2, 6, 5, 33, 99, 252] {
        let reply = udp.ask("secret.wild.test", qtype).await;
        assert_eq!((reply.code, reply.data.len()), (REFUSED, 0), "{qtype}");
        let line = world.last_line();
        assert!(line.reason.contains(&format!("type {qtype} ")));
        assert_eq!((line.port, line.deny_kind), (None, Some(Kind::RecordType)));
    }
    for qclass in [3, 4, 255] {
        let question = question("a.wild.test", 1, qclass);
        let reply = Reply::parse(&udp.raw(&question).await, &question);
        assert_eq!(reply.code, REFUSED);
        let line = world.last_line();
        assert_eq!((line.port, line.deny_kind), (None, Some(Kind::RecordType)));
    }
    assert!(world.asked().is_empty());
}

#[tokio::test]
async fn addresses_that_may_not_be_dialled_are_not_told() {
    let world = World::new(&[
        "allow *.wild.test",
        "allow-private db.wild.test:5432",
        "allow exact.wild.test:5432",
        "deny 192.0.2.66",
        "deny 192.0.2.67:80",
        "allow 10.7.0.0/16:22",
    ])
    .await;
    let udp = Udp::of(&world).await;
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    world.resolves(
        "mixed.wild.test",
        &[&["10.9.9.9", "192.0.2.66", "192.0.2.67", "10.7.0.1", "::1"]],
    );
    let told = udp.ask("mixed.wild.test", 1).await.addresses();
    assert_eq!(told, [ip("192.0.2.67"), ip("10.7.0.1")]);
    let six = udp.ask("mixed.wild.test", 28).await;
    assert_eq!((six.code, six.data.len()), (0, 0));
    // Its rule allows private addresses.
    world.resolves("db.wild.test", &[&["10.9.9.9"]]);
    let told = udp.ask("db.wild.test", 1).await.addresses();
    assert_eq!(told, [ip("10.9.9.9")]);
    world.resolves("exact.wild.test", &[&["10.9.9.9"]]);
    assert_eq!(udp.ask("exact.wild.test", 1).await.code, REFUSED);
    // Nothing is left: the name is refused, and the record says why.
    world.resolves("inward.wild.test", &[&["10.9.9.9", "127.0.0.1"]]);
    for qtype in [1, 28, 65] {
        assert_eq!(udp.ask("inward.wild.test", qtype).await.code, REFUSED);
        let line = world.last_line();
        let reason = "10.9.9.9 is a private address (RFC 1918), and no rule names it";
        assert_eq!(
            (line.verdict, line.reason.as_str()),
            (Outcome::Deny, reason)
        );
    }
}

#[tokio::test]
async fn names_that_mean_something_inside() {
    let world = World::new(&["deny **"]).await;
    let udp = Udp::of(&world).await;
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    for (name, v4, v6) in [
        ("localhost", vec![ip("127.0.0.1")], vec![ip("::1")]),
        ("x.localhost", vec![ip("127.0.0.1")], vec![ip("::1")]),
        ("host.docker.internal", vec![ip("10.0.2.3")], vec![]),
        ("gateway.docker.internal", vec![ip("10.0.2.2")], vec![]),
    ] {
        let (a, aaaa) = (udp.ask(name, 1).await, udp.ask(name, 28).await);
        assert_eq!((a.addresses(), a.code), (v4, 0), "{name}");
        assert_eq!((aaaa.addresses(), aaaa.code), (v6, 0), "{name}");
        assert_eq!(udp.ask(name, 65).await.code, 0);
    }
    assert_eq!(udp.ask("127.0.0.1", 1).await.code, NXDOMAIN);
    assert!(world.asked().is_empty());
}

#[tokio::test]
async fn what_does_not_fit_is_asked_for_over_tcp() {
    let world = World::new(&["allow *.wild.test"]).await;
    let many: Vec<String> = (0..60).map(|n| format!("192.0.2.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    world.resolves("many.wild.test", &[&many]);
    let udp = Udp::of(&world).await;
    let cut = udp.ask("many.wild.test", 1).await;
    assert!(cut.truncated && cut.data.len() < 60);
    // Several questions at once, answered in order.
    let questions = ["many.wild.test", "a.wild.test", "one.test"].map(|name| question(name, 1, 1));
    let replies = tcp(&world, &questions).await;
    assert_eq!((replies[0].truncated, replies[0].data.len()), (false, 60));
    assert_eq!(replies[1].data.len(), 1);
    assert_eq!(replies[2].code, REFUSED);
}

#[tokio::test]
async fn garbage_is_survived() {
    let world = World::new(&["allow *.wild.test"]).await;
    let udp = Udp::of(&world).await;
    let good = question("a.wild.test", 1, 1);
    for bad in [
        &[][..],
        &[1],
        &[0; 11],
        &[0xff; 600],
        &good[..good.len() - 1],
    ] {
        udp.socket.send(bad).await.unwrap();
    }
    // An answer is not answered.
    let mut answer = good.clone();
    answer[2] |= 0x80;
    udp.socket.send(&answer).await.unwrap();
    // The whole question gets through, whatever came before it.
    let mut buffer = [0; 600];
    loop {
        udp.socket.send(&good).await.unwrap();
        let length = soon(udp.socket.recv(&mut buffer)).await.unwrap();
        if buffer[..2] == good[..2] && length > good.len() {
            break;
        }
    }
    // Over TCP: nonsense is answered or ends the connection, and half a question is waited for.
    let (mut stream, inner) = pair().await;
    let served = admit(&world.shared, inner, dns::serve_tcp).unwrap();
    stream.write_all(&[0, 3, 1, 2, 3]).await.unwrap();
    let mut got = Vec::new();
    soon(stream.read_to_end(&mut got)).await.unwrap();
    assert!(got.is_empty());
    soon(served).await.unwrap();
    let (mut stream, inner) = pair().await;
    let served = admit(&world.shared, inner, dns::serve_tcp).unwrap();
    stream.write_all(&[0, 200, 1]).await.unwrap();
    tokio::time::pause();
    soon(stream.read_to_end(&mut got)).await.unwrap();
    soon(served).await.unwrap();
}

#[tokio::test]
async fn answers_come_from_where_the_question_went() {
    let world = World::new(&["allow *.wild.test"]).await;
    let server = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    sbx_sys::pktinfo::enable(&server).unwrap();
    let port = server.local_addr().unwrap().port();
    let server = tokio::spawn(dns::serve_udp(Arc::clone(&world.shared), server));
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client
        .connect(SocketAddr::from(([127, 3, 2, 1], port)))
        .await
        .unwrap();
    client.send(&question("a.wild.test", 1, 1)).await.unwrap();
    let mut buffer = [0; 600];
    assert!(soon(client.recv(&mut buffer)).await.unwrap() > 12);
    server.abort();
}

//! The same connection code over streams that are not TCP: an in-memory stream, a Unix socket, and TLS on both sides.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sbx_policy::{Host, LocalAddresses, Policy};
use sbx_proto::net::{GATEWAY_V4, PROXY_PORT};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::entrances::hello;
use super::world::{World, rules, soon};
use crate::ca::{self, Authority, NewAuthority};
use crate::conn::Conn;
use crate::limits::ConnectionBudget;
use crate::proxy::{Settings, Shared, admit, route};
use crate::transport::{AsyncTransport, Transport};

const REQUEST: &str =
    "POST http://one.test/x HTTP/1.1\r\nHost: one.test\r\nContent-Length: 5\r\n\r\nhello";
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n";

/// Large enough that both sides have to wait for each other.
fn body() -> Vec<u8> {
    (0..300_000u32).map(|n| n as u8).collect()
}

fn serve_over(world: &World, dialled: SocketAddr, transport: impl Transport + 'static) {
    let served = admit(&world.shared, transport, move |shared, stream, slot| {
        route(shared, Conn::new(stream), dialled, slot)
    });
    drop(served.expect("there is room"));
}

fn proxy() -> SocketAddr {
    SocketAddr::from((GATEWAY_V4, PROXY_PORT))
}

/// Two requests on one connection: framing, bodies and reuse all work.
async fn exchanges(mut client: impl AsyncRead + AsyncWrite + Unpin, world: &World) {
    let mut origin = None;
    for _ in 0..2 {
        soon(client.write_all(REQUEST.as_bytes())).await.unwrap();
        soon(client.flush()).await.unwrap();
        let mut stream = match origin.take() {
            Some(stream) => stream,
            None => world.arrives().await,
        };
        answer_request(&mut stream).await;
        origin = Some(stream);
        read_response(&mut client).await;
    }
}

async fn answer_request(origin: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\nhello") {
        assert!(soon(origin.read_buf(&mut got)).await.unwrap() > 0);
    }
    assert!(got.starts_with(b"POST /x HTTP/1.1\r\n"));
    let mut answer = RESPONSE.as_bytes().to_vec();
    answer.extend(body());
    soon(origin.write_all(&answer)).await.unwrap();
    soon(origin.flush()).await.unwrap();
}

async fn read_response(client: &mut (impl AsyncRead + Unpin)) {
    let mut got = vec![0; RESPONSE.len() + body().len()];
    soon(client.read_exact(&mut got)).await.unwrap();
    assert_eq!(&got[..RESPONSE.len()], RESPONSE.as_bytes());
    assert!(got[RESPONSE.len()..] == body());
}

/// A tunnel that each side ends in turn.
async fn tunnels(mut client: impl AsyncRead + AsyncWrite + Unpin, world: &World) {
    let connect = "CONNECT one.test:443 HTTP/1.1\r\nHost: one.test:443\r\n\r\n";
    soon(client.write_all(connect.as_bytes())).await.unwrap();
    let mut origin = world.arrives().await;
    let mut head = [0; 39];
    soon(client.read_exact(&mut head)).await.unwrap();
    assert!(head.starts_with(b"HTTP/1.1 200 "));
    soon(client.write_all(b"question")).await.unwrap();
    soon(client.shutdown()).await.unwrap();
    let mut got = Vec::new();
    soon(origin.read_to_end(&mut got)).await.unwrap();
    assert_eq!(got, b"question");
    let answer = body();
    let sending = async {
        origin.write_all(&answer).await.unwrap();
        drop(origin);
    };
    let mut got = Vec::new();
    let (_, read) = soon(async { tokio::join!(sending, client.read_to_end(&mut got)) }).await;
    // A TLS peer may close without an alert once everything was said.
    drop(read);
    assert!(got == body());
}

#[tokio::test]
async fn an_in_memory_stream() {
    let world = World::new(&["allow one.test"]).await;
    let pair = || -> (DuplexStream, DuplexStream) { tokio::io::duplex(1000) };
    let (client, inner) = pair();
    serve_over(&world, proxy(), AsyncTransport::new(inner));
    exchanges(client, &world).await;
    let (client, inner) = pair();
    serve_over(&world, proxy(), AsyncTransport::new(inner));
    tunnels(client, &world).await;
}

#[tokio::test]
async fn a_unix_socket() {
    let world = World::new(&["allow one.test"]).await;
    let (client, inner) = UnixStream::pair().unwrap();
    serve_over(&world, proxy(), AsyncTransport::new(inner));
    exchanges(client, &world).await;
    let (client, inner) = UnixStream::pair().unwrap();
    serve_over(&world, proxy(), AsyncTransport::new(inner));
    tunnels(client, &world).await;
    // The transparent entrance as well.
    let (mut client, inner) = UnixStream::pair().unwrap();
    let dialled = "192.0.2.1:443".parse().unwrap();
    serve_over(&world, dialled, AsyncTransport::new(inner));
    let hello = hello(Some("one.test"));
    soon(client.write_all(&hello)).await.unwrap();
    let mut origin = world.arrives().await;
    let mut got = vec![0; hello.len()];
    soon(origin.read_exact(&mut got)).await.unwrap();
    assert_eq!(got, hello);
}

fn connector(authority: &NewAuthority) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let pem = authority.certificate_pem.as_bytes();
    roots
        .add(CertificateDer::from_pem_slice(pem).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn acceptor(authority: &NewAuthority) -> TlsAcceptor {
    let now = Timestamp::now();
    let authority = Authority::load("one", &authority.key_pem, now).unwrap();
    let host = Host::parse("one.test").unwrap();
    TlsAcceptor::from(authority.impersonate(&host, now).unwrap())
}

fn name() -> ServerName<'static> {
    ServerName::try_from("one.test").unwrap()
}

#[tokio::test]
async fn tls_from_the_client() {
    let world = World::new(&["allow one.test"]).await;
    let authority = ca::create("one", Timestamp::now()).unwrap();
    for tunnel in [false, true] {
        let (client, inner) = tokio::io::duplex(5000);
        let (client, inner) = soon(async {
            tokio::join!(
                connector(&authority).connect(name(), client),
                acceptor(&authority).accept(inner)
            )
        })
        .await;
        serve_over(&world, proxy(), AsyncTransport::new(inner.unwrap()));
        if tunnel {
            tunnels(client.unwrap(), &world).await;
        } else {
            exchanges(client.unwrap(), &world).await;
        }
    }
}

/// Requests leave over TLS to an origin when the dialler says so.
#[tokio::test]
async fn tls_to_the_origin() {
    let authority = ca::create("one", Timestamp::now()).unwrap();
    let (arrived, mut arrives) = mpsc::unbounded_channel::<DuplexStream>();
    let to_origin = connector(&authority);
    let dir = tempfile::tempdir().unwrap();
    let (_policy, watched) = watch::channel(Policy::compile(rules(&["allow one.test"])));
    let settings = Settings {
        sandbox: "one".into(),
        log_dir: dir.path().join("log"),
        authority: Authority::load("one", &authority.key_pem, Timestamp::now()).unwrap(),
        local_addresses: Arc::new(|_| LocalAddresses::default()),
        lookup: Arc::new(|_| Box::pin(async { Ok(vec!["192.0.2.1".parse().unwrap()]) })),
        rule_time: Arc::new(Timestamp::now),
        dial: Arc::new(move |_| {
            let (ours, theirs) = tokio::io::duplex(3000);
            arrived.send(theirs).unwrap();
            let tls = to_origin.clone();
            Box::pin(async move {
                let stream = tls.connect(name(), ours).await?;
                Ok(Box::new(AsyncTransport::new(stream)) as Box<dyn Transport>)
            })
        }),
        max_connections: 10,
        budget: Arc::new(ConnectionBudget::with_room(10)),
        bypass: Arc::new(|_| false),
    };
    let shared = Arc::new(Shared::new(settings, watched));
    let (mut client, inner) = tokio::io::duplex(1000);
    let served = admit(
        &shared,
        AsyncTransport::new(inner),
        move |shared, stream, slot| route(shared, Conn::new(stream), proxy(), slot),
    );
    soon(client.write_all(REQUEST.as_bytes())).await.unwrap();
    let origin = soon(arrives.recv()).await.unwrap();
    let mut origin = soon(acceptor(&authority).accept(origin)).await.unwrap();
    let answering = answer_request(&mut origin);
    soon(async { tokio::join!(answering, read_response(&mut client)) }).await;
    drop((client, origin));
    soon(served.unwrap()).await.unwrap();
}

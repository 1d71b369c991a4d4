//! Measures the way out against the same work without it; `scripts/bench-egress` runs it where the addresses below
//! are local. Origin, proxy and client are threads of one process. Rounds alternate; medians and ratios are printed.
//! The origin does next to nothing, so that the proxy's own share shows. Between real programs
//! `scripts/bench-egress-peers` measures, and that is what the bars for throughput are about. With `serve` this is only
//! the proxy, for that script.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a program that prints figures and stops at the first surprise"
)]

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sbx_policy::{
    Decision, Host, LocalAddresses, Origin, Policy, Protocol, Rule, Scope, Target, Traffic,
};
use sbx_proxy::ca::{self, Authority};
use sbx_proxy::limits::ConnectionBudget;
use sbx_proxy::{Proxy, Settings, Sockets, system_dial, system_lookup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Where the sandbox's programs find the proxy.
const PROXY: &str = "10.0.2.2:3128";
/// An address like any other in the world.
const ORIGIN: &str = "203.0.113.1:4443";
const HOST: &str = "203.0.113.1";
const MEGABYTE: usize = 1_000_000;

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("serve") {
        return serve();
    }
    let rounds = argument.map_or(21, |n| n.parse().expect("a number of rounds"));
    let made = ca::create("bench", Timestamp::now()).expect("an authority");
    let trust = client_config(&made.certificate_pem);
    let authority = Authority::load("bench", &made.key_pem, Timestamp::now()).expect("a key");
    let host = Host::parse(HOST).expect("a host");
    let server = authority.impersonate(&host, Timestamp::now());
    let origin = start_origin(server.expect("a certificate"));
    let directory = tempfile::tempdir().expect("a directory");
    let proxy = start_proxy(authority, directory.path());

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let ways = [None, Some(PROXY.parse().expect("an address"))];
    let tls = TlsConnector::from(trust);
    let measure = |name: &str, work: &dyn Fn(Option<SocketAddr>) -> Duration, bar: &str, rate| {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (way, times) in ways.iter().zip(&mut times) {
                times.push(work(*way));
            }
        }
        let [direct, tunnel] = times.map(median);
        let (a, b) = (direct.as_secs_f64(), tunnel.as_secs_f64());
        let ratio = if rate { a / b } else { b / a };
        println!(
            "{name:<50} direct {:>8.2} ms  tunnel {:>8.2} ms  ratio {ratio:.2}  (bar {bar})",
            a * 1e3,
            b * 1e3
        );
    };
    measure(
        "HTTPS, 4 connections, 1 MB bodies, throughput",
        &|way| runtime.block_on(load(&tls, way, 4, 8, MEGABYTE)),
        "none in one process",
        true,
    );
    measure(
        "HTTPS keep-alive requests, 32 connections, rate",
        &|way| runtime.block_on(load(&tls, way, 32, 30, 100)),
        "none in one process",
        true,
    );
    measure(
        "new HTTPS connection and one request, latency",
        &|way| runtime.block_on(fresh(&tls, way, 20)),
        "<= 2.0",
        false,
    );
    decisions(rounds);
    drop(proxy);
    drop(origin);
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Only the proxy, for clients and origins of other makers, until stdin ends.
fn serve() {
    let made = ca::create("bench", Timestamp::now()).expect("an authority");
    let authority = Authority::load("bench", &made.key_pem, Timestamp::now()).expect("a key");
    let directory = tempfile::tempdir().expect("a directory");
    let _outlet = start_proxy(authority, directory.path());
    println!("ready");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("the end of stdin");
}

async fn connect(tls: &TlsConnector, way: Option<SocketAddr>) -> TlsStream<TcpStream> {
    let stream = match way {
        None => TcpStream::connect(ORIGIN).await.expect("the origin"),
        Some(proxy) => {
            let mut stream = TcpStream::connect(proxy).await.expect("the proxy");
            let request = format!("CONNECT {ORIGIN} HTTP/1.1\r\nHost: {ORIGIN}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("a write");
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                let read = stream.read_buf(&mut answer).await.expect("an answer");
                assert!(read > 0, "the proxy closed");
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "refused");
            stream
        }
    };
    stream.set_nodelay(true).expect("an option");
    let name = ServerName::try_from(HOST).expect("a name");
    tls.connect(name, stream).await.expect("a handshake")
}

async fn request(stream: &mut TlsStream<TcpStream>, bytes: usize, buffer: &mut [u8]) {
    let head = format!("GET /{bytes} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("a write");
    let mut left = bytes;
    let mut seen = Vec::new();
    loop {
        let read = stream.read(buffer).await.expect("a read");
        assert!(read > 0, "the origin closed");
        if seen.ends_with(b"done") {
            left -= read;
        } else {
            seen.extend_from_slice(&buffer[..read]);
            if let Some(end) = seen.windows(4).position(|w| w == b"\r\n\r\n") {
                left -= seen.len() - end - 4;
                seen = b"done".to_vec();
            }
        }
        if left == 0 && seen.ends_with(b"done") {
            return;
        }
    }
}

/// The time for `requests` requests on each of `connections` open connections.
async fn load(
    tls: &TlsConnector,
    way: Option<SocketAddr>,
    connections: usize,
    requests: usize,
    bytes: usize,
) -> Duration {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(connect(tls, way).await);
    }
    let start = Instant::now();
    let work = open.into_iter().map(|mut stream| {
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            for _ in 0..requests {
                request(&mut stream, bytes, &mut buffer).await;
            }
        })
    });
    for done in work.collect::<Vec<_>>() {
        done.await.expect("a connection");
    }
    start.elapsed()
}

async fn fresh(tls: &TlsConnector, way: Option<SocketAddr>, times: u32) -> Duration {
    let mut buffer = vec![0; 4096];
    let start = Instant::now();
    for _ in 0..times {
        let mut stream = connect(tls, way).await;
        request(&mut stream, 100, &mut buffer).await;
    }
    start.elapsed() / times
}

/// One decision among 1,000 rules, against one SHA-256 of 64 bytes.
fn decisions(rounds: usize) {
    let rules = (0..1000).map(|n| rule(n, &pattern(n)));
    let policy = Policy::compile(rules);
    let targets: Vec<Target> = (0..64)
        .map(|n| format!("a.h{}.example{}.test:443", n * 31 % 1000, n % 7))
        .chain((0..64).map(|n| format!("198.51.{}.{n}:443", n * 3)))
        .map(|text| Target::parse_loose(&text).expect("a target"))
        .collect();
    let now = Timestamp::now();
    let count = 20_000;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let start = Instant::now();
        for n in 0..count {
            let target = &targets[n % targets.len()];
            black_box(policy.decide(black_box(target), Protocol::Web, now));
        }
        times[0].push(start.elapsed());
        let start = Instant::now();
        let block = [7u8; 64];
        let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let hash = suite
            .tls13()
            .expect("a suite of TLS 1.3")
            .common
            .hash_provider;
        for _ in 0..count {
            black_box(hash.hash(black_box(&block)));
        }
        times[1].push(start.elapsed());
    }
    let [decision, sha] = times.map(|times| median(times).as_secs_f64() / count as f64 * 1e9);
    println!(
        "{:<50} decision {decision:>6.0} ns  SHA-256 {sha:>8.0} ns  ratio {:.2}  (bar <= 10)",
        "policy decision with 1,000 rules",
        decision / sha
    );
}

fn pattern(n: usize) -> String {
    match n % 5 {
        0 => format!("h{n}.example{}.test", n % 7),
        1 => format!("*.h{n}.example{}.test:443", n % 7),
        2 => format!("**.h{n}.example{}.test", n % 7),
        3 => format!("crl*.h{n}.example{}.test:80", n % 7),
        _ => format!("198.{}.{}.0/24", 18 + n % 2, n % 256),
    }
}

fn rule(n: usize, resource: &str) -> Rule {
    Rule {
        id: format!("r{n}"),
        name: format!("rule {n}"),
        policy: "local-policy".into(),
        scope: Scope::Global,
        decision: if n.is_multiple_of(10) {
            Decision::Deny
        } else {
            Decision::Allow
        },
        resources: vec![resource.parse().expect("a pattern")],
        origin: Origin::Local,
        traffic: Traffic::Any,
        expires: None,
        expired: false,
        editable: true,
        allow_private: false,
        created: None,
    }
}

fn client_config(pem: &str) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
    roots.add(certificate).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Every new connection is a whole handshake, both ways.
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

fn start_proxy(authority: Authority, log_dir: &std::path::Path) -> Proxy {
    let listener = std::net::TcpListener::bind(PROXY).expect("the proxy's address");
    listener.set_nonblocking(true).expect("an option");
    let policy = Policy::compile([rule(1, ORIGIN)]);
    let (sender, policy) = watch::channel(policy);
    // Whoever holds the policy decides when it ends: here, never.
    std::mem::forget(sender);
    let settings = Settings {
        sandbox: "bench".into(),
        log_dir: log_dir.to_owned(),
        authority,
        local_addresses: Arc::new(|_| LocalAddresses::default()),
        lookup: system_lookup().expect("a thread"),
        rule_time: Arc::new(Timestamp::now),
        dial: system_dial(),
        max_connections: 1000,
        budget: Arc::new(ConnectionBudget::new(1 << 16)),
        bypass: Arc::new(|_| false),
    };
    let sockets = Sockets {
        tcp: vec![listener.into()],
        ..Sockets::default()
    };
    Proxy::start(settings, policy, sockets).expect("a proxy")
}

fn start_origin(config: Arc<ServerConfig>) -> std::thread::JoinHandle<()> {
    let listener = std::net::TcpListener::bind(ORIGIN).expect("the origin's address");
    listener.set_nonblocking(true).expect("an option");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).expect("a listener");
            let body: Arc<Vec<u8>> = Arc::new(vec![b'x'; MEGABYTE]);
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let acceptor = TlsAcceptor::from(Arc::clone(&config));
                tokio::spawn(answer(acceptor, stream, Arc::clone(&body)));
            }
        });
    })
}

async fn answer(acceptor: TlsAcceptor, stream: TcpStream, body: Arc<Vec<u8>>) {
    stream.set_nodelay(true).expect("an option");
    let Ok(mut stream) = acceptor.accept(stream).await else {
        return;
    };
    let mut head = Vec::new();
    while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&head);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let bytes: usize = path.trim_start_matches('/').parse().unwrap_or(0);
        let mut reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
        reply.extend_from_slice(&body[..bytes.min(MEGABYTE)]);
        if stream.write_all(&reply).await.is_err() || stream.flush().await.is_err() {
            return;
        }
        head.clear();
    }
}

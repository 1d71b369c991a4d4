//! Our HTTP/1 forward path beside one that is made of hyper: requests per second, latency, memory, and what each takes
//! for a valid request. `scripts/bench-egress-hyper/run` runs it in a network namespace of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use sbx_policy::{Decision, LocalAddresses, Origin, Policy, Rule, Scope, Traffic};
use sbx_proxy::ca::{self, Authority};
use sbx_proxy::limits::ConnectionBudget;
use sbx_proxy::{Proxy, Settings, Sockets, system_dial, system_lookup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};

const OURS: &str = "10.0.2.2:3128";
const HYPER: &str = "10.0.2.2:3129";
const ORIGIN: &str = "203.0.113.1:8080";

/// What the parser of the proxy refuses, and why it matters. Each is sent as it is.
const SMUGGLING: &[(&str, &str)] = &[
    ("Content-Length and Transfer-Encoding", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two different Content-Length", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    ("two equal Content-Length", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    ("a list as Content-Length", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 5, 5\r\n\r\nhello"),
    ("Content-Length +5", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent-Length: +5\r\n\r\nhello"),
    ("Content-Length 05", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 05\r\n\r\nhello"),
    ("white space before the colon", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent-Length : 5\r\n\r\nhello"),
    ("Content_Length", "POST {} HTTP/1.1\r\nHost: {h}\r\nContent_Length: 5\r\n\r\nhello"),
    ("an unknown transfer coding", "POST {} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n"),
    ("Transfer-Encoding in HTTP/1.0", "POST {} HTTP/1.0\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("obs-fold", "GET {} HTTP/1.1\r\nHost: {h}\r\nX: a\r\n b\r\n\r\n"),
    ("bare LF as line ending", "GET {} HTTP/1.1\nHost: {h}\n\n"),
    ("bare LF in a field", "GET {} HTTP/1.1\r\nHost: {h}\r\nX: a\nY: b\r\n\r\n"),
    ("bare CR in a field", "GET {} HTTP/1.1\r\nHost: {h}\r\nX: a\rb\r\n\r\n"),
    ("two Host fields", "GET {} HTTP/1.1\r\nHost: {h}\r\nHost: other.test\r\n\r\n"),
    ("Host that differs from the target", "GET {} HTTP/1.1\r\nHost: other.test\r\n\r\n"),
    ("no Host", "GET {} HTTP/1.1\r\n\r\n"),
    ("user information in the target", "GET http://user@{h}/0 HTTP/1.1\r\nHost: {h}\r\n\r\n"),
    ("a fragment in the target", "GET {}#x HTTP/1.1\r\nHost: {h}\r\n\r\n"),
    ("two spaces in the request line", "GET  {} HTTP/1.1\r\nHost: {h}\r\n\r\n"),
    ("Connection: host", "GET {} HTTP/1.1\r\nHost: {h}\r\nConnection: host\r\n\r\n"),
    ("a chunk size with a sign", "POST {} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n"),
    ("bare LF behind a chunk size", "POST {} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n"),
    ("bare LF in a chunk extension", "POST {} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n"),
    ("white space before a chunk size", "POST {} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n"),
];

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    start(origin);
    start(hyper_proxy);
    let _ours = our_proxy();
    let runtime = runtime();
    match mode.as_str() {
        "memory-ours" => runtime.block_on(memory(OURS)),
        "memory-hyper" => runtime.block_on(memory(HYPER)),
        "smuggling" => runtime.block_on(smuggling()),
        _ => rates(&runtime),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

fn start<F: Future<Output = ()> + 'static>(work: fn() -> F) {
    std::thread::spawn(move || runtime().block_on(work()));
    std::thread::sleep(Duration::from_millis(100));
}

fn rates(runtime: &tokio::runtime::Runtime) {
    let works: [(&str, usize, usize, usize); 3] = [
        ("1 connection, 100 bytes", 1, 2000, 100),
        ("32 connections, 100 bytes", 32, 200, 100),
        ("4 connections, 1 MB", 4, 20, 1_000_000),
    ];
    for (name, connections, requests, bytes) in works {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..15 {
            for (way, times) in [ORIGIN, OURS, HYPER].iter().zip(&mut times) {
                times.push(runtime.block_on(load(way, connections, requests, bytes)));
            }
        }
        let rate = times.map(|mut times| {
            times.sort();
            (connections * requests) as f64 / times[times.len() / 2].as_secs_f64()
        });
        println!(
            "{name:<28} direct {:>7.0}/s  ours {:>7.0}/s ({:.0} us)  hyper {:>7.0}/s ({:.0} us)",
            rate[0], rate[1], connections as f64 / rate[1] * 1e6, rate[2], connections as f64 / rate[2] * 1e6,
        );
    }
}

async fn load(way: &str, connections: usize, requests: usize, bytes: usize) -> Duration {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(TcpStream::connect(way).await.expect("a proxy"));
    }
    let begin = Instant::now();
    let work: Vec<_> = (open.into_iter())
        .map(|mut stream| {
            stream.set_nodelay(true).expect("an option");
            tokio::spawn(async move {
                let mut buffer = vec![0; 256 << 10];
                for _ in 0..requests {
                    request(&mut stream, bytes, &mut buffer).await;
                }
            })
        })
        .collect();
    for done in work {
        done.await.expect("a connection");
    }
    begin.elapsed()
}

async fn request(stream: &mut TcpStream, bytes: usize, buffer: &mut [u8]) {
    let head = format!("GET http://{ORIGIN}/{bytes} HTTP/1.1\r\nHost: {ORIGIN}\r\nAccept: */*\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("a write");
    let (mut head, mut left) = (Vec::new(), None);
    while left != Some(0) {
        let read = stream.read(buffer).await.expect("a read");
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&head));
        left = match left {
            Some(left) => Some(left - read),
            None => {
                head.extend_from_slice(&buffer[..read]);
                let end = head.windows(4).position(|w| w == b"\r\n\r\n");
                end.map(|end| bytes - (head.len() - end - 4))
            }
        };
    }
}

async fn memory(way: &str) {
    let rss = || {
        let text = std::fs::read_to_string("/proc/self/status").expect("a status");
        let line = text.lines().find(|line| line.starts_with("VmRSS")).expect("a line");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number")
    };
    let mut buffer = vec![0; 4096];
    let mut open = Vec::new();
    for n in 0..900 {
        if n == 100 {
            println!("{way}: 100 connections, {} KB", rss());
        }
        let mut stream = TcpStream::connect(way).await.expect("a proxy");
        request(&mut stream, 100, &mut buffer).await;
        open.push(stream);
    }
    println!("{way}: 900 connections, {} KB", rss());
}

async fn smuggling() {
    for (name, text) in SMUGGLING {
        let uri = format!("http://{ORIGIN}/0");
        let text = text.replace("{}", &uri).replace("{h}", ORIGIN);
        let mut seen = Vec::new();
        for way in [OURS, HYPER] {
            let mut stream = TcpStream::connect(way).await.expect("a proxy");
            stream.write_all(text.as_bytes()).await.expect("a write");
            let mut answer = vec![0; 12];
            let read = tokio::time::timeout(Duration::from_secs(2), stream.read_exact(&mut answer));
            seen.push(match read.await {
                Ok(Ok(_)) => String::from_utf8_lossy(&answer[9..]).into_owned(),
                Ok(Err(_)) => "closed".into(),
                Err(_) => "waits".into(),
            });
        }
        println!("{name:<40} ours {:<7} hyper {}", seen[0], seen[1]);
    }
}

async fn origin() {
    let listener = TcpListener::bind(ORIGIN).await.expect("the origin's address");
    let body: Arc<Vec<u8>> = Arc::new(vec![b'x'; 1_000_000]);
    loop {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let body = Arc::clone(&body);
        stream.set_nodelay(true).expect("an option");
        tokio::spawn(async move {
            let mut head = Vec::new();
            while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                if !head.windows(4).any(|w| w == b"\r\n\r\n") {
                    continue;
                }
                let text = String::from_utf8_lossy(&head);
                let path = text.split(' ').nth(1).unwrap_or_default();
                let last = path.rsplit('/').next().unwrap_or_default();
                let bytes: usize = last.parse().unwrap_or(0);
                let mut reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
                reply.extend_from_slice(&body[..bytes]);
                if stream.write_all(&reply).await.is_err() {
                    return;
                }
                head.clear();
            }
        });
    }
}

type Kept = Arc<Mutex<Option<SendRequest<Incoming>>>>;
type Answer = Response<BoxBody<Bytes, hyper::Error>>;

async fn hyper_proxy() {
    let listener = TcpListener::bind(HYPER).await.expect("an address");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("an option");
        let kept = Kept::default();
        let service = service_fn(move |request| forward(request, Arc::clone(&kept)));
        let serving = hyper::server::conn::http1::Builder::new();
        tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
    }
}

async fn forward(mut request: Request<Incoming>, kept: Kept) -> hyper::Result<Answer> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>().expect("a path");
    let mut kept = kept.lock().await;
    let mut sender = match kept.take() {
        Some(sender) => sender,
        None => {
            let Ok(stream) = TcpStream::connect(ORIGIN).await else {
                let mut answer = Response::new(Full::default().map_err(|e| match e {}).boxed());
                *answer.status_mut() = hyper::StatusCode::BAD_GATEWAY;
                return Ok(answer);
            };
            stream.set_nodelay(true).expect("an option");
            let io = TokioIo::new(stream);
            let (sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection);
            sender
        }
    };
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    *kept = Some(sender);
    Ok(response.map(BodyExt::boxed))
}

fn our_proxy() -> Proxy {
    let made = ca::create("bench", Timestamp::now()).expect("an authority");
    let listener = std::net::TcpListener::bind(OURS).expect("an address");
    listener.set_nonblocking(true).expect("an option");
    let rule = Rule {
        id: "r1".into(),
        name: "rule 1".into(),
        policy: "local".into(),
        scope: Scope::Global,
        decision: Decision::Allow,
        resources: vec![ORIGIN.parse().expect("a pattern")],
        origin: Origin::Local,
        traffic: Traffic::Any,
        expires: None,
        editable: true,
        created: None,
    };
    let (sender, policy) = watch::channel(Policy::compile([rule]));
    std::mem::forget(sender);
    let settings = Settings {
        sandbox: "bench".into(),
        log_dir: tempfile::tempdir().expect("a directory").keep(),
        authority: Authority::load("bench", &made.key_pem, Timestamp::now()).expect("a key"),
        local_addresses: Arc::new(|_| LocalAddresses::default()),
        lookup: system_lookup().expect("a thread"),
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

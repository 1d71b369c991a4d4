//! A sandbox's way out without a sandbox.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use sbx_policy::{Decision, LocalAddresses, Origin, Pattern, Policy, Rule, Scope, Traffic};
use sbx_proto::net::{GATEWAY_V4, PROXY_PORT};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::origin::head;
use crate::audit::{self, Line, Outcome, Part, Phase};
use crate::ca::{self, Authority};
use crate::conn::Conn;
use crate::dial::dial_tcp;
use crate::limits::ConnectionBudget;
use crate::proxy::{Settings, Shared, admit, route};

/// Longer than every deadline of the proxy, which matters where the clock is not the real one.
const HANG_TIMEOUT: Duration = Duration::from_secs(200);

/// Nothing in these tests takes long, unless it never ends.
pub(super) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG_TIMEOUT, work)
        .await
        .expect("it does not end")
}

/// A request for a proxy.
pub(super) fn get(host: &str) -> String {
    format!("GET http://{host}/x HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// `allow PATTERN`, `deny PATTERN`, `allow-web PATTERN` or `allow-private PATTERN`; rules are called r0, r1, ...
pub(super) fn rules(texts: &[&str]) -> Vec<Rule> {
    texts
        .iter()
        .enumerate()
        .map(|(n, text)| rule(n, text))
        .collect()
}

pub(super) fn rule(n: usize, text: &str) -> Rule {
    let (decision, resource) = text.split_once(' ').unwrap();
    let allow_private = decision == "allow-private";
    let (decision, traffic) = match decision {
        "allow" | "allow-private" => (Decision::Allow, Traffic::Any),
        "allow-web" => (Decision::Allow, Traffic::Web),
        "deny" => (Decision::Deny, Traffic::Any),
        other => panic!("{other}"),
    };
    Rule {
        id: format!("r{n}"),
        name: format!("rule {n}"),
        policy: "local".into(),
        scope: Scope::Sandbox("one".into()),
        decision,
        resources: Pattern::parse_list(resource).unwrap(),
        origin: Origin::Scoped,
        traffic,
        expires: None,
        expired: false,
        editable: true,
        allow_private,
        created: None,
    }
}

/// The addresses of each name: one answer after the other, the last for good.
type Zone = Arc<Mutex<BTreeMap<String, Vec<Vec<IpAddr>>>>>;

pub(super) struct World {
    pub(super) shared: Arc<Shared>,
    pub(super) authority_pem: String,
    policy: watch::Sender<Policy>,
    own: Arc<Mutex<LocalAddresses>>,
    zone: Zone,
    asked: Arc<Mutex<Vec<String>>>,
    dialled: Arc<Mutex<Vec<SocketAddr>>>,
    refusing: Arc<AtomicBool>,
    origin: TcpListener,
    dir: TempDir,
}

/// What every world's resolver knows.
const NAMES: &[(&str, &[&str])] = &[
    ("one.test", &["192.0.2.1"]),
    ("two.test", &["192.0.2.2"]),
    ("a.wild.test", &["192.0.2.11"]),
    ("b.wild.test", &["192.0.2.12", "2001:db8::12"]),
];

impl World {
    pub(super) async fn new(texts: &[&str]) -> Self {
        Self::with(rules(texts), 64).await
    }

    pub(super) async fn with(rules: Vec<Rule>, max_connections: usize) -> Self {
        let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = origin.local_addr().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let made = ca::create("one", now).unwrap();
        let (zone, asked) = (Zone::default(), Arc::new(Mutex::new(Vec::new())));
        let own = Arc::default();
        let (dialled, refusing) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
        let (policy, watched) = watch::channel(Policy::compile(rules));
        let settings = Settings {
            sandbox: "one".into(),
            log_dir: dir.path().join("log"),
            authority: Authority::load("one", &made.key_pem, now).unwrap(),
            local_addresses: local_addresses(Arc::clone(&own)),
            lookup: lookup(Arc::clone(&zone), Arc::clone(&asked)),
            rule_time: Arc::new(Timestamp::now),
            dial: dial(at, Arc::clone(&dialled), Arc::clone(&refusing)),
            max_connections,
            budget: Arc::new(ConnectionBudget::with_room(max_connections)),
            bypass: Arc::new(|host| host.to_string() == "pinned.test"),
        };
        let world = Self {
            shared: Arc::new(Shared::new(settings, watched)),
            authority_pem: made.certificate_pem,
            policy,
            own,
            zone,
            asked,
            dialled,
            refusing,
            origin,
            dir,
        };
        for (name, addresses) in NAMES {
            world.resolves(name, &[addresses]);
        }
        world
    }

    /// The resolver answers with these, one after the other.
    pub(super) fn resolves(&self, name: &str, answers: &[&[&str]]) {
        let parse = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        let mut answers: Vec<_> = answers.iter().map(parse).collect();
        answers.reverse();
        self.zone.lock().unwrap().insert(name.into(), answers);
    }

    /// The machine has these addresses from now on.
    pub(super) fn has(&self, addresses: &[&str]) {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap());
        *self.own.lock().unwrap() = addresses.collect();
    }

    pub(super) fn set_rules(&self, rules: Vec<Rule>) {
        self.policy.send_replace(Policy::compile(rules));
    }

    pub(super) fn set(&self, texts: &[&str]) {
        self.set_rules(rules(texts));
    }

    /// The rules and the addresses of the host, as the gate sees them.
    pub(super) fn policy(&self) -> Policy {
        let own = self.own.lock().unwrap().clone();
        self.policy.borrow().with_local_addresses(own)
    }

    /// Whether the origin refuses connections.
    pub(super) fn refuse(&self, refusing: bool) {
        self.refusing.store(refusing, Ordering::Relaxed);
    }

    /// The next connection that arrives at the origin.
    pub(super) async fn arrives(&self) -> TcpStream {
        soon(self.origin.accept()).await.unwrap().0
    }

    /// What was dialled since the last call.
    pub(super) fn dialled(&self) -> Vec<SocketAddr> {
        std::mem::take(&mut self.dialled.lock().unwrap())
    }

    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub(super) fn log_dir(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// One for each decision: the end of a connection, if it ended.
    pub(super) fn lines(&self) -> Vec<Line> {
        let all = self.all_lines();
        let ended: Vec<u64> = (all.iter().filter(|line| line.phase == Phase::Closed))
            .map(|line| line.id)
            .collect();
        let open = |line: &Line| line.phase == Phase::Open;
        (all.into_iter())
            .filter(|line| !open(line) || !ended.contains(&line.id))
            .collect()
    }

    /// In the order of time.
    pub(super) fn all_lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for part in Part::ALL {
            let text = std::fs::read_to_string(audit::file(&self.log_dir(), "one", part));
            for line in text.unwrap_or_default().lines() {
                lines.push(serde_json::from_str::<Line>(line).unwrap());
            }
        }
        lines.sort_by_key(|line| line.time + Duration::from_millis(line.duration_ms));
        lines
    }

    pub(super) fn last_line(&self) -> Line {
        self.lines().pop().expect("nothing is on record")
    }

    /// What went wrong with the last connection on record.
    pub(super) fn last_error(&self) -> String {
        let allowed = |line: &Line| line.verdict == Outcome::Allow;
        let last = self.lines().into_iter().rfind(allowed);
        last.and_then(|line| line.error)
            .expect("nothing went wrong")
    }

    /// A client of the proxy.
    pub(super) async fn forward(&self) -> Client {
        let proxy = SocketAddr::from((GATEWAY_V4, PROXY_PORT));
        self.client(proxy).await.expect("there is room")
    }

    /// A client that dials as if there were no proxy.
    pub(super) async fn transparent(&self, dialled: &str) -> Client {
        let dialled = dialled.parse().unwrap();
        self.client(dialled).await.expect("there is room")
    }

    /// A request to the proxy, whose head has arrived at its origin.
    pub(super) async fn request(&self, request: impl AsRef<[u8]>) -> (Client, TcpStream) {
        let mut client = self.forward().await;
        client.send(request).await;
        let mut origin = self.arrives().await;
        head(&mut origin).await;
        (client, origin)
    }

    /// A tunnel through the proxy to its port 443.
    pub(super) async fn tunnel(&self, host: &str) -> (Client, TcpStream) {
        let mut client = self.forward().await;
        client
            .send(format!(
                "CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n"
            ))
            .await;
        client.until("\r\n\r\n").await;
        (client, self.arrives().await)
    }

    pub(super) async fn client(&self, dialled: SocketAddr) -> Option<Client> {
        let (stream, inner) = pair().await;
        let served = admit(&self.shared, inner, move |shared, stream, slot| {
            route(shared, Conn::new(stream), dialled, slot)
        })?;
        Some(Client { stream, served })
    }
}

fn local_addresses(own: Arc<Mutex<LocalAddresses>>) -> crate::LocalAddressSource {
    Arc::new(move |_| own.lock().unwrap().clone())
}

fn lookup(zone: Zone, asked: Arc<Mutex<Vec<String>>>) -> crate::Lookup {
    Arc::new(move |name| {
        asked.lock().unwrap().push(name.to_string());
        let mut zone = zone.lock().unwrap();
        let found = zone
            .get_mut(name.as_str())
            .map(|answers| match answers.len() {
                0 => Vec::new(),
                1 => answers[0].clone(),
                _ => answers.pop().unwrap_or_default(),
            });
        let found = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        Box::pin(std::future::ready(found))
    })
}

fn dial(
    origin: SocketAddr,
    dialled: Arc<Mutex<Vec<SocketAddr>>>,
    refusing: Arc<AtomicBool>,
) -> crate::Dial {
    Arc::new(move |address| {
        dialled.lock().unwrap().push(address);
        if refusing.load(Ordering::Relaxed) {
            let refused = io::ErrorKind::ConnectionRefused.into();
            return Box::pin(std::future::ready(Err(refused)));
        }
        Box::pin(dial_tcp(origin))
    })
}

pub(super) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
    (ours.unwrap(), theirs.unwrap().0)
}

/// A program in the sandbox.
pub(super) struct Client {
    pub(super) stream: TcpStream,
    /// Ends when everything about the connection is done and on record.
    pub(super) served: JoinHandle<()>,
}

impl Client {
    pub(super) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon(self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    pub(super) async fn until(&mut self, end: &str) -> String {
        until(&mut self.stream, end).await
    }

    /// Exactly that comes next.
    pub(super) async fn hears(&mut self, expected: &str) {
        assert_eq!(exactly(&mut self.stream, expected.len()).await, expected);
    }

    /// Everything up to the end of the connection, however it ends.
    pub(super) async fn rest(&mut self) -> String {
        rest(&mut self.stream).await
    }

    /// The connection is broken off without another byte.
    pub(super) async fn is_reset(&mut self) {
        let mut byte = [0];
        let read = soon(self.stream.read(&mut byte)).await;
        let error = read.expect_err("a word or an ordinary end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    /// The client is gone, and its record is complete.
    pub(super) async fn leave(self) {
        drop(self.stream);
        soon(self.served).await.unwrap();
    }
}

pub(super) async fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    while !got.ends_with(end.as_bytes()) {
        let byte = soon(stream.read_u8()).await;
        let so_far = String::from_utf8_lossy(&got).into_owned();
        got.push(byte.unwrap_or_else(|error| panic!("{error} after {so_far:?}")));
    }
    String::from_utf8(got).unwrap()
}

pub(super) async fn exactly(stream: &mut TcpStream, length: usize) -> String {
    let mut got = vec![0; length];
    soon(stream.read_exact(&mut got)).await.unwrap();
    String::from_utf8(got).unwrap()
}

pub(super) async fn rest(stream: &mut TcpStream) -> String {
    let mut got = Vec::new();
    // A broken connection is an end too.
    let _ = soon(stream.read_to_end(&mut got)).await;
    String::from_utf8(got).unwrap()
}

//! Published ports: Appendix B 16 and more.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::{Sandbox, World, blocked, eventually, kill};

pub const TESTS: &[ModeTest] = &[
    ("ports::reach_servers_on_the_loopback_inside", reach),
    ("ports::come_back_after_stop_and_restart", come_back),
    ("ports::are_published_and_unpublished", publish),
    ("ports::that_cannot_be_had_are_refused", refused),
    ("ports::are_all_that_the_daemon_listens_on", nothing_else),
];

/// The same daemon does the same in every mode.
pub const INDEPENDENT: &[ModeTest] = &[
    ("ports::datagrams_find_their_server", datagrams),
    ("ports::thousands_are_open_at_the_same_time", at_once),
    ("ports::other_machines_reach_what_they_may", elsewhere),
    ("ports::every_protocol_comes_back", protocols),
    ("ports::another_one_is_asked_for_on_a_terminal", asked),
    (
        "ports::another_one_is_asked_for_when_a_stored_one_is_taken",
        asked_at_start,
    ),
    (
        "ports::a_taken_one_is_changed_while_stopped",
        changed_while_stopped,
    ),
    ("ports::ten_thousand_connections", many),
    ("ports::a_hostile_server_harms_no_other_client", hostile),
];

const TIMEOUT: Duration = Duration::from_secs(60);

/// A server inside, and the client that waits for it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended with its sandbox.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An echo server inside.
fn serve(sandbox: &Sandbox<'_>, port: u16) -> Server {
    let script = include_str!("ports/echo.py");
    sandbox.world.write(&sandbox.path("echo.py"), script);
    Server(sandbox.begin(&format!("exec /usr/bin/python3 echo.py {port}")))
}

impl Sandbox<'_> {
    #[track_caller]
    fn ports(&self, flags: &[&str]) -> String {
        let mut args = vec!["ports", &self.name];
        args.extend(flags);
        self.world.run(args).ok()
    }

    #[track_caller]
    fn mappings(&self) -> Vec<Value> {
        serde_json::from_str(&self.ports(&["--json"])).unwrap()
    }

    /// Publishes one, and returns everywhere that it can be reached.
    #[track_caller]
    fn mappings_of(&self, port: &str) -> Vec<SocketAddr> {
        let said = self.ports(&["--publish", port]);
        let lines = said
            .lines()
            .map(|line| line.strip_prefix("Published ").unwrap());
        lines
            .map(|line| line.split(' ').next().unwrap().parse().unwrap())
            .collect()
    }

    /// Publishes one, and returns where.
    #[track_caller]
    fn publish(&self, port: &str) -> SocketAddr {
        let said = self.ports(&["--publish", port]);
        let address = said.strip_prefix("Published ").unwrap();
        address.split(' ').next().unwrap().parse().unwrap()
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Whether a line comes back.
fn echoes(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return false;
    };
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = [0; 6];
    stream.write_all(b"hello\n").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && &answer == b"hello\n"
}

fn reach(world: &'static World) {
    let sandbox = world.sandbox("reach");
    let server = serve(&sandbox, 8000);
    let address = sandbox.publish("8000");
    assert!(address.ip().is_loopback() && address.is_ipv4(), "{address}");
    assert!(echoes(address));
    // A question that ends before its answer begins.
    let mut stream = connect(address);
    let question = vec![b'q'; 1 << 20];
    stream.write_all(b"whole\n").unwrap();
    stream.write_all(&question).unwrap();
    stream.write_all(b"!").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!((answer.len(), answer[0]), (question.len() + 1, b'!'));
    // IPv6 outside, and a server on IPv6 inside.
    let six = sandbox.publish("8000/tcp6");
    assert!(six.ip().is_loopback() && six.is_ipv6(), "{six}");
    assert!(echoes(six));
    let datagrams = sandbox.publish("8000/udp4");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.send_to(b"datagram", datagrams).unwrap();
    let mut buffer = [0; 64];
    let (length, from) = client.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from), (&b"datagram"[..], datagrams));
    // Without a server the connection is reset, and works again when it is back.
    drop(server);
    eventually("the server has gone", || (!echoes(address)).then_some(()));
    let _server = serve(&sandbox, 8000);
    assert!(echoes(address));
}

fn come_back(world: &'static World) {
    // The daemon of this test is killed.
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("back");
    let address = sandbox.publish("8000");
    sandbox.ports(&["--unpublish", "8000"]);
    let port = address.port();
    let explicit = format!("{port}:8000");
    assert_eq!(sandbox.publish(&explicit), address);
    let tcp = sandbox.publish("8000/tcp");
    world.run(["stop", &sandbox.name]).ok();
    assert!(TcpStream::connect(address).is_err(), "closed while stopped");
    let stored = sandbox.mappings();
    assert_eq!(stored.len(), 3, "{stored:?}");
    // Another program takes the port meanwhile.
    let other = TcpListener::bind(address).unwrap();
    let failed = sandbox.exec(["true"]).fails(125);
    assert!(failed.err.contains(&address.to_string()), "{}", failed.err);
    assert!(failed.err.contains("in use"), "{}", failed.err);
    let hint = format!(
        "hint: sbx ports {} --unpublish {address}:8000/tcp4 --publish 8000/tcp4",
        sandbox.name
    );
    assert!(failed.err.contains(&hint), "{}", failed.err);
    assert_eq!(world.status(&sandbox.name), "stopped");
    drop(other);
    let _server = serve(&sandbox, 8000);
    assert!(echoes(address));
    // The next daemon has them again, and the server was not disturbed.
    assert!(kill(world.daemon_pid(), Signal::KILL));
    eventually("published again", || {
        // Starts a daemon, once the killed one is seen to be gone.
        sandbox.exec(["true"]).ok();
        echoes(address).then_some(())
    });
    let again = sandbox.mappings();
    let both: Vec<_> = again
        .iter()
        .filter(|port| port["protocol"] == "tcp")
        .collect();
    assert_eq!(both.len(), 2, "{again:?}");
    assert_eq!(both[0]["host_port"], both[1]["host_port"]);
    assert_eq!(both[0]["host_port"], tcp.port());
    world.run(["rm", "--force", &sandbox.name]).ok();
    TcpListener::bind(address).unwrap();
}

fn publish(world: &'static World) {
    let sandbox = world.sandbox_with("publish", &["-p", "80", "-p", "81/tcp"]);
    let at_create = sandbox.mappings();
    let port = at_create[0]["host_port"].as_u64().unwrap();
    assert_eq!(
        at_create[0],
        json!({"host_ip": "127.0.0.1", "host_port": port, "sandbox_port": 80, "protocol": "tcp4"})
    );
    let protocols: Vec<_> = at_create.iter().map(|it| it["protocol"].as_str()).collect();
    assert_eq!(protocols, [Some("tcp4"), Some("tcp"), Some("tcp")]);
    let shown = format!("127.0.0.1:{port}->80/tcp4");
    assert_eq!(world.inspect(&sandbox.name)["ports"][0], *shown);
    assert!(world.run(["ls"]).ok().contains(&shown));
    let table = sandbox.ports(&[]);
    let mut lines = table.lines();
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        words(lines.next().unwrap()),
        ["HOST", "IP", "HOST", "PORT", "SANDBOX", "PORT", "PROTOCOL"]
    );
    let row = ["127.0.0.1", &port.to_string(), "80", "tcp4"];
    assert_eq!(words(lines.next().unwrap()), row);
    // By the sandbox's port, by the host's, and by both.
    let said = sandbox.ports(&["--unpublish", "80"]);
    assert_eq!(said, format!("Unpublished 127.0.0.1:{port} -> 80/tcp4"));
    let host = at_create[1]["host_port"].to_string();
    sandbox.ports(&["--unpublish", &host]);
    assert_eq!(sandbox.mappings(), Vec::<Value>::new());
    let address = sandbox.publish("82/tcp");
    let both = format!("{}:82", address.port());
    assert_eq!(sandbox.ports(&["--unpublish", &both, "--json"]), "[]");
    assert!(TcpStream::connect(address).is_err());
    // All or nothing.
    let taken = sandbox.publish("83").port().to_string();
    let twice = format!("{taken}:84");
    let change = [
        "ports",
        &sandbox.name,
        "--unpublish",
        "83",
        "--publish",
        "x",
    ];
    world.run(change).fails(1);
    let change = [
        "ports",
        &sandbox.name,
        "--publish",
        "85",
        "--publish",
        &twice,
    ];
    let failed = world.run(change).fails(1);
    assert!(failed.err.contains(&sandbox.name), "{}", failed.err);
    assert_eq!(sandbox.mappings().len(), 1);
    // While it is stopped nothing needs to start for it.
    world.run(["stop", &sandbox.name]).ok();
    sandbox.ports(&["--unpublish", &taken]);
    assert_eq!(world.status(&sandbox.name), "stopped");
    sandbox.publish("86");
    assert_eq!(world.status(&sandbox.name), "running");
}

fn refused(world: &'static World) {
    let sandbox = world.sandbox("refused");
    let fails = |flag: &str, port: &str| {
        let failed = world.run(["ports", &sandbox.name, flag, port]).fails(1);
        failed.err
    };
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let said = fails("--publish", &format!("{}:80", taken.port()));
    assert!(said.contains(&format!("port {taken} is in use")), "{said}");
    for invalid in ["", "0", "80/sctp", "70000", "1:2:3", "[::1]:1:2/tcp4"] {
        let said = fails("--publish", invalid);
        assert!(
            said.contains("hint: use [[HOST_IP:]HOST_PORT:]SANDBOX_PORT"),
            "{said}"
        );
    }
    // An address that is for documentation, and so not this machine's.
    let said = fails("--publish", "192.0.2.1:8080:80");
    assert!(said.contains("not an address of this machine"), "{said}");
    let said = fails("--unpublish", "80");
    assert!(said.contains("has no published port"), "{said}");
    let limit = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if world.uid != 0 && limit.trim() != "0" {
        let said = fails("--publish", "1:80");
        assert!(said.contains("privileged"), "{said}");
    } else if world.uid != 0 {
        blocked("no port is privileged on this machine");
    }
    let none = world.run(["ports", "no-such-sandbox"]).fails(1);
    assert!(none.err.contains("no sandbox named"), "{}", none.err);
    // A create that cannot publish leaves nothing.
    let (name, workspace) = (world.name("taken"), world.workspace());
    let port = format!("{}:80", taken.port());
    let workspace = workspace.to_str().unwrap();
    let create = ["create", "--name", &name, "-p", &port, "shell", workspace];
    world.run(create).fails(1);
    assert!(!world.names().contains(&name));
}

fn many(world: &'static World) {
    const THREADS: usize = 20;
    const AT_ONCE: usize = 50;
    let sandbox = world.sandbox("many");
    let _server = serve(&sandbox, 8000);
    let address = sandbox.publish("8000");
    let served = || {
        let mut served = 0;
        for _ in 0..10_000 / THREADS / AT_ONCE {
            let mut streams: Vec<_> = (0..AT_ONCE).map(|_| connect(address)).collect();
            for stream in &mut streams {
                stream.write_all(b"hello\n").unwrap();
            }
            for stream in &mut streams {
                let mut answer = [0; 6];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"hello\n");
                served += 1;
            }
        }
        served
    };
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(served)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(total, 10_000);
}

/// Answers to a datagram that is sent until one comes: a server may not be up yet.
fn answered(address: SocketAddr) -> Vec<u8> {
    let any = if address.is_ipv4() {
        "127.0.0.1:0"
    } else {
        "[::1]:0"
    };
    let client = UdpSocket::bind(any).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut buffer = [0; 64];
    eventually("an answer", || {
        client.send_to(b"who", address).unwrap();
        let (length, from) = client.recv_from(&mut buffer).ok()?;
        assert_eq!(from, address);
        Some(buffer[..length].to_vec())
    })
}

fn datagrams(world: &'static World) {
    let sandbox = world.sandbox("datagrams");
    let script = "
import socket, sys
where, port = sys.argv[1], int(sys.argv[2])
server = socket.socket(socket.AF_INET6 if ':' in where else socket.AF_INET, socket.SOCK_DGRAM)
server.bind((where, port))
print('ready', flush=True)
while True:
    data, client = server.recvfrom(100)
    server.sendto(where.encode(), client)
";
    world.write(&sandbox.path("server.py"), script);
    let serve = |place: &str, port: u16| {
        Server(sandbox.begin(&format!("exec /usr/bin/python3 server.py {place} {port}")))
    };
    let own = sbx_proto::net::SANDBOX_V4.to_string();
    let both = sandbox.mappings_of("9000/udp");
    for place in ["127.0.0.1", "::1", &own, "0.0.0.0", "::"] {
        let server = serve(place, 9000);
        for address in &both {
            assert_eq!(answered(*address), place.as_bytes(), "{address}");
        }
        drop(server);
    }
    // The family that was asked for comes first.
    let (four, six) = (sandbox.publish("9001/udp4"), sandbox.publish("9001/udp6"));
    assert!(four.is_ipv4() && six.is_ipv6());
    let _servers = [serve("127.0.0.1", 9001), serve("::1", 9001)];
    assert_eq!(answered(four), b"127.0.0.1");
    assert_eq!(answered(six), b"::1");
}

fn at_once(world: &'static World) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let world = &World::fresh(world.mode);
    let sandbox = world.sandbox("at-once");
    // The daemon has two descriptors for each, of half of what it may have. This test has one.
    let most = descriptors_of(world.daemon_pid());
    let own = limit.maximum.unwrap_or(1 << 20) - 512;
    let count = usize::try_from(((most - 512) / 4).min(own).min(10_000)).unwrap();
    let _server = serve(&sandbox, 8000);
    let address = sandbox.publish("8000");
    let mut open: Vec<TcpStream> = Vec::with_capacity(count);
    for _ in 0..count {
        open.push(connect(address));
    }
    for round in 0..2 {
        for stream in &mut open {
            stream.write_all(b"hello\n").unwrap();
        }
        for (number, stream) in open.iter_mut().enumerate() {
            let mut answer = [0; 6];
            let read = stream.read_exact(&mut answer);
            read.unwrap_or_else(|error| panic!("{number} of {count} in round {round}: {error}"));
            assert_eq!(&answer, b"hello\n");
        }
    }
    // The API has descriptors left, and so have other sandboxes.
    let other = world.sandbox("beside");
    assert_eq!(other.exec(["echo", "alive"]).ok(), "alive");
    if count < 10_000 {
        blocked(format!(
            "{most} descriptors of the daemon and {own} of the test are enough for {count} connections at the same time"
        ));
    }
}

/// How many it may have.
pub fn descriptors_of(pid: i32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|it| it.starts_with("Max open files"));
    let soft = line.unwrap().split_whitespace().nth(3).unwrap();
    soft.parse().unwrap()
}

/// Appendix B 23: what the daemon listens on, on the host, is what was published.
fn nothing_else(world: &'static World) {
    let world = &World::fresh(world.mode);
    let sandbox = world.sandbox("listening");
    sandbox.exec(["true"]).ok();
    let listening = || listeners_of(world.daemon_pid());
    assert!(listening().is_empty(), "{:?}", listening());
    let addresses = ["8000", "8000/tcp6"].map(|port| sandbox.publish(port));
    assert_eq!(listening(), BTreeSet::from(addresses));
    for address in addresses {
        let mapping = format!("{address}:8000");
        sandbox.ports(&["--unpublish", &mapping]);
    }
    assert!(listening().is_empty(), "{:?}", listening());
}

/// The addresses of the listening TCP sockets of a process, in the network namespace that it is in.
fn listeners_of(pid: i32) -> BTreeSet<SocketAddr> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = fds.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let own: BTreeSet<String> = links
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?;
            Some(inode.strip_suffix(']')?.to_owned())
        })
        .collect();
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{pid}/net/{table}"));
    let tables = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    rows.filter_map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let (local, state, inode) = (words[1], words[3], words[9]);
        (state == "0A" && own.contains(inode)).then(|| socket_address(local))
    })
    .collect()
}

/// As the kernel writes it: hexadecimal, an address in words of this machine's byte order.
fn socket_address(text: &str) -> SocketAddr {
    let (ip, port) = text.split_once(':').unwrap();
    let words: Vec<[u8; 4]> = (0..ip.len() / 8)
        .map(|at| {
            u32::from_str_radix(&ip[8 * at..8 * at + 8], 16)
                .unwrap()
                .to_ne_bytes()
        })
        .collect();
    let bytes = words.concat();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).unwrap()),
    };
    SocketAddr::new(ip, u16::from_str_radix(port, 16).unwrap())
}

fn asked(world: &'static World) {
    let sandbox = world.sandbox("asked");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let port = format!("{}:80", taken.port());
    let session = Session::start(world, &["ports", &sandbox.name, "--publish", &port]);
    session.expect(&format!("port {taken} is in use"));
    session.type_in("nonsense\n");
    session.expect("That is not a port");
    session.type_in("\n");
    let (code, shown) = session.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("Published 127.0.0.1:"), "{shown}");
    let mapping = &sandbox.mappings()[0];
    assert_ne!(mapping["host_port"], taken.port());
    assert_eq!(mapping["sandbox_port"], 80);
}

fn asked_at_start(world: &'static World) {
    let sandbox = world.sandbox("restart");
    let first = sandbox.publish("80");
    let second = sandbox.publish("81/tcp");
    // From now on as the user's own choice.
    sandbox.ports(&["--unpublish", "80", "--unpublish", "81"]);
    sandbox.publish(&format!("{}:80", first.port()));
    sandbox.publish(&format!("{}:81/tcp", second.port()));
    world.run(["stop", &sandbox.name]).ok();
    let taken = [first, second].map(|address| TcpListener::bind(address).unwrap());
    let session = Session::start(
        world,
        &["run", "--name", &sandbox.name, "--", "-c", "echo up"],
    );
    session.expect(&format!("port {first} is in use"));
    session.type_in("nonsense\n");
    session.expect("That is not a port");
    session.type_in("\n");
    session.expect(&format!("port {second} is in use"));
    session.type_in("\n");
    let (code, shown) = session.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("Published 127.0.0.1:"), "{shown}");
    assert!(
        shown.contains("\nup") || shown.contains("up\r\n"),
        "{shown}"
    );
    let found = sandbox.mappings();
    assert!(
        found
            .iter()
            .all(|port| port["host_port"] != first.port() && port["host_port"] != second.port())
    );
    let protocols: Vec<_> = found.iter().map(|port| port["protocol"].as_str()).collect();
    assert_eq!(
        protocols,
        [Some("tcp4"), Some("tcp"), Some("tcp")],
        "{found:?}"
    );
    drop(taken);
}

/// A stopped sandbox whose port is taken: as one change it goes, and one that fails changes nothing.
fn changed_while_stopped(world: &'static World) {
    let sandbox = world.sandbox("changed");
    let free = sandbox.publish("80").port();
    sandbox.ports(&["--unpublish", "80"]);
    let address = sandbox.publish(&format!("{free}:80"));
    world.run(["stop", &sandbox.name]).ok();
    let taken = TcpListener::bind(address).unwrap();
    let before = sandbox.mappings();
    let again = format!("{free}:81");
    let change = ["ports", &sandbox.name, "--unpublish", "80", "--publish"];
    let failed = world
        .run(change.iter().copied().chain([again.as_str()]))
        .fails(1);
    assert!(
        failed.err.contains(&format!("port {address} is in use")),
        "{}",
        failed.err
    );
    assert_eq!(
        (sandbox.mappings(), world.status(&sandbox.name)),
        (before, "stopped".into())
    );
    world.run(change.iter().copied().chain(["80"])).ok();
    let after = sandbox.mappings();
    assert_eq!(
        (after.len(), world.status(&sandbox.name)),
        (1, "running".into())
    );
    assert_ne!(after[0]["host_port"], free);
    drop(taken);
}

/// An address of this machine that is not its loopback's: where a packet to another network would leave from. None is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().unwrap().ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

/// The host IP decides who can connect; what is not said means this machine alone.
fn elsewhere(world: &'static World) {
    let Some(own) = own_address() else {
        return blocked("this machine has no address but its loopback's");
    };
    let sandbox = world.sandbox("elsewhere");
    let _server = serve(&sandbox, 8000);
    let usual = sandbox.publish("8000");
    assert!(echoes(usual));
    let outside = SocketAddr::new(own, usual.port());
    let refused = TcpStream::connect(outside).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let port = format!("{own}:{}:8000", usual.port());
    let said = world.run(["ports", &sandbox.name, "--publish", &port]);
    let warning = format!("warning: {outside} can be reached from other machines");
    assert!(said.err.contains(&warning), "{}", said.err);
    assert!(said.ok().starts_with(&format!("Published {outside} -> ")));
    assert!(echoes(outside) && echoes(usual));
    // `create` says so too.
    world.run(["rm", "--force", &sandbox.name]).ok();
    let (name, workspace) = (world.name("elsewhere"), world.workspace());
    let workspace = workspace.to_str().unwrap();
    let made = world.run(["create", "--name", &name, "-p", &port, "shell", workspace]);
    assert!(made.err.contains(&warning), "{}", made.err);
    made.ok();
    world.run(["rm", "--force", &name]).ok();
}

/// `run -p`, and what is neither TCP nor IPv4, after a stop.
fn protocols(world: &'static World) {
    let (name, workspace) = (world.name("protocols"), world.workspace());
    let dir = workspace.to_str().unwrap();
    let ports = ["-p", "8000/udp4", "-p", "8000/tcp6", "-p", "8000"];
    let run = [&["run", "--name", &name][..], &ports, &["shell", dir]].concat();
    world.run([&run[..], &["--", "-c", "true"]].concat()).ok();
    let sandbox = world.adopt(&name, &workspace);
    let before = sandbox.mappings();
    let named: Vec<_> = before.iter().map(|it| it["protocol"].as_str()).collect();
    assert_eq!(named, [Some("udp4"), Some("tcp6"), Some("tcp4")]);
    world.run(["stop", &name]).ok();
    let _server = serve(&sandbox, 8000);
    assert_eq!(sandbox.mappings(), before);
    let at = |number: usize| {
        let (ip, port) = (&before[number]["host_ip"], &before[number]["host_port"]);
        let ip: IpAddr = ip.as_str().unwrap().parse().unwrap();
        SocketAddr::new(ip, port.as_u64().unwrap().try_into().unwrap())
    };
    assert_eq!(answered(at(0)), b"who");
    assert!(at(1).is_ipv6() && echoes(at(1)));
    assert!(echoes(at(2)));
    // One that is there gets no second set.
    let again = world.run([&run[..], &["--", "-c", "true"]].concat());
    assert!(again.code != 0 || sandbox.mappings() == before, "{again:?}");
    for protocol in ["8000/udp4", "8000/tcp6"] {
        sandbox.ports(&["--unpublish", protocol]);
    }
    assert_eq!(sandbox.mappings(), before[2..]);
}

fn hostile(world: &'static World) {
    // What other tests do to their daemon is not to be seen here, nor its memory.
    let world = World::fresh(world.mode);
    let (sandbox, quiet) = (world.sandbox("hostile"), world.sandbox("quiet"));
    let script = include_str!("ports/hostile.py");
    world.write(&sandbox.path("hostile.py"), script);
    let _server = Server(sandbox.begin("exec /usr/bin/python3 hostile.py"));
    let _echo = serve(&quiet, 8000);
    let [flood, reset, deaf] = ["7001", "7002", "7003"].map(|port| sandbox.publish(port));
    let bystander = quiet.publish("8000");
    let before = daemon_memory(&world);
    // Clients that read nothing of a flood, and one that floods a server that reads nothing.
    let mut floods: Vec<_> = (0..50).map(|_| connect(flood)).collect();
    for stream in &mut floods {
        stream.read_exact(&mut [0; 64]).unwrap();
    }
    let mut deaf = connect(deaf);
    deaf.set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    while deaf.write(&[0; 65536]).is_ok() {}
    for _ in 0..100 {
        let mut end = Vec::new();
        // Whatever it is that arrives, it ends. A reset may even come before connect(2) has returned.
        match TcpStream::connect(reset) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let _ = stream.read_to_end(&mut end);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!(
                "{error}; the sandbox is {}, its ports are {:?}",
                world.status(&sandbox.name),
                sandbox.mappings()
            ),
        }
        assert!(end.len() <= 1000);
    }
    assert!(echoes(bystander), "other sandboxes are served");
    let grown = daemon_memory(&world).saturating_sub(before);
    assert!(grown < 64 << 10, "the daemon has grown by {grown} KiB");
    sandbox.ports(&["--unpublish", "7001"]);
    assert!(TcpStream::connect(flood).is_err());
    for stream in &mut floods {
        // What the kernel holds still comes, then it is over.
        let mut rest = [0; 65536];
        while stream.read(&mut rest).is_ok_and(|count| count > 0) {}
    }
    assert!(echoes(bystander));
}

/// In KiB.
fn daemon_memory(world: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.daemon_pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

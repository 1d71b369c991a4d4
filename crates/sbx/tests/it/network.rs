//! The network of a sandbox: every address is there, everything ends at the listeners that init holds, and every
//! port belongs to the programs inside. The daemon is killed where the test serves the listeners in its place.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sbx_engine::machine::control::Link;
use sbx_engine::machine::egress::Redirect;
use sbx_engine::state::socket::connect_unix;
use sbx_proto::exec::{Reply, Request, Role};
use sbx_proto::frame::{Decoder, MAX_REPLY, encode};
use sbx_sys::{original_dst, pktinfo};

use crate::ModeTest;
use crate::harness::{Mode, Ran, Sandbox, World, alive, blocked, eventually, kill};

pub const TESTS: &[ModeTest] = &[
    ("network::the_world_ends_at_the_listeners", listeners),
    (
        "network::programs_have_every_port_for_themselves",
        own_ports,
    ),
    ("network::only_the_sandbox_answers_a_ping", ping),
    ("network::listeners_are_for_the_daemon_only", clients),
];
/// With one id root inside has no power over the network.
pub const REAL_ROOT: &[ModeTest] = &[("network::containers_inside_have_a_network", containers)];
/// A filter that survives `newuidmap` needs root.
pub const ROOT: &[ModeTest] = &[("network::without_nf_tables", without_nf_tables)];

/// Says a line per attempt: its name, and what came back or the error's name.
const LIBRARY: &str = include_str!("network/lib.py");

fn listeners(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("listeners");
    assert_eq!(world.inspect(&sandbox.name)["network"]["redirect"], "nft");
    let script = include_str!("network/listeners.py");
    let said = with_listeners(&sandbox, Redirect::Nft, script);
    let expected = [
        ("silence", "TimeoutError"),
        ("tcp4", "tcp 1.2.3.4:80"),
        ("tcp6", "tcp [2001:db8::1]:443"),
        ("any_port", "tcp 203.0.113.7:61951"),
        ("gateway", "tcp 10.0.2.2:3128"),
        ("dns4", "answer"),
        ("dns6", "answer"),
        ("dns_tcp4", "dns 9.9.9.9:53"),
        ("dns_tcp6", "dns [2001:db8::53]:53"),
        ("udp4", "ECONNREFUSED"),
        ("udp6", "ECONNREFUSED"),
        ("quic", "ECONNREFUSED"),
        ("take_tcp_2", "EADDRINUSE"),
        ("take_tcp_15", "EADDRINUSE"),
        ("take_dns_2", "EADDRINUSE"),
        ("take_dns_15", "EADDRINUSE"),
    ];
    assert_eq!(said, expected.map(owned).into());
    // The next daemon finds the same.
    sandbox.exec(["true"]).ok();
    assert_eq!(world.inspect(&sandbox.name)["network"]["redirect"], "nft");
}

fn own_ports(world: &'static World) {
    let sandbox = world.sandbox("ports");
    let script = include_str!("network/own_ports.py");
    let said = run(&sandbox, script);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 30, "{said}");
    assert!(
        lines[..26].iter().all(|line| line.ends_with(" own")),
        "{said}"
    );
    let rest = [
        "found 1",
        "found 1",
        "source 10.0.2.15",
        "foreign EADDRNOTAVAIL",
    ];
    assert_eq!(lines[26..], rest);
}

fn ping(world: &'static World) {
    let sandbox = world.sandbox("ping");
    let script = include_str!("network/ping.py");
    let said = run(&sandbox, script);
    assert_eq!(
        said,
        "v4 EPERM\nv6 TimeoutError\nown4 answered\nown6 answered"
    );
}

fn containers(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("containers");
    let script = include_str!("network/containers.py");
    let said = with_listeners(&sandbox, Redirect::Nft, script);
    let expected = [
        ("world4", "tcp 1.2.3.4:80"),
        ("world6", "tcp [2001:db8::1]:443"),
        ("world_private", "tcp 10.1.2.3:80"),
        ("dns", "answer"),
        ("dns6", "answer"),
        ("udp", "ECONNREFUSED"),
        ("bridge4", "own"),
        ("bridge6", "own"),
        ("other_bridge", "own"),
        ("sandbox4", "own"),
        ("sandbox6", "own"),
        ("neighbour", "second"),
        ("to_container", "second"),
        ("to_bridge", "own"),
        ("still_world", "tcp 1.2.3.4:80"),
    ];
    assert_eq!(said, expected.map(owned).into());
}

fn clients(world: &'static World) {
    let sandbox = world.sandbox("clients");
    let connect = || UnixStream::connect(exec_dir(&sandbox).join("exec.sock")).unwrap();
    let mut stream = connect();
    let hello = Request::Hello {
        protocol: sbx_proto::PROTOCOL,
        role: Role::Client,
    };
    // The second greeting does not make it another: a role is kept.
    let second = Request::Hello {
        protocol: sbx_proto::PROTOCOL,
        role: Role::Daemon,
    };
    let own = sbx_sys::peer::pid_namespace().unwrap();
    let greeting = encode(&hello).unwrap();
    sbx_sys::fdpass::send_with_fds(&stream, &greeting, &[own.as_fd()]).unwrap();
    for request in [Request::Listeners, second, Request::Listeners] {
        stream.write_all(&encode(&request).unwrap()).unwrap();
    }
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let (mut decoder, mut fds) = (Decoder::new(MAX_REPLY), Vec::new());
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = sbx_sys::fdpass::recv_with_fds(&stream, &mut buffer, &mut fds) {
        decoder.push(&buffer[..count]);
        while let Some(reply) = decoder.take::<Reply>().unwrap() {
            assert!(!matches!(reply, Reply::Listeners(_)), "{reply:?}");
        }
    }
    assert!(fds.is_empty());
    // A client that cannot show that it is outside of all sandboxes gets no answer.
    let elsewhere = format!(
        "/proc/{}/ns/pid_for_children",
        world.init_pid(&sandbox.name)
    );
    let elsewhere = fs::File::open(elsewhere).or_else(|_| fs::File::open("/proc/self/ns/user"));
    let elsewhere = elsewhere.unwrap();
    for shown in [&[][..], &[elsewhere.as_fd()]] {
        let mut other_client = connect();
        sbx_sys::fdpass::send_with_fds(&other_client, &greeting, shown).unwrap();
        let mut answer = Vec::new();
        other_client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"");
    }
}

/// Programs are found on the ports that they dial most, and cannot have those.
fn without_nf_tables(world: &'static World) {
    if cfg!(not(target_arch = "x86_64")) {
        return blocked("the filter that hides nf_tables is written for x86-64");
    }
    let world = World::fresh(world.mode);
    // socket(AF_NETLINK, _, NETLINK_NETFILTER) fails with EPROTONOSUPPORT, as in a kernel without it.
    let without = include_str!("network/no_nf_tables.py");
    let mut start = world.command("/usr/bin/python3");
    start
        .args(["-c", without])
        .arg(crate::harness::programs().join("sbx"));
    Ran::from(start.args(["daemon", "start", "-d"]).output().unwrap()).ok();
    let sandbox = world.sandbox("without");
    let shown = world.inspect(&sandbox.name);
    assert_eq!(shown["network"]["redirect"], "ports");
    assert!(
        shown["isolation"].to_string().contains("nf_tables"),
        "{shown}"
    );
    let script = include_str!("network/ports.py");
    let said = with_listeners(&sandbox, Redirect::Ports, script);
    let expected = [
        ("tcp_22", "tcp 1.2.3.4:22"),
        ("tcp_80", "tcp 1.2.3.4:80"),
        ("tcp_443", "tcp 1.2.3.4:443"),
        ("tcp_3128", "tcp 1.2.3.4:3128"),
        ("tcp6", "tcp [2001:db8::1]:443"),
        ("dns", "answer"),
        ("dns6", "answer"),
        ("dns_tcp", "dns 9.9.9.9:53"),
        ("other_port", "ECONNREFUSED"),
        ("udp", "ECONNREFUSED"),
        ("listen", "EADDRINUSE"),
    ];
    assert_eq!(said, expected.map(owned).into());
}

fn owned((name, result): (&str, &str)) -> (String, String) {
    (name.to_owned(), result.to_owned())
}

/// Runs a script to its end as the agent; what it said.
#[track_caller]
fn run(sandbox: &Sandbox<'_>, script: &str) -> String {
    let script = format!("{LIBRARY}{script}");
    sandbox.exec(["/usr/bin/python3", "-c", &script]).ok()
}

/// Runs a script, as root where there is one, without a daemon: between its files `waited` and `served` the test
/// takes the listeners over.
#[track_caller]
fn with_listeners(
    sandbox: &Sandbox<'_>,
    redirect: Redirect,
    script: &str,
) -> BTreeMap<String, String> {
    let world = sandbox.world;
    let id = world.id(&sandbox.name);
    let start = "from lib import *\nprint('ready', flush=True)\nawait_file('go')\n";
    world.write(&sandbox.path("lib.py"), LIBRARY);
    world.write(&sandbox.path("script.py"), format!("{start}{script}"));
    let sudo = if world.mode == Mode::Single {
        ""
    } else {
        "sudo -n "
    };
    let client = sandbox.begin(&format!("exec {sudo}/usr/bin/python3 script.py"));
    kill_daemon(world);
    world.write(&sandbox.path("go"), "");
    eventually("the script waits", || {
        sandbox.path("waited").exists().then_some(())
    });
    let served = Served::take(sandbox, &id, redirect);
    world.write(&sandbox.path("served"), "");
    let said = finish(client);
    drop(served);
    said
}

fn finish(client: Child) -> BTreeMap<String, String> {
    let said = Ran::from(client.wait_with_output().unwrap()).ok();
    said.lines()
        .filter_map(|line| line.split_once(' '))
        .map(owned)
        .collect()
}

fn kill_daemon(world: &World) {
    let daemon = world.daemon_pid();
    assert!(kill(daemon, Signal::KILL));
    eventually("the daemon is dead", || (!alive(daemon)).then_some(()));
}

fn exec_dir(sandbox: &Sandbox<'_>) -> std::path::PathBuf {
    let dir = sandbox.world.state().join("vm").join(&sandbox.name);
    assert!(fs::exists(dir.join("exec.sock")).unwrap());
    dir
}

/// The listeners of a sandbox, served until this is dropped: who connects is told what it has dialled.
struct Served {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Served {
    #[track_caller]
    fn take(sandbox: &Sandbox<'_>, id: &str, redirect: Redirect) -> Self {
        // The test is root, and init of the world's user.
        let stream = connect_unix(&exec_dir(sandbox), "exec.sock").unwrap();
        let mut link = Link::greet(stream, Some(id), Role::Daemon).unwrap();
        let listeners = link.listeners().unwrap();
        assert_eq!(listeners.redirect, redirect);
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let mut serve = |socket: OwnedFd, answer: fn(&OwnedFd)| {
            let stop = Arc::clone(&stop);
            threads.push(thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    if readable(&socket) {
                        answer(&socket);
                    }
                }
            }));
        };
        for socket in listeners.tcp {
            serve(socket, |socket| accept(socket, "tcp"));
        }
        for socket in listeners.dns_tcp {
            serve(socket, |socket| accept(socket, "dns"));
        }
        for socket in listeners.dns_udp {
            serve(socket, answer);
        }
        Self { stop, threads }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn readable(socket: &OwnedFd) -> bool {
    let timeout = Timespec::try_from(Duration::from_millis(50)).unwrap();
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1))
}

fn accept(socket: &OwnedFd, what: &str) {
    let listener = TcpListener::from(socket.try_clone().unwrap());
    if let Ok((stream, _)) = listener.accept() {
        let mut stream: TcpStream = stream;
        let dialled = original_dst::original_dst(&stream).unwrap();
        // Who has given up meanwhile does not hear it.
        let _ = stream.write_all(format!("{what} {dialled}").as_bytes());
    }
}

fn answer(socket: &OwnedFd) {
    let mut buffer = [0; 512];
    if let Ok(datagram) = pktinfo::recv_from_to(socket, &mut buffer) {
        assert_eq!(&buffer[..datagram.len], b"question");
        pktinfo::send_from(socket, b"answer", datagram.peer, datagram.local).unwrap();
    }
}

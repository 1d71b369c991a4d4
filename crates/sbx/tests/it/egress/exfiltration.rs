//! Programs whose purpose is to get something out. Nothing is allowed, the world outside records every packet, and
//! there must be none: not while the daemon serves, not while it is dead, not afterwards.

use std::io::Read;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::{blocked, host_has, sandbox};
use crate::harness::{Mode, Ran, Sandbox, World, alive, eventually, kill};

/// In a world of its own.
type Test = (&'static str, fn(Mode));

pub(super) const TESTS: &[Test] = &[("exfiltration::nothing_leaves", nothing_leaves)];

/// Programs of the host that `tools.sh` runs.
const TOOLS: [&str; 9] = [
    "iodine",
    "dns2tcpc",
    "ptunnel-ng",
    "proxytunnel",
    "corkscrew",
    "hping3",
    "socat",
    "nc",
    "scapy",
];

/// Looks at the records without a new one.
const QUIET: u32 = 12;

fn nothing_leaves(mode: Mode) {
    let world = World::fresh_online(mode, true);
    let sandbox = sandbox(&world, "exfil");
    attack(&sandbox, &["tools.sh", "sockets.py"]);
    assert_nothing(&world, "deny-all");
    without_a_daemon(&sandbox);
    assert_nothing(&world, "no daemon");
    // Another daemon finds the sandbox as it was. The world would have known: one who may go out is seen.
    attack(&sandbox, &["sockets.py"]);
    assert_nothing(&world, "the next daemon");
    works(&sandbox);
    let before = settled(&world);
    assert!(before > 0);
    world.run(["daemon", "restart"]).ok();
    attack(&sandbox, &["sockets.py"]);
    assert_eq!(settled(&world), before, "{:#?}", last(&world));
    works(&sandbox);
    // What this preset allows is none of these.
    let before = settled(&world);
    world.run(["policy", "reset", "--force"]).ok();
    world.run(["policy", "init", "balanced"]).ok();
    attack(&sandbox, &["tools.sh", "sockets.py"]);
    assert_eq!(settled(&world), before, "{:#?}", last(&world));
}

fn without_a_daemon(sandbox: &Sandbox<'_>) {
    let world = sandbox.world;
    let attacking = begin(sandbox, &["tools.sh", "sockets.py"]);
    let daemon = world.daemon_pid();
    assert!(kill(daemon, Signal::KILL));
    eventually("the daemon is dead", || (!alive(daemon)).then_some(()));
    world.write(&sandbox.path("go"), "");
    finish(attacking);
    std::fs::remove_file(sandbox.path("go")).unwrap();
    // Nobody has started another meanwhile.
    let status = world.run(["daemon", "status"]).ok();
    assert!(status.contains("stopped"), "{status}");
}

/// The sandbox gets out where it may.
#[track_caller]
fn works(sandbox: &Sandbox<'_>) {
    sandbox.allow("origin.test:443");
    for way in super::WAYS {
        assert_eq!(sandbox.curl(way, "https://origin.test/hello").ok(), "hello");
    }
}

/// With all the power that there is inside.
fn begin(sandbox: &Sandbox<'_>, scripts: &[&str]) -> Child {
    let world = sandbox.world;
    for missing in TOOLS.into_iter().filter(|tool| *tool != "scapy") {
        // Where one is, the others are tried and the test is incomplete.
        host_has(missing);
    }
    let texts = [
        ("tools.sh", include_str!("tools.sh")),
        ("sockets.py", include_str!("sockets.py")),
        ("packets.py", include_str!("packets.py")),
    ];
    for (name, text) in texts {
        world.write(&sandbox.path(name), text);
    }
    let user = if world.mode == Mode::Single {
        "agent"
    } else {
        "root"
    };
    let runs: Vec<String> = scripts
        .iter()
        .map(|script| {
            let by = if script.ends_with(".py") {
                "/usr/bin/python3"
            } else {
                "bash"
            };
            format!("{by} {script} &")
        })
        .collect();
    let script = format!(
        "echo waiting; while [ ! -e go ]; do sleep 0.05; done; {} wait",
        runs.join(" ")
    );
    let mut client = world
        .sbx(["exec", "-u", user, &sandbox.name, "bash", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut waiting = [0; 8];
    let stdout = client.stdout.as_mut().unwrap();
    stdout.read_exact(&mut waiting).unwrap();
    assert_eq!(&waiting, b"waiting\n");
    client
}

#[track_caller]
fn attack(sandbox: &Sandbox<'_>, scripts: &[&str]) {
    let attacking = begin(sandbox, scripts);
    sandbox.world.write(&sandbox.path("go"), "");
    finish(attacking);
    std::fs::remove_file(sandbox.path("go")).unwrap();
}

/// Everything was tried, and nothing was heard.
#[track_caller]
fn finish(attacking: Child) {
    let said = Ran::from(attacking.wait_with_output().unwrap());
    let out = said.out;
    assert!(out.contains("sockets tried"), "{out}{}", said.err);
    assert!(!out.contains("GOT"), "{out}");
    if out.contains("scapy missing") {
        blocked("the host's Python has no `scapy`");
    }
}

/// What the world has heard, once connections that have ended have said so.
#[track_caller]
fn settled(world: &World) -> usize {
    let (mut seen, mut quiet) = (0, 0);
    eventually("nothing moves outside", || {
        let now = world.internet().records().len();
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
        (quiet == QUIET).then_some(seen)
    })
}

fn last(world: &World) -> Vec<Value> {
    let records = world.internet().records();
    let from = records.len().saturating_sub(20);
    records[from..].to_vec()
}

#[track_caller]
fn assert_nothing(world: &World, what: &str) {
    assert_eq!(settled(world), 0, "{what}: {:#?}", last(world));
}

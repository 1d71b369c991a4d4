//! Programs whose purpose is to get something out. Nothing is allowed, the world outside records every packet, and
//! there must be none: not while the daemon serves, not while it is dead, not afterwards.

use std::io::Read;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::{host_has, sandbox};
use crate::harness::{Mode, Ran, Sandbox, World, alive, eventually, kill, python_has};

/// In a world of its own.
type Test = (&'static str, fn(Mode));

pub(super) const TESTS: &[Test] = &[("exfiltration::nothing_leaves", nothing_leaves)];

/// Programs of the host that `tools.sh` runs.
const TOOLS: [&str; 11] = [
    "iodine",
    "dns2tcpc",
    "ptunnel-ng",
    "proxytunnel",
    "corkscrew",
    "hping3",
    "socat",
    "nc",
    "curl",
    "ssh",
    "gtlsclient",
];

/// Looks at the records without a new one.
const QUIET: u32 = 12;

fn nothing_leaves(mode: Mode) {
    let world = World::fresh_online(mode, true);
    let sandbox = sandbox(&world, "exfil");
    for tool in TOOLS {
        // Where one is missing the others are tried, and the test is incomplete.
        host_has(tool);
    }
    python_has("scapy");
    stays_inside(&sandbox, "deny-all");
    // The world would have known: one who may go out is seen.
    let before = settled(&world);
    works(&sandbox);
    assert!(settled(&world) > before);
    // What this preset allows is none of these.
    world.run(["policy", "reset", "--force"]).ok();
    world.run(["policy", "init", "balanced"]).ok();
    stays_inside(&sandbox, "balanced");
    works(&sandbox);
}

/// Everything is tried while the daemon serves, while it is dead, by the next one, and by one that was asked to go on.
fn stays_inside(sandbox: &Sandbox<'_>, policy: &str) {
    let world = sandbox.world;
    let before = settled(world);
    let nothing = |what: &str| {
        assert_eq!(
            settled(world),
            before,
            "{policy}, {what}: {:#?}",
            last(world)
        );
    };
    attack(sandbox);
    nothing("served");
    without_a_daemon(sandbox);
    nothing("no daemon");
    // Another finds the sandbox as it was.
    attack(sandbox);
    nothing("the next daemon");
    world.run(["daemon", "restart"]).ok();
    attack(sandbox);
    nothing("restarted");
}

fn without_a_daemon(sandbox: &Sandbox<'_>) {
    let world = sandbox.world;
    for user in users(world.mode) {
        let attacking = begin(sandbox, user);
        let daemon = world.daemon_pid();
        assert!(kill(daemon, Signal::KILL));
        eventually("the daemon is dead", || (!alive(daemon)).then_some(()));
        finish(sandbox, attacking);
        // No other one was started meanwhile.
        let status = world.run(["daemon", "status"]).ok();
        assert!(status.contains("stopped"), "{status}");
    }
}

/// The sandbox gets out where it may.
#[track_caller]
fn works(sandbox: &Sandbox<'_>) {
    sandbox.allow("origin.test:443");
    for way in super::WAYS {
        assert_eq!(sandbox.curl(way, "https://origin.test/hello").ok(), "hello");
    }
}

/// Those with all the power that there is inside. With one id that is no more than everybody has, and must not be.
fn users(mode: Mode) -> &'static [&'static str] {
    if mode == Mode::Single {
        &["root", "agent"]
    } else {
        &["root"]
    }
}

/// Goes on when there is a file `go`.
fn begin(sandbox: &Sandbox<'_>, user: &str) -> Child {
    let world = sandbox.world;
    let texts = [
        ("tools.sh", include_str!("tools.sh")),
        ("sockets.py", include_str!("sockets.py")),
        ("packets.py", include_str!("packets.py")),
    ];
    for (name, text) in texts {
        world.write(&sandbox.path(name), text);
    }
    let script = "echo waiting; while [ ! -e go ]; do sleep 0.05; done; bash tools.sh & /usr/bin/python3 sockets.py & wait";
    let mut client = world
        .sbx(["exec", "-u", user, &sandbox.name, "bash", "-c", script])
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
fn attack(sandbox: &Sandbox<'_>) {
    for user in users(sandbox.world.mode) {
        let attacking = begin(sandbox, user);
        finish(sandbox, attacking);
    }
}

/// Everything was tried, and nothing was heard.
#[track_caller]
fn finish(sandbox: &Sandbox<'_>, attacking: Child) {
    sandbox.world.write(&sandbox.path("go"), "");
    let said = Ran::from(attacking.wait_with_output().unwrap());
    std::fs::remove_file(sandbox.path("go")).unwrap();
    let out = said.out;
    for script in ["tools", "sockets"] {
        let tried = format!("{script} tried");
        assert!(out.contains(&tried), "{out}{}", said.err);
    }
    assert!(!out.contains("GOT"), "{out}");
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

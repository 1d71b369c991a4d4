//! Programs whose purpose is to get something out. Nothing is allowed, the world outside records every packet, and
//! there must be none: not while the daemon serves, not while it is dead, not afterwards.

use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::{Way, host_has, sandbox};
use crate::ModeTest;
use crate::harness::{Mode, Ran, Sandbox, World, alive, eventually, kill};

pub(super) const TESTS: &[ModeTest] = &[
    ("exfiltration::tools_move_no_byte", tools),
    (
        "exfiltration::without_a_daemon_nothing_leaves",
        without_a_daemon,
    ),
    ("exfiltration::with_the_balanced_preset", balanced),
];

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

fn tools(world: &'static World) {
    let world = World::fresh_online(world.mode, true);
    let sandbox = sandbox(&world, "exfil");
    assert_nothing(&world, "before");
    attack(&sandbox, &["tools.sh", "sockets.py"]);
    assert_nothing(&world, "tools");
    // The world would have known: one who may go out is seen.
    works(&sandbox);
    assert!(packets(&world) > 0);
}

fn without_a_daemon(world: &'static World) {
    let world = World::fresh_online(world.mode, true);
    let sandbox = sandbox(&world, "orphan");
    sandbox.allow("origin.test,raw.test");
    sandbox
        .python(Way::Transparent, include_str!("raw.py"), &["raw.test:7000"])
        .ok();
    let before = packets(&world);
    let attacking = begin(&sandbox, &["tools.sh", "sockets.py"]);
    let daemon = world.daemon_pid();
    assert!(kill(daemon, Signal::KILL));
    eventually("the daemon is dead", || (!alive(daemon)).then_some(()));
    // Connections of a daemon that is killed are closed by the kernel, which says so.
    let left = packets(&world);
    world.write(&sandbox.path("go"), "");
    finish(attacking);
    assert_eq!(packets(&world), left, "{before}: {:#?}", last(&world));
    // The next one finds the sandbox as it was, and so does `restart`.
    for _ in 0..2 {
        works(&sandbox);
        let before = packets(&world);
        attack(&sandbox, &["sockets.py"]);
        assert_eq!(packets(&world), before, "{:#?}", last(&world));
        world.run(["daemon", "restart"]).ok();
    }
    works(&sandbox);
}

/// What this preset allows is none of these.
fn balanced(world: &'static World) {
    let world = World::fresh_online(world.mode, true);
    world.run(["policy", "reset", "--force"]).ok();
    world.run(["policy", "init", "balanced"]).ok();
    let sandbox = sandbox(&world, "balanced");
    attack(&sandbox, &["tools.sh", "sockets.py"]);
    assert_nothing(&world, "balanced");
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
        // Says so where it has not.
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
    world
        .sbx(["exec", "-u", user, &sandbox.name, "bash", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
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
        eprintln!("environment_blocked: the host's Python has no `scapy`");
    }
}

fn packets(world: &World) -> usize {
    world.internet().records().len()
}

fn last(world: &World) -> Vec<Value> {
    let records = world.internet().records();
    let from = records.len().saturating_sub(20);
    records[from..].to_vec()
}

#[track_caller]
fn assert_nothing(world: &World, what: &str) {
    assert_eq!(packets(world), 0, "{what}: {:#?}", last(world));
}

//! A daemon that has no more processes or descriptors: what sandboxes can bring about.

use rustix::process::{Resource, getrlimit};

use super::{NO_PROXY, Way, sandbox};
use crate::harness::{Mode, Ran, World, programs};

/// In a world of its own.
type Test = (&'static str, fn(Mode));

pub(super) const TESTS: &[Test] = &[
    ("starved::of_processes", of_processes),
    ("starved::of_descriptors", of_descriptors),
];

/// The daemon can start no thread and no process, and goes on without.
fn of_processes(mode: Mode) {
    let world = World::fresh_online(mode, false);
    let sandbox = sandbox(&world, "starved");
    let workspace = world.workspace();
    let create = || {
        let dir = workspace.to_str().unwrap();
        world.run(["create", "--name", "another", "shell", dir])
    };
    sandbox.allow("**.wild.test,raw.test:7000");
    // Whatever was started for that and ends by itself later is of no help.
    world.run(["daemon", "restart"]).ok();
    let daemon = world.daemon_pid();
    limit_processes(&world, daemon, "1");
    let said = |target: &str| {
        sandbox
            .python(Way::Transparent, include_str!("raw.py"), &[target])
            .ok()
    };
    for host in ["raw.test:7000", "fresh.wild.test:7000"] {
        assert_eq!(said(host), "ping");
    }
    assert_eq!(sandbox.check("new.wild.test:7000")["allowed"], true);
    assert_eq!(world.status(&sandbox.name), "running");
    // Root has no such limit.
    if mode != Mode::Root {
        let refused = create().refused();
        assert!(
            refused.err.contains("temporarily unavailable"),
            "{}",
            refused.err
        );
    }
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(world.daemon_pid(), daemon);
    let usual = getrlimit(Resource::Nproc).current;
    let usual = usual.map_or("unlimited".into(), |usual| usual.to_string());
    limit_processes(&world, daemon, &usual);
    if mode != Mode::Root {
        create().ok();
    }
    assert_eq!(said("raw.test:7000"), "ping");
    assert_eq!(world.daemon_pid(), daemon);
}

/// Two sandboxes open more connections than the daemon has descriptors for; it answers, and a third has its network.
fn of_descriptors(mode: Mode) {
    let world = World::fresh_online(mode, false);
    world.run(["daemon", "stop"]).ok();
    let mut start = world.command("prlimit");
    start
        .arg("--nofile=200:200")
        .arg(programs().join("sbx"))
        .args(["daemon", "start", "-d"]);
    Ran::from(start.output().unwrap()).ok();
    let greedy = ["greedy", "greedier"].map(|hint| sandbox(&world, hint));
    let holding = greedy.each_ref().map(|sandbox| {
        sandbox.allow("raw.test:7000");
        world.write(&sandbox.path("crowd.py"), include_str!("crowd.py"));
        let script = format!("{NO_PROXY}; exec /usr/bin/python3 crowd.py raw.test 7000 60");
        sandbox.begin(&script)
    });
    for sandbox in &greedy {
        assert_eq!(world.status(&sandbox.name), "running");
        assert_eq!(
            sandbox.assert_logged("", "network", "deny")["reason"],
            "too many connections"
        );
    }
    let modest = sandbox(&world, "modest");
    modest.allow("raw.test:7000");
    let raw = include_str!("raw.py");
    let said = modest.python(Way::Transparent, raw, &["raw.test:7000"]);
    assert_eq!(said.ok(), "ping");
    for (sandbox, child) in greedy.iter().zip(holding) {
        world.write(&sandbox.path("go"), "");
        Ran::from(child.wait_with_output().unwrap()).ok();
    }
}

/// As the daemon's own user, who may do that without any power.
fn limit_processes(world: &World, daemon: i32, soft: &str) {
    let mut command = world.command("prlimit");
    command
        .args(["--pid", &daemon.to_string()])
        .arg(format!("--nproc={soft}:"));
    assert!(command.status().unwrap().success());
}

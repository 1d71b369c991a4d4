//! A daemon whose user has no more processes: what a sandbox can bring about.

use rustix::process::{Resource, getrlimit};

use super::{Way, sandbox};
use crate::harness::{Mode, World};

/// In a world of its own.
type Test = (&'static str, fn(Mode));

pub(super) const TESTS: &[Test] = &[("starved::of_processes", of_processes)];

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

/// As the daemon's own user, who may do that without any power.
fn limit_processes(world: &World, daemon: i32, soft: &str) {
    let mut command = world.command("prlimit");
    command
        .args(["--pid", &daemon.to_string()])
        .arg(format!("--nproc={soft}:"));
    assert!(command.status().unwrap().success());
}

//! The daemon as a process: what it says of itself, what it has from its caller, whom it keeps waiting.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, World, alive, children, eventually, kill, programs, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("daemon::status_and_log_level", status),
    ("daemon::start_chooses_a_policy_once", start_policy),
    ("daemon::a_slow_create_blocks_nobody", slow_create),
    ("daemon::inherits_nothing", inherits_nothing),
];

fn status(world: &'static World) {
    let world = World::fresh(world.mode);
    let state = world.state();
    let paths = json!({"status": "stopped", "socket": state.join("sandboxd.sock"), "logs": state.join("sandboxd.log")});
    assert_eq!(world.daemon(), paths);
    let started = world.run(["daemon", "start", "-d"]).fails(0);
    assert_eq!(started.out, "");
    let running = world.daemon();
    for (key, value) in [
        ("status", json!("running")),
        ("socket", paths["socket"].clone()),
        ("logs", paths["logs"].clone()),
    ] {
        assert_eq!(running[key], value);
    }
    assert!(alive(world.daemon_pid()));
    let text = world.run(["daemon", "status"]).ok();
    assert!(
        text.contains("Status: running") && text.contains("Socket: ") && text.contains("Logs: "),
        "{text}"
    );

    let levels = || world.run(["daemon", "log-level"]).ok();
    assert_eq!(levels(), "general: info\nproxy:   info");
    world
        .run(["daemon", "log-level", "set", "general", "debug"])
        .ok();
    assert_eq!(levels(), "general: debug\nproxy:   info");
    world
        .run(["daemon", "log-level", "set", "all", "warn"])
        .ok();
    assert_eq!(levels(), "general: warn\nproxy:   warn");
    let json = world.run(["daemon", "log-level", "--json"]).ok();
    assert_eq!(
        serde_json::from_str::<Value>(&json).unwrap(),
        json!({"general": "warn", "proxy": "warn"})
    );
    world
        .run(["daemon", "log-level", "set", "general", "loud"])
        .fails(2);
    // Every line of the log is an object with a time, a level and a message.
    let log = fs::read_to_string(state.join("sandboxd.log")).unwrap();
    assert!(!log.is_empty());
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(
            line["time"].is_string() && line["level"].is_string() && line["msg"].is_string(),
            "{line}"
        );
    }
    let version = world.run(["version"]).ok();
    assert!(
        version.contains(&format!("server: v{}", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
}

fn start_policy(world: &'static World) {
    let world = World::fresh(world.mode);
    let start = |preset: &str| world.run(["daemon", "start", "-d", "--policy", preset]);
    start("everything").fails(2);
    assert!(
        !world.state().join("vm").exists(),
        "bad input made something"
    );
    start("deny-all").ok();
    assert_eq!(world.daemon()["status"], "running");
    let check = || world.run(["policy", "check", "network", "www.github.com:443"]);
    check().fails(1);
    // The same choice again is none; another one is refused, with or without a daemon.
    start("deny-all").ok();
    let refused = || {
        let err = start("balanced").fails(1).err;
        let told = "already initialized to `deny-all`\nhint: sbx policy reset";
        assert!(err.contains(told), "{err}");
    };
    refused();
    world.run(["daemon", "stop"]).ok();
    refused();
    assert_eq!(world.daemon()["status"], "stopped");
    check().fails(1);
    // A daemon that runs takes a choice that nobody has made.
    world.run(["policy", "reset", "--force"]).ok();
    world.run(["daemon", "start", "-d"]).ok();
    start("allow-all").ok();
    check().ok();
}

fn slow_create(world: &'static World) {
    let world = World::fresh(world.mode);
    let other = world.sandbox("other");
    let daemon = world.daemon_pid();
    let dir = world.workspace();
    let known = children(daemon);
    // The helper that builds it is held: then nothing about that create can be fast.
    for attempt in 0..50 {
        let name = format!("slow-{attempt}");
        let create = world.begin_create(&name, &dir);
        let helper = loop {
            let new = children(daemon)
                .into_iter()
                .find(|child| !known.contains(child));
            if let Some(helper) = new
                && kill(helper, Signal::STOP)
            {
                break helper;
            }
            if world.names().contains(&name) && world.status(&name) == "running" {
                break 0;
            }
        };
        let held =
            helper != 0 && world.names().contains(&name) && world.status(&name) == "creating";
        if held {
            assert_eq!(other.exec(["echo", "meanwhile"]).ok(), "meanwhile");
            let list: Value = serde_json::from_str(&world.run(["ls", "--json"]).ok()).unwrap();
            let status: Vec<_> = list["sandboxes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["status"].as_str().unwrap())
                .collect();
            assert_eq!(status, ["running", "creating"]);
            world.run(["stop", &other.name]).ok();
            world.run(["inspect", &name]).ok();
        }
        if helper != 0 {
            kill(helper, Signal::CONT);
        }
        assert_eq!(Ran::from(create.wait_with_output().unwrap()).ok(), name);
        if held {
            assert_eq!(world.run(["exec", &name, "echo", "done"]).ok(), "done");
            return;
        }
        world.run(["rm", "--force", &name]).ok();
        eventually("its init is gone", || {
            (children(daemon).len() <= known.len()).then_some(())
        });
    }
    panic!("no create could be held");
}

fn inherits_nothing(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let secret = world.home().join("open-in-the-caller");
    world.write(&secret, "secret\n");
    let script = "exec 7<open-in-the-caller 8>&1 9<.; exec \"$@\"";
    let create = world
        .command("sh")
        .args(["-c", script, "sh"])
        .arg(programs().join("sbx"))
        .args(["create", "--name", "box", "shell", dir.to_str().unwrap()])
        .env("CANARY", "canary")
        .output()
        .unwrap();
    Ran::from(create).ok();
    // The daemon has a session of its own, no terminal, no directory of the caller's, no descriptor.
    let daemon = world.daemon_pid();
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    assert_eq!(
        (fields[3], fields[4]),
        (daemon.to_string().as_str(), "0"),
        "session and terminal: {stat}"
    );
    if !tester_is_root() {
        return;
    }
    assert_eq!(
        fs::read_link(format!("/proc/{daemon}/cwd")).unwrap(),
        Path::new("/")
    );
    let environ = fs::read(format!("/proc/{daemon}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environ).contains("canary"));
    for process in [daemon, world.init_pid("box")] {
        for fd in fs::read_dir(format!("/proc/{process}/fd"))
            .unwrap()
            .flatten()
        {
            let target = fs::read_link(fd.path()).unwrap_or_default();
            assert!(
                target != secret && target != world.home(),
                "{process}: {}",
                target.display()
            );
        }
    }
    // Neither is anything of it open in a command.
    let inside = Ran::from(
        world
            .command("sh")
            .args(["-c", script, "sh"])
            .arg(programs().join("sbx"))
            .args(["exec", "box", "ls", "/proc/self/fd"])
            .output()
            .unwrap(),
    );
    assert_eq!(inside.ok(), "0\n1\n2\n3");
}

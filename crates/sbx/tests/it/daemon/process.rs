//! The daemon as a process: what it says of itself, what it has from its caller, whom it keeps waiting.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{
    Ran, World, alive, blocked, copy_program, eventually, kill, programs, tester_is_root,
    waiting_helper,
};

pub const TESTS: &[ModeTest] = &[
    ("daemon::status_and_log_level", status),
    ("daemon::start_chooses_a_policy_once", start_policy),
    ("daemon::a_slow_create_does_not_block_others", slow_create),
    ("daemon::inherits_nothing", inherits_nothing),
    ("daemon::the_next_helper_is_not_needed", helper_ahead),
    ("daemon::works_without_companions", without_companions),
];

/// Why something is not looked at.
const ROOT_SEES: &str = "only root sees what an init runs and has open";

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
    // The same choice again changes nothing; another one is refused, with or without a daemon.
    start("deny-all").ok();
    let refused = || {
        let err = start("balanced").fails(1).err;
        assert!(err.contains("hint: sbx policy reset\n"), "{err}");
        assert!(
            err.ends_with("already initialized to `deny-all`\n"),
            "{err}"
        );
    };
    refused();
    world.run(["daemon", "stop"]).ok();
    refused();
    assert_eq!(world.daemon()["status"], "stopped");
    check().fails(1);
    // A daemon that runs takes a choice that was not made yet.
    world.run(["policy", "reset", "--force"]).ok();
    world.run(["daemon", "start", "-d"]).ok();
    start("allow-all").ok();
    check().ok();
}

fn slow_create(world: &'static World) {
    let world = World::fresh(world.mode);
    let other = world.sandbox("other");
    let dir = world.workspace();
    // The helper that will make it is held: then nothing about that create can be fast.
    let helper = next_helper(&world);
    assert!(kill(helper, Signal::STOP));
    let create = world.begin_create("slow", &dir);
    eventually("it is being made", || {
        world.names().contains(&"slow".to_owned()).then_some(())
    });
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
    world.run(["inspect", "slow"]).ok();
    assert_eq!(world.status("slow"), "creating");
    assert!(kill(helper, Signal::CONT));
    assert_eq!(Ran::from(create.wait_with_output().unwrap()).ok(), "slow");
    assert_eq!(world.run(["exec", "slow", "echo", "done"]).ok(), "done");
}

/// The process that waits for the next sandbox, once there is one.
fn next_helper(world: &World) -> i32 {
    let daemon = world.daemon_pid();
    eventually("a helper waits", || waiting_helper(daemon))
}

/// The process that waits for the next sandbox is a convenience, and ends with its daemon.
fn helper_ahead(world: &'static World) {
    let world = World::fresh(world.mode);
    let _first = world.sandbox("first");
    let killed = next_helper(&world);
    assert!(kill(killed, Signal::KILL));
    eventually("it is dead", || (!alive(killed)).then_some(()));
    let second = world.sandbox("second");
    assert_eq!(second.exec(["echo", "made"]).ok(), "made");
    let next = next_helper(&world);
    assert_ne!(next, killed);
    world.stop_daemon();
    assert!(!alive(next));
    // A daemon that is killed cannot end it, but it notices.
    let _third = world.sandbox("third");
    let orphan = next_helper(&world);
    assert!(kill(world.daemon_pid(), Signal::KILL));
    eventually("the helper has ended", || (!alive(orphan)).then_some(()));
}

/// Who has only the two programs that cannot be missing gets a sandbox whose init is the daemon's program.
fn without_companions(world: &'static World) {
    let world = World::fresh(world.mode);
    let programs_alone = world.home().join("bin");
    world.make_dir(&programs_alone);
    for program in ["sbx", "sandboxd"] {
        copy_program(&programs().join(program), &programs_alone.join(program));
    }
    let dir = world.workspace();
    let sbx = |args: &[&str]| {
        let mut command = world.command(programs_alone.join("sbx"));
        Ran::from(command.args(args).output().unwrap())
    };
    let size = |name: &str| {
        let init = world.init_pid(name);
        fs::metadata(format!("/proc/{init}/exe")).unwrap().len()
    };
    sbx(&["create", "--name", "alone", "shell", dir.to_str().unwrap()]).ok();
    assert_eq!(sbx(&["exec", "alone", "echo", "here"]).ok(), "here");
    let daemon = fs::metadata(programs().join("sandboxd")).unwrap().len();
    if tester_is_root() {
        assert_eq!(size("alone"), daemon);
    } else {
        blocked(ROOT_SEES);
    }
    world.stop_daemon();
    let usual = world.sandbox("usual");
    assert_eq!(usual.exec(["echo", "here"]).ok(), "here");
    if tester_is_root() {
        let init = fs::metadata(programs().join("sbx-init")).unwrap().len();
        assert_eq!(size(&usual.name), init);
        assert!(init < daemon);
    }
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
        return blocked(ROOT_SEES);
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

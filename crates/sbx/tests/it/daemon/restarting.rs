//! Daemons come and go, and sandboxes stay; there is one at a time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, World, alive, eventually, kill, programs};

pub const TESTS: &[ModeTest] = &[
    ("daemon::killed_and_its_commands_go_on", killed),
    ("daemon::killed_again_and_again", killed_often),
    ("daemon::killed_during_creates", killed_creating),
    ("daemon::a_second_one_is_refused", second),
    (
        "daemon::stop_stops_sandboxes_and_restart_does_not",
        stop_and_restart,
    ),
    (
        "daemon::settings_are_read_before_a_restart",
        restart_with_bad_settings,
    ),
    ("daemon::many_first_commands_start_one", many_first),
    ("daemon::one_that_hangs_is_replaced", hanging),
    (
        "daemon::stop_stops_sandboxes_without_a_daemon",
        stop_without,
    ),
    ("daemon::an_interrupted_stop_is_a_stop", interrupted_stop),
];

/// Ends the daemon without any warning.
fn kill_daemon(world: &World) {
    let daemon = world.daemon_pid();
    assert!(kill(daemon, Signal::KILL));
    // Whoever asks at that moment is told the truth too.
    world.run(["ls", "--json"]).ok();
    eventually("the daemon is dead", || {
        (world.daemon()["status"] == "stopped" && !alive(daemon)).then_some(())
    });
}

fn killed(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("survivor");
    let idle = world.sandbox("idle");
    let client = sandbox.open_session();
    sandbox.sh("echo kept > /tmp/kept").ok();
    let init = world.init_pid(&sandbox.name);
    kill_daemon(&world);
    // Readers see what runs without a daemon, and start none.
    assert_eq!(world.status(&sandbox.name), "running");
    assert_eq!(world.daemon()["status"], "stopped");
    // The next one takes it up: same init, same processes, same session.
    assert_eq!(sandbox.exec(["cat", "/tmp/kept"]).ok(), "kept");
    assert_eq!(world.init_pid(&sandbox.name), init);
    // The daemon hears of a command's end a moment after its caller.
    eventually("the session that is left", || {
        let shown = world.inspect(&sandbox.name);
        (shown["status"] == "running" && shown["sessions"] == 1).then_some(())
    });
    let list = world.run(["ls", "--json"]).ok();
    assert_eq!(list.matches("\"status\": \"running\"").count(), 2, "{list}");
    kill_daemon(&world);
    world.write(&sandbox.path("go"), "");
    let ended = Ran::from(client.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (44, "end\n"));
    // Stopping and removing work on what the next daemon has found.
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(world.status(&sandbox.name), "stopped");
    assert!(!alive(init), "init is still there");
    assert_eq!(idle.exec(["echo", "alive"]).ok(), "alive");
    kill_daemon(&world);
    world.run(["rm", "--force", &idle.name, &sandbox.name]).ok();
    world.assert_no_sandboxes();
}

fn hanging(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("hanging");
    let init = world.init_pid(&sandbox.name);
    let daemon = world.daemon_pid();
    assert!(kill(daemon, Signal::STOP));
    // A sandbox that runs needs no daemon for a command; a command that does gets an error.
    assert_eq!(sandbox.exec(["echo", "at once"]).ok(), "at once");
    let told = world.run(["exec", "another", "true"]).fails(125).err;
    assert!(told.contains("sandboxd does not answer"), "{told}");
    let said = world.run(["daemon", "restart"]);
    assert!(said.err.contains("does not answer"), "{said:?}");
    said.ok();
    assert!(!alive(daemon));
    assert_eq!(sandbox.exec(["echo", "alive"]).ok(), "alive");
    assert_eq!(world.init_pid(&sandbox.name), init);
}

fn stop_without(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("left");
    let init = world.init_pid(&sandbox.name);
    kill_daemon(&world);
    world.run(["daemon", "stop"]).ok();
    assert!(!alive(init), "init is still there");
    assert_eq!(world.status(&sandbox.name), "stopped");
    assert_eq!(world.daemon()["status"], "stopped");
    // Then there is nothing to stop, and nothing is started for it.
    let said = world.run(["daemon", "stop"]);
    assert!(said.err.contains("not running"), "{said:?}");
}

fn killed_often(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("often");
    let init = world.init_pid(&sandbox.name);
    for round in 0..5 {
        kill_daemon(&world);
        assert_eq!(
            sandbox.exec(["echo", &round.to_string()]).ok(),
            round.to_string()
        );
    }
    assert_eq!(world.init_pid(&sandbox.name), init);
    // An init that dies while nobody watches is found dead, and starts again.
    kill_daemon(&world);
    assert!(kill(init, Signal::KILL));
    eventually("init is dead", || (!alive(init)).then_some(()));
    assert_eq!(sandbox.exec(["echo", "again"]).ok(), "again");
    // One that dies while the daemon watches too.
    sandbox.kill_init();
    assert_eq!(world.inspect(&sandbox.name)["stop_reason"], "crashed");
    assert_eq!(sandbox.exec(["echo", "and again"]).ok(), "and again");
}

fn killed_creating(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    drop(world.sandbox("warm-up"));
    let made = world.state().join("vm/half");
    // How far the create has come when the daemon is killed. Now and then it is faster.
    for mark in ["sandbox.json", "layers", "exec.sock"] {
        let half_made = (0..ROUNDS).any(|_| killed_at(&world, &made.join(mark), &dir));
        assert!(half_made, "none was killed between `{mark}` and the end");
    }
    world.assert_no_sandboxes();
}

/// How often a moment is looked for that is soon over.
const ROUNDS: u32 = 20;

/// Kills the daemon as soon as a create has made that file. True when nothing was complete then.
fn killed_at(world: &World, mark: &Path, dir: &Path) -> bool {
    let daemon = world.daemon_pid();
    let mut first = world.begin_create("half", dir);
    while !mark.exists() && first.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    assert!(kill(daemon, Signal::KILL));
    eventually("the daemon is dead", || (!alive(daemon)).then_some(()));
    let record = fs::read(world.state().join("vm/half/sandbox.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let half_made = record["status"] == "creating";
    let first = Ran::from(first.wait_with_output().unwrap());
    // The next daemon sweeps what was half made, and the name is free for whoever asks: that may be the first client
    // again. Only one that was made completely is in the way, and then it works.
    let second = world.create("half", dir);
    if half_made && first.code != 0 {
        second.ok();
    } else {
        let err = second.fails(1).err;
        assert!(err.contains("already exists"), "{err}");
    }
    assert_eq!(world.run(["exec", "half", "echo", "whole"]).ok(), "whole");
    world.run(["rm", "--force", "half"]).ok();
    half_made
}

fn second(world: &'static World) {
    let _sandbox = world.sandbox("second");
    let first = world.daemon_pid();
    for args in [&["daemon", "start"][..], &["daemon", "start", "-d"]] {
        assert!(world.run(args).fails(0).err.contains("already running"));
    }
    // Past the polite question: the daemon's own program.
    let ran = Ran::from(world.command(programs().join("sandboxd")).output().unwrap()).refused();
    assert!(ran.err.contains("another daemon"), "{}", ran.err);
    assert_eq!(world.daemon_pid(), first);
    world.run(["ls"]).ok();
}

fn stop_and_restart(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("box");
    let client = sandbox.open_session();
    let (init, daemon) = (world.init_pid(&sandbox.name), world.daemon_pid());
    world.run(["daemon", "restart"]).ok();
    assert!(!alive(daemon), "the old one is still there");
    let daemon = world.daemon_pid();
    assert_eq!(world.init_pid(&sandbox.name), init);
    assert_eq!(world.inspect(&sandbox.name)["sessions"], 1);
    world.write(&sandbox.path("go"), "");
    let ended = Ran::from(client.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (44, "end\n"));
    let stopped = world.run(["daemon", "stop"]).fails(0);
    assert_eq!(stopped.out, "");
    assert!(!alive(init), "init is still there");
    assert!(!alive(daemon), "the daemon is still there");
    assert_eq!(world.daemon()["status"], "stopped");
    let shown = world.inspect(&sandbox.name);
    assert_eq!(
        (&shown["status"], &shown["stop_reason"]),
        (&json!("stopped"), &json!("daemon stop"))
    );
    assert!(!world.state().join("sandboxd.sock").exists());
    // Nothing is there to stop, which is fine; a restart starts one.
    world.run(["daemon", "stop"]).ok();
    world.run(["daemon", "restart"]).ok();
    assert_eq!(world.daemon()["status"], "running");
    // A signal is an ordinary end, and leaves the sandboxes too.
    sandbox.exec(["true"]).ok();
    let init = world.init_pid(&sandbox.name);
    assert!(kill(world.daemon_pid(), Signal::TERM));
    eventually("it ends", || {
        // While it dies it may hang up instead of answering.
        let said = world.run(["daemon", "status", "--json"]);
        said.out.contains("\"stopped\"").then_some(())
    });
    assert!(alive(init));
    assert_eq!(sandbox.exec(["echo", "still"]).ok(), "still");
    assert_eq!(world.init_pid(&sandbox.name), init);
}

fn restart_with_bad_settings(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("box");
    let daemon = world.daemon_pid();
    let settings = world.state().join("settings.json");
    let good = fs::read(&settings).unwrap_or_else(|_| b"{}".to_vec());
    for bad in ["{", "[]", r#"{"auto_stop_seconds": "soon"}"#] {
        world.write(&settings, bad);
        let refused = world.run(["daemon", "restart"]).fails(1).err;
        assert!(
            refused.contains("settings.json") && refused.contains("hint: correct the file"),
            "{refused}"
        );
        assert_eq!(world.daemon_pid(), daemon);
    }
    assert_eq!(sandbox.exec(["echo", "served"]).ok(), "served");
    world.write(&settings, good);
    let mut loud = world.sbx(["daemon", "restart"]);
    let refused = Ran::from(loud.env("SANDBOXD_LOG_LEVEL", "loud").output().unwrap());
    let err = refused.fails(1).err;
    assert!(err.contains("hint: one of error, warn"), "{err}");
    let cause = "invalid log level \"loud\" in SANDBOXD_LOG_LEVEL";
    assert!(err.contains(cause), "{err}");
    assert_eq!(world.daemon_pid(), daemon);
    world.run(["daemon", "restart"]).ok();
    assert_ne!(world.daemon_pid(), daemon);
}

fn many_first(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let clients: Vec<_> = (0..8)
        .map(|n| {
            let name = format!("first-{n}");
            world.begin_create(&name, &dir)
        })
        .collect();
    for (n, client) in clients.into_iter().enumerate() {
        assert_eq!(
            Ran::from(client.wait_with_output().unwrap()).ok(),
            format!("first-{n}")
        );
    }
    assert_eq!(world.names().len(), 8);
    let log = BufReader::new(fs::File::open(world.state().join("sandboxd.log")).unwrap()).lines();
    assert_eq!(
        log.map_while(Result::ok)
            .filter(|line| line.contains("\"serving\""))
            .count(),
        1
    );
}

fn interrupted_stop(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("stubborn");
    let mut session = sandbox.begin("trap '' TERM; echo ready; while :; do sleep 0.1; done");
    let daemon = world.daemon_pid();
    let mut stop = world.sbx(["daemon", "stop"]).spawn().unwrap();
    eventually("it is stopping", || {
        let refused = world.run(["exec", "nobody", "true"]).fails(125).err;
        refused.contains("is stopping").then_some(())
    });
    stop.kill().unwrap();
    stop.wait().unwrap();
    eventually("the daemon has ended", || (!alive(daemon)).then_some(()));
    session.wait().unwrap();
    // Another one starts what this one stopped.
    assert_eq!(sandbox.exec(["echo", "up"]).ok(), "up");
}

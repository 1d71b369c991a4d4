//! Daemons that lose their socket, or their whole state directory.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::ModeTest;
use crate::harness::{World, alive, eventually, kill, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("daemon::one_without_a_socket_is_replaced", without_socket),
    ("daemon::one_without_a_socket_is_reset", reset),
    ("daemon::one_without_a_state_ends", without_state),
    ("daemon::one_without_a_state_spares_the_next", successor),
];

fn lose_socket(world: &World) {
    fs::remove_file(world.state().join("sandboxd.sock")).unwrap();
}

/// The state directory is another's from now on. What is in it may belong to ids that an ordinary tester cannot remove.
fn lose_state(world: &World) {
    let state = world.state();
    if tester_is_root() {
        fs::remove_dir_all(&state).unwrap();
    } else {
        fs::rename(&state, world.home().join("away")).unwrap();
    }
}

fn without_socket(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("found");
    let (init, daemon) = (world.init_pid(&sandbox.name), world.daemon_pid());
    lose_socket(&world);
    let said = world.run(["daemon", "status", "--json"]).fails(1);
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (told["status"].as_str(), told["pid"].as_i64()),
        (Some("unreachable"), Some(daemon.into()))
    );
    let refused = world.run(["stop", &sandbox.name]).fails(1).err;
    assert!(
        refused.contains("cannot reach sandboxd") && refused.contains("hint: sbx daemon restart"),
        "{refused}"
    );
    // A sandbox that runs needs no daemon for a command.
    assert_eq!(sandbox.exec(["echo", "at once"]).ok(), "at once");
    let said = world.run(["daemon", "restart"]);
    assert!(
        said.err
            .contains(&format!("(pid {daemon}): it cannot be reached")),
        "{said:?}"
    );
    said.ok();
    assert!(!alive(daemon));
    assert_eq!(world.init_pid(&sandbox.name), init);
    assert_eq!(sandbox.exec(["echo", "served"]).ok(), "served");
    let daemon = world.daemon_pid();
    lose_socket(&world);
    world.run(["daemon", "stop"]).ok();
    assert!(!alive(daemon) && !alive(init));
    assert_eq!(world.daemon()["status"], "stopped");
    assert_eq!(world.status(&sandbox.name), "stopped");
}

fn reset(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("reset");
    let (init, daemon) = (world.init_pid(&sandbox.name), world.daemon_pid());
    lose_socket(&world);
    world.run(["reset", "--force"]).ok();
    assert!(!alive(daemon) && !alive(init));
    assert!(!world.state().exists());
}

fn without_state(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("lost");
    let (init, daemon) = (world.init_pid(&sandbox.name), world.daemon_pid());
    let settings = fs::read(world.state().join("settings.json")).ok();
    lose_state(&world);
    eventually("the daemon has ended", || (!alive(daemon)).then_some(()));
    assert!(!alive(init), "init is still there");
    assert!(!world.state().exists(), "something was made anew");
    begin_anew(&world, settings);
    let next = world.sandbox("next");
    assert_eq!(next.exec(["echo", "anew"]).ok(), "anew");
}

fn successor(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    // One that the old daemon removes besides, when it stops.
    let begin = ["run", "--rm", "--name", "same", "shell"];
    let mut client = world
        .sbx(
            begin
                .map(OsStr::new)
                .iter()
                .copied()
                .chain([dir.as_os_str()]),
        )
        .args(["--", "-c", "echo ready; sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = client.stdout.as_mut().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    let (init, daemon) = (world.init_pid("same"), world.daemon_pid());
    let settings = fs::read(world.state().join("settings.json")).ok();
    // It does not get to know before there is another one, with a sandbox of the same name.
    assert!(kill(daemon, Signal::STOP));
    lose_state(&world);
    begin_anew(&world, settings);
    world.create("same", &dir).ok();
    let (next_init, next) = (world.init_pid("same"), world.daemon_pid());
    assert_ne!((next_init, next), (init, daemon));
    let id = world.inspect("same")["id"].clone();
    assert!(kill(daemon, Signal::CONT));
    eventually("the old one has ended", || (!alive(daemon)).then_some(()));
    assert!(!alive(init), "init is still there");
    client.wait().unwrap();
    assert_eq!(world.daemon_pid(), next);
    let record = fs::read(world.state().join("vm/same/sandbox.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!((&record["id"], &record["status"]), (&id, &"running".into()));
    assert_eq!(world.run(["exec", "same", "echo", "mine"]).ok(), "mine");
    assert_eq!(world.init_pid("same"), next_init);
}

/// The settings that the mode may need.
fn begin_anew(world: &World, settings: Option<Vec<u8>>) {
    if let Some(settings) = settings {
        world.make_dir(&world.state());
        world.write(&world.state().join("settings.json"), settings);
    }
}

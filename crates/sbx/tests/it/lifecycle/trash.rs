//! A removal answers when the sandbox cannot come back; its files go in the background, also after a crash.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::ModeTest;
use crate::harness::{World, eventually, kill};

pub const TESTS: &[ModeTest] = &[
    (
        "lifecycle::files_of_a_removed_sandbox_go_in_the_background",
        in_the_background,
    ),
    (
        "lifecycle::a_removal_that_a_crash_interrupted_is_finished",
        after_a_crash,
    ),
];

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

fn in_the_background(world: &'static World) {
    let world = World::fresh(world.mode);
    let workspace = world.workspace();
    world.create("again", &workspace).ok();
    world
        .run([
            "exec",
            "-u",
            "root",
            "again",
            "sh",
            "-c",
            "mkdir -p ~/d; cd ~/d; for i in $(seq 500); do mkdir $i; : > $i/f; done",
        ])
        .ok();
    let trash = world.state().join("trash");
    for _ in 0..3 {
        world.run(["rm", "--force", "again"]).ok();
        assert!(!world.state().join("vm/again").exists());
        world.assert_no_sandboxes();
        // The name is free at once, and nothing of the first one is in the second.
        world.create("again", &workspace).ok();
        world.run(["exec", "again", "test", "!", "-e", "d"]).ok();
        eventually("the trash is empty", || is_empty(&trash).then_some(()));
    }
    world.run(["rm", "--force", "again"]).ok();
    world.stop_daemon();
    assert!(is_empty(&trash), "a daemon that stops empties it");
}

fn after_a_crash(world: &'static World) {
    let world = World::fresh(world.mode);
    let workspace = world.workspace();
    world.create("half", &workspace).ok();
    world
        .run(["exec", "half", "sh", "-c", "mkdir -p ~/a/b; chmod 0 ~/a/b"])
        .ok();
    world.run(["stop", "half"]).ok();
    let id = world.id("half");
    kill(world.daemon_pid(), Signal::KILL);
    let trash = world.state().join("trash");
    let place = trash.join(&id);
    fs::create_dir(&place).unwrap();
    world.own(&place);
    fs::rename(world.state().join("vm/half"), place.join("half")).unwrap();
    // The directory of a removal that was interrupted before its first step.
    let empty = trash.join("00000000-0000-4000-8000-000000000000");
    fs::create_dir(&empty).unwrap();
    world.own(&empty);
    world.create("half", &workspace).ok();
    eventually("the trash is empty", || is_empty(&trash).then_some(()));
    assert_ne!(world.id("half"), id);
    world.run(["exec", "half", "true"]).ok();
}

//! A sandbox that cannot be made leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::ModeTest;
use crate::harness::{Mode, Ran, World, programs};

pub const TESTS: &[ModeTest] = &[
    (
        "lifecycle::a_create_that_fails_leaves_nothing",
        failed_create,
    ),
    ("lifecycle::a_full_disk_leaves_nothing", full_disk),
    (
        "lifecycle::root_of_a_user_namespace_is_told_so",
        namespace_root,
    ),
];

fn failed_create(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let create = || world.create("half", &dir);
    let nothing_left = || world.assert_no_sandboxes();
    world.run(["daemon", "start", "-d"]).ok();
    // The template cannot be built.
    let templates = world.state().join("templates");
    fs::remove_dir(&templates).unwrap();
    world.write(&templates, "not a directory\n");
    assert!(create().fails(1).err.contains("templates"));
    nothing_left();
    fs::remove_file(&templates).unwrap();
    world.make_dir(&templates);
    fs::set_permissions(&templates, fs::Permissions::from_mode(0o700)).unwrap();
    // The name is free, and now it works.
    create().ok();
    assert_eq!(world.run(["exec", "half", "echo", "whole"]).ok(), "whole");
    world.run(["rm", "--force", "half"]).ok();
    nothing_left();
    if world.mode != Mode::Root {
        // There is no place for it.
        let vm = world.state().join("vm");
        fs::set_permissions(&vm, fs::Permissions::from_mode(0o500)).unwrap();
        assert!(create().fails(1).err.contains("Permission denied"));
        fs::set_permissions(&vm, fs::Permissions::from_mode(0o700)).unwrap();
        nothing_left();
    }
    create().ok();
}

fn full_disk(world: &'static World) {
    // A file system of our own, which ends with the mount namespace, needs root.
    if world.mode != Mode::Root {
        return;
    }
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    world.make_dir(&world.state());
    let script = "set -e; mount --make-rprivate /; mount -t tmpfs -o size=256k,mode=700 none \"$SBX_HOME\"; \"$1\" daemon start -d; \
                  for try in 1 2; do if \"$1\" create --name full shell \"$2\"; then exit 50; fi; done; \
                  \"$1\" ls -q; ls -A \"$SBX_HOME/vm\" \"$SBX_HOME/templates\"; \"$1\" daemon stop";
    let output = world
        .command("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(programs().join("sbx"))
        .arg(&dir)
        .output()
        .unwrap();
    let ran = Ran::from(output).fails(0);
    let state = world.state();
    assert_eq!(
        ran.out,
        format!("{0}/templates:\n.lock\n\n{0}/vm:\n", state.display()),
        "{}",
        ran.err
    );
    assert_eq!(
        ran.err.matches("No space left on device").count(),
        2,
        "{}",
        ran.err
    );
}

fn namespace_root(world: &'static World) {
    if world.mode == Mode::Root {
        return;
    }
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let unshared = |args: &[&str]| {
        let mut command = world.command("unshare");
        command.arg("-Ur").arg(programs().join("sbx")).args(args);
        Ran::from(command.output().unwrap())
    };
    let cause = "root of a user namespace";
    let checks = unshared(&["diagnose"]).refused().out;
    assert!(checks.contains(cause), "{checks}");
    let create = ["create", "--name", "unreal", "shell", dir.to_str().unwrap()];
    let error = unshared(&create).fails(1).err;
    assert!(
        error.contains("user namespace, which has no ids"),
        "{error}"
    );
    assert!(error.contains("hint: run sbx outside"), "{error}");
    world.assert_no_sandboxes();
    // With a daemon outside the client may be in one: nothing is made there.
    world.stop_daemon();
    world.run(create).ok();
    assert_eq!(unshared(&["exec", "unreal", "id", "-un"]).ok(), "agent");
}

//! A sandbox that cannot be made leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::ModeTest;
use crate::harness::{Mode, Ran, World, blocked, programs};

pub const TESTS: &[ModeTest] = &[
    (
        "lifecycle::a_create_that_fails_leaves_nothing",
        failed_create,
    ),
    ("lifecycle::a_full_disk_leaves_nothing", full_disk),
    (
        "lifecycle::what_filled_the_disk_can_be_removed",
        filled_disk,
    ),
];
/// Of users who are not root.
pub const USERS: &[ModeTest] = &[(
    "lifecycle::root_of_a_user_namespace_is_told_so",
    namespace_root,
)];

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

/// It ends with the mount namespace.
const ROOTS_OWN: &str = "a file system for one test needs root";

fn full_disk(world: &'static World) {
    if world.mode != Mode::Root {
        return blocked(ROOTS_OWN);
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

fn filled_disk(world: &'static World) {
    if world.mode != Mode::Root {
        return blocked(ROOTS_OWN);
    }
    let world = World::fresh(world.mode);
    let workspace = world.workspace();
    let script = r#"
        mount -t tmpfs -o size=1g none "$HOME"
        export SBX_HOME="$HOME/state"
        "$SBX" create --name full shell "$WORKSPACE" && "$SBX" create --name other shell "$WORKSPACE"
        "$SBX" exec full dd if=/dev/zero of=/home/agent/big bs=1M 2>/dev/null && exit 1
        "$SBX" create --name late shell "$WORKSPACE" 2>/dev/null && exit 1
        "$SBX" daemon restart
        "$SBX" rm --force full
        "$SBX" exec other echo alive
        "$SBX" ls -q
        "$SBX" rm --all --force
        ls "$SBX_HOME/vm"
        "$SBX" daemon stop"#;
    let mut command = world.command("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-uc", script])
        .env("SBX", programs().join("sbx"))
        .env("WORKSPACE", &workspace);
    let said = Ran::from(command.output().unwrap());
    assert_eq!(said.out, "full\nother\nalive\nother\n", "{said:?}");
    assert_eq!(said.code, 0, "{said:?}");
}

fn namespace_root(world: &'static World) {
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
        error.contains("root is only root of a user namespace here"),
        "{error}"
    );
    assert!(error.contains("hint: run sbx outside"), "{error}");
    world.assert_no_sandboxes();
    // With a daemon outside the client may be in one: nothing is made there.
    world.stop_daemon();
    world.run(create).ok();
    assert_eq!(unshared(&["exec", "unreal", "id", "-un"]).ok(), "agent");
}

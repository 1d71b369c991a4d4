//! Directories whose group has no id inside, and callers in another group than their account's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use super::text;
use crate::harness::{Mode, Ran, SYSTEM_PATH, Sandbox, World, blocked, tester_is_root};

/// Not the primary group of any user.
const GROUP: u32 = 100;

fn give_to_group(world: &World, path: &Path, mode: u32) {
    chown(path, Some(world.uid), Some(GROUP)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// All that a sandbox is made of lies below such a directory: the state, the workspaces, a directory of PATH.
pub(super) fn everything_below_a_closed_one(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root can give a directory to any group");
    }
    let world = World::fresh(world.mode);
    let above = world.home().parent().unwrap().to_owned();
    // New directories get the group too.
    give_to_group(&world, &above, 0o2750);
    let bin = world.home().join("bin");
    world.make_dir(&bin);
    world.write(&bin.join("greet"), "#!/bin/sh\necho hello\n");
    fs::set_permissions(bin.join("greet"), fs::Permissions::from_mode(0o755)).unwrap();
    let outer = world.workspace();
    let kept = outer.join("between/kept");
    for dir in [&outer.join("between"), &kept] {
        world.make_dir(dir);
        give_to_group(&world, dir, 0o2750);
    }
    give_to_group(&world, &outer, 0o2770);
    let name = world.name("closed");
    let readonly = format!("{}:ro", text(&kept));
    let args = ["create", "--name", &name, "shell", text(&outer), &readonly];
    let mut create = world.sbx(args);
    create.env("PATH", format!("{}:{SYSTEM_PATH}", text(&bin)));
    let created = Ran::from(create.output().unwrap());
    let told = created.err.contains("cannot enter it");
    assert_eq!(told, world.mode == Mode::Subordinate, "{}", created.err);
    created.ok();
    let sandbox = Sandbox {
        world: &world,
        name,
        workspace: outer,
    };
    sandbox.sh("echo x > made; ls between/kept").ok();
    sandbox.sh("echo x > between/kept/made").refused();
    if world.mode != Mode::Root {
        assert_eq!(sandbox.sh("greet").ok(), "hello");
    }
    let elsewhere = ["-u", "root", "-w", "/"];
    sandbox
        .exec_with(&elsewhere, ["touch", "/usr/local/made"])
        .ok();
    world.run(["stop", &sandbox.name]).ok();
    sandbox.sh("cat made").ok();
    world.run(["rm", "--force", &sandbox.name]).ok();
    assert_eq!(fs::read_dir(world.state().join("vm")).unwrap().count(), 0);
    world.run(["reset", "--force"]).ok();
    assert!(!world.state().join("templates").exists());
}

/// The programs that map subordinate ids refuse a caller after `newgrp`.
pub(super) fn newgrp(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root can be in any group");
    }
    let world = World::fresh(world.mode);
    let run = |args: &[&str]| Ran::from(world.sbx(args).gid(GROUP).output().unwrap());
    let (name, dir) = (world.name("newgrp"), world.workspace());
    let created = run(&["create", "--name", &name, "shell", text(&dir)]);
    assert!(created.err.contains("newgrp"), "{}", created.err);
    created.ok();
    assert_eq!(world.inspect(&name)["mode"], "single");
    run(&["exec", &name, "touch", "made"]).ok();
    let said = run(&["diagnose"]);
    assert!(said.out.contains("newgrp"), "{}", said.out);
    assert!(
        !said.out.contains("a sandbox cannot be made"),
        "{}",
        said.out
    );
    world.run(["daemon", "restart"]).ok();
    let said = world.run(["create", "--name", "after", "shell", text(&dir)]);
    assert!(!said.err.contains("newgrp"), "{}", said.err);
    assert_eq!(world.inspect("after")["mode"], "subordinate");
}

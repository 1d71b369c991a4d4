//! Files that root inside made in a workspace come to belong to the caller, however the sandbox ends.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::Signal;

use super::{create, text};
use crate::harness::{Mode, Sandbox, World, alive, blocked, eventually, kill, tester_is_root};

/// A group that has no id inside.
const FOREIGN: u32 = 100;

pub(super) fn handed_over(world: &'static World) {
    let sandbox = world.sandbox("owner");
    let owner = |name: &str| {
        let meta = fs::symlink_metadata(sandbox.path(name)).unwrap();
        (meta.uid(), meta.gid())
    };
    let caller = (world.uid, world.gid);
    sandbox.sh("mkdir agents; echo x > agents/file").ok();
    assert_eq!(owner("agents/file"), caller);
    sandbox.root_sh("mkdir -p tree/deep/er; echo x > tree/deep/er/file; chmod 700 tree/deep; ln -s /etc/passwd tree/link; mkfifo tree/fifo").ok();
    for name in [
        "tree",
        "tree/deep",
        "tree/deep/er",
        "tree/deep/er/file",
        "tree/link",
        "tree/fifo",
    ] {
        assert_eq!(owner(name), caller, "{name}");
    }
    // The agent can use it afterwards, and the caller can delete it.
    sandbox
        .sh("echo y >> tree/deep/er/file && rm tree/fifo")
        .ok();
    let removed = world
        .command("rm")
        .args(["-r", text(&sandbox.path("tree"))])
        .output()
        .unwrap();
    assert!(removed.status.success(), "{removed:?}");
    if world.mode != Mode::Single {
        sandbox.sh("sudo -n sh -c 'mkdir -p sudo/dir; echo x > sudo/dir/file; chown 1234:1234 sudo/dir/file'").ok();
        for name in ["sudo", "sudo/dir", "sudo/dir/file"] {
            assert_eq!(owner(name), caller, "{name}");
        }
        sandbox
            .exec_with(&["-u", "daemon"], ["sh", "-c", "true"])
            .ok();
        sandbox
            .root_sh("install -d -o daemon -g daemon daemons")
            .ok();
        sandbox
            .exec_with(&["-u", "daemon"], ["sh", "-c", "echo x > daemons/file"])
            .refused();
        // What a command leaves running is handed over at the stop.
        let background = "(while [ ! -e go ]; do sleep 0.05; done; mkdir late; echo x > late/file; touch late/done; sleep 1000) >/dev/null 2>&1 &";
        sandbox.root_sh(background).ok();
        world.write(&sandbox.path("go"), "");
        eventually("the background job has written", || {
            sandbox.path("late/done").exists().then_some(())
        });
        world.run(["stop", &sandbox.name]).ok();
        assert_eq!(owner("late"), caller);
        assert_eq!(owner("late/file"), caller);
    }
}

pub(super) fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

/// Root makes files in a directory of the workspace, and a command of it goes on.
fn plant(sandbox: &Sandbox<'_>, dir: &str) {
    let script = format!(
        "mkdir -p {dir}/deep; ln -s /etc/passwd {dir}/link; touch {dir}/deep/file; touch {dir}.made; exec sleep 1000"
    );
    let world = sandbox.world;
    let command = ["-d", "-u", "root", &sandbox.name, "sh", "-c", &script];
    world.run(["exec"].iter().chain(&command)).ok();
    eventually("root has made its files", || {
        sandbox.path(&format!("{dir}.made")).exists().then_some(())
    });
    if world.mode != Mode::Single {
        assert_ne!(owner(&sandbox.path(dir)), (world.uid, world.gid), "{dir}");
    }
}

fn is_the_callers(sandbox: &Sandbox<'_>, dir: &str) -> bool {
    let caller = (sandbox.world.uid, sandbox.world.gid);
    ["", "/link", "/deep", "/deep/file"]
        .iter()
        .all(|name| owner(&sandbox.path(&format!("{dir}{name}"))) == caller)
}

/// Makes it look as if a sandbox had made it. Only root can.
fn make_unusual(path: &Path, (uid, gid): (u32, u32)) {
    if !tester_is_root() {
        return blocked("only root can give a file away");
    }
    std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
}

pub(super) fn handed_over_after_a_crash(world: &'static World) {
    let world = World::fresh(world.mode);
    let outer = world.workspace();
    let inner = outer.join("inner");
    world.make_dir(&inner);
    let sandbox = create(
        &world,
        "crash",
        &[text(&outer), &format!("{}:ro", text(&inner))],
    );
    // The daemon watches.
    plant(&sandbox, "watched");
    // What lies where the sandbox can only read was made by another user.
    let others = inner.join("others");
    world.write(&others, "x");
    make_unusual(&others, owner(&sandbox.path("watched")));
    let before = owner(&others);
    sandbox.kill_init();
    assert!(is_the_callers(&sandbox, "watched"));
    assert_eq!(owner(&others), before);
    // Wherever it is by then.
    plant(&sandbox, "again");
    let moved = outer.join("moved");
    let init = world.init_pid(&sandbox.name);
    fs::rename(&inner, &moved).unwrap();
    // The daemon ends a sandbox whose read-only part was moved, perhaps before this does.
    kill(init, Signal::KILL);
    world.until_stopped(&sandbox.name, "the daemon knows");
    assert!(is_the_callers(&sandbox, "again"));
    assert_eq!(owner(&moved.join("others")), before);
    fs::rename(&moved, &inner).unwrap();
    // No daemon watches.
    plant(&sandbox, "unwatched");
    let (init, daemon) = (world.init_pid(&sandbox.name), world.daemon_pid());
    assert!(kill(daemon, Signal::KILL) && kill(init, Signal::KILL));
    eventually("both are dead", || {
        (!alive(daemon) && !alive(init)).then_some(())
    });
    world.run(["daemon", "start", "-d"]).ok();
    eventually("the next daemon has handed them over", || {
        is_the_callers(&sandbox, "unwatched").then_some(())
    });
}

/// A workspace in another one, of another owner: what is made in it is that owner's, however the sandbox ends.
pub(super) fn handed_over_to_its_owner(world: &'static World) {
    let outer = world.workspace();
    let between = outer.join("between");
    let inner = between.join("inner");
    world.make_dir(&between);
    world.make_dir(&inner);
    let other_user = 12_345;
    for dir in [&outer, &between] {
        std::os::unix::fs::chown(dir, Some(other_user), Some(other_user)).unwrap();
    }
    let sandbox = create(world, "nested", &[text(&outer), text(&inner)]);
    plant(&sandbox, "outers");
    plant(&sandbox, "between/inner/inners");
    let root = (world.uid, world.gid);
    sandbox.kill_init();
    assert_eq!(owner(&outer.join("outers")), (other_user, other_user));
    assert_eq!(owner(&inner.join("inners")), root);
    // One that has been moved within the other is not the other's either.
    plant(&sandbox, "between/inner/later");
    let made_by = owner(&inner.join("later"));
    sandbox.root_sh("mv between moved").ok();
    let moved = outer.join("moved");
    make_unusual(&moved.join("inner/later"), made_by);
    sandbox.kill_init();
    assert_eq!(owner(&moved.join("inner/later")), made_by);
    fs::rename(&moved, &between).unwrap();
    world.run(["rm", "--force", &sandbox.name]).ok();
    assert_eq!(owner(&inner.join("later")), root);
}

pub(super) fn handed_over_at_last(world: &'static World) {
    let sandbox = world.sandbox("away");
    let outer = &sandbox.workspace;
    plant(&sandbox, "made");
    // The workspace is elsewhere when init dies, and another directory in its place is left alone.
    let away = outer.with_extension("away");
    fs::rename(outer, &away).unwrap();
    world.make_dir(outer);
    let others = outer.join("others");
    world.make_dir(&others);
    make_unusual(&others, owner(&away.join("made")));
    let before = owner(&others);
    sandbox.kill_init();
    assert_eq!(owner(&others), before);
    fs::remove_dir_all(outer).unwrap();
    fs::rename(&away, outer).unwrap();
    world.run(["rm", "--force", &sandbox.name]).ok();
    assert!(is_the_callers(&sandbox, "made"));
    let mut remove = world.command("rm");
    let removed = remove.arg("-r").arg(sandbox.path("made")).output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
}

pub(super) fn not_handed_over(world: &'static World) {
    let sandbox = world.sandbox("left");
    let outer = &sandbox.workspace;
    plant(&sandbox, "made");
    let away = outer.with_extension("away");
    fs::rename(outer, &away).unwrap();
    sandbox.kill_init();
    let ran = world.run(["rm", "--force", &sandbox.name]).fails(0);
    let told = ran.err.contains("warning: files that root inside made");
    // With one id they are the caller's anyway.
    assert_eq!(told, world.mode != Mode::Single, "{}", ran.err);
}

pub(super) fn handed_over_in_a_team_directory(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root can give a directory to a group of others");
    }
    let sandbox = world.sandbox("foreign");
    let team = sandbox.path("team");
    world.make_dir(&team);
    std::os::unix::fs::chown(&team, Some(world.uid), Some(FOREIGN)).unwrap();
    fs::set_permissions(&team, fs::Permissions::from_mode(0o2775)).unwrap();
    sandbox
        .sh("umask 0; mkdir team/sub; touch team/agents")
        .ok();
    sandbox
        .root_sh("cd team/sub; mkdir -p x/z; echo > x/y; chmod 777 x")
        .ok();
    let daemons = "cd team/sub/x; mkdir -m 700 daemons; touch daemons/file";
    sandbox
        .exec_with(&["-u", "daemon"], ["sh", "-c", daemons])
        .ok();
    sandbox.root_sh("true").ok();
    for name in ["x", "x/z", "x/y", "x/daemons", "x/daemons/file"] {
        let found = owner(&team.join("sub").join(name));
        assert_eq!(found, (world.uid, world.gid), "{name}");
    }
    assert_eq!(owner(&team.join("agents")), (world.uid, FOREIGN));
    // Closed to root inside, but not to what the agent starts there.
    fs::set_permissions(&team, fs::Permissions::from_mode(0o2770)).unwrap();
    sandbox
        .sh("umask 0; mkdir team/closed; cd team/closed; sudo sh -c 'mkdir -p a/b; touch a/b/c f; chmod 700 a'")
        .ok();
    for name in ["a", "a/b", "a/b/c", "f"] {
        let found = owner(&team.join("closed").join(name));
        assert_eq!(found, (world.uid, world.gid), "{name}");
    }
    for made in ["sub/x", "closed/a"] {
        let mut remove = world.command("rm");
        let removed = remove.arg("-r").arg(team.join(made)).output().unwrap();
        assert!(removed.status.success(), "{removed:?}");
    }
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(
        world.inspect(&sandbox.name)["warnings"],
        serde_json::json!([])
    );
}

/// Deeper than directories are held open, the way back from one that is closed to root leads through it.
pub(super) fn handed_over_beside_a_closed_one(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root can give a directory to a group of others");
    }
    let sandbox = world.sandbox("deep");
    sandbox.sh("mkdir -p deep$(printf '/d%.0s' $(seq 40))").ok();
    let deep = sandbox.path(&format!("deep{}", "/d".repeat(40)));
    let beside = ["a", "b", "c", "e", "f", "g"].map(|name| deep.join(name));
    let closed = deep.join("closed");
    for dir in beside.iter().chain([&closed]) {
        world.make_dir(dir);
    }
    std::os::unix::fs::chown(&closed, Some(world.uid), Some(FOREIGN)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o770)).unwrap();
    let script = format!(
        "cd {}; for at in [a-g]; do touch $at/file; done",
        text(&deep)
    );
    sandbox.root_sh(&script).ok();
    for dir in beside {
        assert_eq!(owner(&dir.join("file")), (world.uid, world.gid), "{dir:?}");
    }
}

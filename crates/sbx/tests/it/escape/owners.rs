//! The owner of a workspace's own directory: it decides who is who through the mount, and what is inside must
//! not decide that.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::sbx;
use crate::ModeTest;
use crate::harness::{Mode, Sandbox, World, blocked, eventually, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "a_workspace_that_root_inside_gave_away_is_given_back",
        given_back,
    ),
    (
        "a_workspace_with_another_owner_is_not_mounted_again",
        other_owner,
    ),
];
/// Elsewhere no other program has the ids.
pub(crate) const SUBORDINATE: &[ModeTest] = &[(
    "files_that_the_sandbox_did_not_make_keep_their_owner",
    older,
)];

/// Ordinary users have files of their own only.
pub(crate) const ROOT: &[ModeTest] = &[(
    "a_nested_workspace_of_another_owner_is_not_swapped_from_inside",
    swapped,
)];

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

fn given_back(world: &'static World) {
    let extra = world.workspace();
    let sandbox = world.sandbox_with("given", &[extra.to_str().unwrap()]);
    let both = [sandbox.workspace.clone(), extra];
    let directories = format!("'{}' '{}'", both[0].display(), both[1].display());
    let ours = (world.uid, world.gid);
    for who in ["0:0", "1:1", "0", ":4321", "4321:8765"] {
        let seen = format!("chown {who} {directories}; stat -c %u:%g {directories}");
        let ran = sandbox.root_sh(&seen);
        if world.mode != Mode::Single {
            // It was given away while the command ran: there is something to give back.
            assert!(!ran.out.contains("1000:1000"), "{who}: {ran:?}");
        }
        for path in &both {
            assert_eq!(owner(path), ours, "chown {who}, `{}`", path.display());
        }
        // It is the agent's, who can use it, also after the next start.
        sandbox.sh("touch made && rm made").ok();
    }
    sbx(world, &["stop", &sandbox.name]).ok();
    assert_eq!(
        sandbox.sh("stat -c %u:%g .; touch made && rm made").ok(),
        "1000:1000"
    );
    // By a program that the agent started as root, too.
    if world.mode != Mode::Single {
        sandbox.sh("sudo chown 0:0 .").ok();
        assert_eq!(owner(&both[0]), ours);
    }
}

fn other_owner(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root can give a file away");
    }
    let sandbox = world.sandbox("owner");
    let ours = (world.uid, world.gid);
    // What root inside gave away comes back, also when init is killed.
    if world.mode != Mode::Single {
        let script = "chown 0:0 . && exec sleep 1000";
        sandbox
            .exec_with(&["-d", "-u", "root"], ["sh", "-c", script])
            .ok();
        eventually("it is given away", || {
            (owner(&sandbox.workspace) != ours).then_some(())
        });
        sandbox.kill_init();
        assert_eq!(sandbox.exec(["stat", "-c", "%u", "."]).ok(), "1000");
        assert_eq!(owner(&sandbox.workspace), ours);
    }
    sbx(world, &["stop", &sandbox.name]).ok();
    // Another user of the host starts it: the record says whom the workspace belongs to.
    for (uid, gid) in [(65_534, 65_534), (65_534, world.gid), (world.uid, 65_534)] {
        chown(&sandbox.workspace, Some(uid), Some(gid)).unwrap();
        refused(&sandbox);
        assert_eq!(owner(&sandbox.workspace), (uid, gid));
    }
    chown(&sandbox.workspace, Some(ours.0), Some(ours.1)).unwrap();
    assert_eq!(sandbox.exec(["stat", "-c", "%u", "."]).ok(), "1000");
}

#[track_caller]
fn refused(sandbox: &Sandbox<'_>) {
    let ran = sbx(sandbox.world, &["exec", &sandbox.name, "id"]).fails(125);
    assert!(ran.err.contains("has changed its owner"), "{ran:?}");
    assert_eq!(ran.out, "");
}

/// As rootless containers leave them: with an id that is one of the sandbox's as well.
fn older(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root can give a file away");
    }
    let first = world.sandbox("ids");
    let record = fs::read(
        world
            .state()
            .join("vm")
            .join(&first.name)
            .join("sandbox.json"),
    )
    .unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let outside = |kind: &str, inside: u64| {
        let ranges = record["ids"][kind].as_array().unwrap();
        let number = |range: &serde_json::Value, key: &str| range[key].as_u64().unwrap();
        let range = ranges.iter().find(|range| {
            let from = number(range, "inside");
            (from..from + number(range, "count")).contains(&inside)
        });
        let range = range.unwrap();
        u32::try_from(number(range, "outside") + inside - number(range, "inside")).unwrap()
    };
    let theirs = (outside("uid", 33), outside("gid", 33));
    let workspace = world.workspace();
    let data = workspace.join("pgdata");
    world.make_dir(&data);
    let file = data.join("file");
    world.write(&file, "");
    let volume = world.workspace();
    for path in [&volume, &file, &data] {
        chown(path, Some(theirs.0), Some(theirs.1)).unwrap();
    }
    eventually("they are older than the clock's grain", || {
        let changed = fs::metadata(&data).unwrap();
        let at = std::time::Duration::new(
            changed.ctime().cast_unsigned(),
            changed.ctime_nsec().try_into().unwrap(),
        );
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        (now.unwrap() > at + std::time::Duration::from_millis(50)).then_some(())
    });
    let both = [&workspace, &volume].map(|path| path.to_str().unwrap());
    let name = super::create(world, "older", &both);
    let sandbox = Sandbox {
        world,
        name,
        workspace: workspace.clone(),
    };
    sandbox
        .root_sh("stat -c %u pgdata | grep -qx 33; mkdir made; touch made/file pgdata-2; chown 33:33 made pgdata-2")
        .ok();
    sbx(world, &["stop", &sandbox.name]).ok();
    for path in [&volume, &data, &file] {
        assert_eq!(owner(path), theirs, "{}", path.display());
    }
    for name in ["made", "made/file", "pgdata-2"] {
        assert_eq!(
            owner(&workspace.join(name)),
            (world.uid, world.gid),
            "{name}"
        );
    }
}

/// The agent owns what is above the nested workspace, and so can put another directory of its owner in its place.
fn swapped(world: &'static World) {
    let outer = world.workspace();
    let (above, below) = (12_345, 23_456);
    for dir in ["d1", "d2", "d1/i", "d2/i"] {
        world.make_dir(&outer.join(dir));
    }
    world.write(&outer.join("d2/i/secret"), "host secret\n");
    let give = |path: &str, who: u32| chown(outer.join(path), Some(who), Some(who)).unwrap();
    for path in ["", "d1", "d2"] {
        give(path, above);
    }
    for path in ["d1/i", "d2/i", "d2/i/secret"] {
        give(path, below);
    }
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(outer.join("d2/i"), private).unwrap();
    let inner = outer.join("d1/i");
    let paths = [&outer, &inner].map(|path| path.to_str().unwrap());
    let name = super::create(world, "swapped", &paths);
    let sandbox = Sandbox {
        world,
        name,
        workspace: outer.clone(),
    };
    sandbox.sh("cat d2/i/secret").refused();
    sandbox.sh("mv d1 d3 && mv d2 d1").ok();
    sbx(world, &["stop", &sandbox.name]).ok();
    let ran = sandbox.sh("cat d1/i/secret").fails(125);
    assert!(!ran.out.contains("host secret"), "{ran:?}");
    assert!(
        ran.err.contains("is another directory") && ran.err.contains("hint: "),
        "{ran:?}"
    );
    // Where it was, it is shared.
    fs::rename(outer.join("d1"), outer.join("d2")).unwrap();
    fs::rename(outer.join("d3"), outer.join("d1")).unwrap();
    sandbox.sh("touch d1/i/made").ok();
    assert_eq!(owner(&inner.join("made")), (below, below));
    // What has the same owner can be reached anyway: it is told of, and shared.
    sbx(world, &["stop", &sandbox.name]).ok();
    give("d1/i", above);
    give("d1/i/made", above);
    sbx(world, &["rm", "--force", &sandbox.name]).ok();
    let same = super::create(world, "same", &paths);
    sbx(world, &["stop", &same]).ok();
    fs::rename(&inner, outer.join("old")).unwrap();
    world.make_dir(&inner);
    give("d1/i", above);
    sbx(world, &["exec", &same, "touch", "d1/i/new"]).ok();
    assert!(inner.join("new").exists());
    sbx(world, &["rm", "--force", &same]).ok();
}

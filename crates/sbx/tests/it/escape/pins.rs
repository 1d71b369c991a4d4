//! Mount points in a writable workspace: the kernel keeps one from being renamed or removed only for those whose mount
//! namespace has the mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Said, attack, mounting, sbx, script};
use crate::ModeTest;
use crate::harness::{Ran, Sandbox, World, blocked, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "a_read_only_workspace_cannot_be_moved_out_of_a_writable_one",
        read_only,
    ),
    ("a_mount_of_the_host_cannot_be_taken_away", host_mount),
    (
        "between_two_read_only_workspaces_everything_is_read_only",
        between,
    ),
    (
        "a_read_only_workspace_that_was_replaced_is_refused",
        replaced,
    ),
    (
        "a_read_only_file_that_the_host_replaces_ends_the_sandbox",
        replaced_while_it_runs,
    ),
];

const ATTACK: &str = include_str!("attack/pins.py");

/// Each attempt on a mount point was made, and found it busy. A nested root has no power over a workspace of another id:
/// then that is said first.
#[track_caller]
fn all_held(said: &Said, user: &str, attempts: usize) {
    let errors = match user {
        "root" => &["EBUSY", "EACCES"][..],
        _ => &["EBUSY"],
    };
    let tries = said.results.iter();
    let tried: Vec<_> = tries
        .filter(|(name, _)| !name.starts_with("way_") && name.contains("_ro"))
        .collect();
    let moved: Vec<_> = tried
        .iter()
        .filter(|(_, result)| !errors.contains(&result.as_str()))
        .collect();
    assert!(moved.is_empty(), "{moved:?}\n{}", said.all);
    assert!(
        tried.len() >= attempts,
        "{} attempts:\n{}",
        tried.len(),
        said.all
    );
    said.refused(&[
        ("way_pivot", &["EPERM"]),
        ("way_pivot_in_place", &["EPERM"]),
        ("way_beneath", &["EPERM"]),
        ("way_detached_root", &["EINVAL"]),
        ("way_moved_root", &["EINVAL"]),
        ("way_empty", &["EINVAL"]),
        ("way_empty_child", &["ENOSYS"]),
        ("way_tree_namespace", &["EPERM"]),
        ("way_new_namespace", &["EPERM"]),
        ("way_inits_namespace", &["EACCES", "EPERM"]),
    ]);
    assert_eq!(said.result("way_twice"), "ok", "{}", said.all);
}

fn read_only(world: &'static World) {
    let workspace = world.workspace();
    let (dir, file) = (workspace.join("rodir"), workspace.join("rofile"));
    world.make_dir(&dir);
    world.write(&dir.join("file"), "untouched\n");
    world.write(&file, "untouched\n");
    let options = [&dir, &file].map(|path| format!("{}:ro", path.to_str().unwrap()));
    let name = super::create(
        world,
        "pins",
        &[workspace.to_str().unwrap(), &options[0], &options[1]],
    );
    let sandbox = Sandbox {
        world,
        name,
        workspace: workspace.clone(),
    };
    let numbers = || [&dir, &file].map(|path| fs::symlink_metadata(path).unwrap().ino());
    let before = numbers();
    let settings = [("DIR", "rodir"), ("FILE", "rofile")];
    for user in ["agent", "root"] {
        let said = attack(&sandbox, user, ATTACK, &settings);
        all_held(&said, user, 60);
        assert_eq!(numbers(), before, "as {user}: {}", said.all);
    }
    let left: Vec<_> = fs::read_dir(&workspace)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
    for path in [&dir.join("file"), &file] {
        assert_eq!(fs::read_to_string(path).unwrap(), "untouched\n");
    }
    // The probe is real: where nothing is held, the calls work, and nested sandboxes with them.
    let plain = world.sandbox("unpinned");
    plain.sh("mkdir rodir; touch rofile").ok();
    let said = attack(&plain, "agent", ATTACK, &settings);
    assert_eq!(said.result("way_pivot"), "ok", "{}", said.all);
    assert_eq!(said.result("here_rename_rodir"), "ok", "{}", said.all);
}

fn host_mount(shared: &'static World) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    let world = World::fresh(shared.mode);
    let workspace = world.workspace();
    world.make_dir(&workspace.join("rodata"));
    let program = world.home().join("attack.py");
    world.write(&program, script(ATTACK, &[("DIR", "rodata"), ("FILE", "")]));
    let steps = "set -e; sbx=$1 user=$2 group=$3; shift 3
        mount --make-rprivate /; mount -t tmpfs -o mode=755 none \"$1/rodata\"; chown $user:$group \"$1/rodata\"
        as() { setpriv --reuid=$user --regid=$group --clear-groups \"$sbx\" \"$@\"; }
        end() { as rm --all --force; as daemon stop; }
        trap end EXIT
        as create -q --name box shell \"$1\" 2>&1 | grep -o 'mounted inside the workspace' | sed 's/^/warned /'
        for who in root agent; do as exec -i -u $who box python3 - <\"$2\"; done
        mountpoint -q \"$1/rodata\" && echo still mounted";
    // What the agent says comes last, and counts.
    let said = mounting(&world, steps, &[&workspace, &program]);
    all_held(&said, "agent", 30);
    assert_eq!(said.result("still"), "mounted", "{}", said.all);
    assert_eq!(said.result("warned"), "mounted inside the workspace");
}

fn between(world: &'static World) {
    let workspace = world.workspace();
    let mut dir = workspace.clone();
    for name in ["outer", "way", "inner"] {
        dir.push(name);
        world.make_dir(&dir);
    }
    let read_only = |below: &str| format!("{}:ro", workspace.join(below).display());
    let paths = [
        workspace.to_str().unwrap(),
        &read_only("outer"),
        &read_only("outer/way/inner"),
    ];
    let name = super::create(world, "between", &paths);
    let sandbox = world.adopt(&name, &workspace);
    for place in ["outer", "outer/way", "outer/way/inner"] {
        let script = format!("touch {place}/file");
        for ran in [sandbox.sh(&script), sandbox.root_sh(&script)] {
            assert!(ran.refused().err.contains("Read-only"), "{place}");
        }
    }
    sandbox.sh("touch file").ok();
}

/// The engine cannot know who replaced it: a program inside may have.
fn replaced(world: &'static World) {
    let workspace = world.workspace();
    let dir = workspace.join("rodir");
    world.make_dir(&dir);
    let option = format!("{}:ro", dir.to_str().unwrap());
    let name = super::create(world, "replaced", &[workspace.to_str().unwrap(), &option]);
    sbx(world, &["stop", &name]).ok();
    let aside = workspace.join("aside");
    fs::rename(&dir, &aside).unwrap();
    world.make_dir(&dir);
    let ran = sbx(world, &["exec", &name, "true"]).fails(125);
    assert!(
        ran.err.contains("is another directory") && ran.err.contains("hint: "),
        "{ran:?}"
    );
    fs::remove_dir(&dir).unwrap();
    fs::rename(&aside, &dir).unwrap();
    sbx(world, &["exec", &name, "true"]).ok();
    sbx(world, &["rm", "--force", &name]).ok();
    // The user's own directory, made anew, is told and taken.
    let sandbox = world.sandbox("cloned");
    sbx(world, &["stop", &sandbox.name]).ok();
    fs::rename(&sandbox.workspace, world.home().join(&sandbox.name)).unwrap();
    world.make_dir(&sandbox.workspace);
    let ran = sandbox.exec(["touch", "made"]);
    assert!(ran.err.contains("was replaced"), "{ran:?}");
    ran.ok();
    assert!(sandbox.path("made").exists());
    sbx(world, &["stop", &sandbox.name]).ok();
    let ran = sandbox.exec(["true"]);
    assert!(!ran.err.contains("was replaced"), "told again: {ran:?}");
}

/// The kernel takes a mount away in every namespace when the host replaces what it is mounted on, as git does with its
/// configuration and editors do with every file.
fn replaced_while_it_runs(world: &'static World) {
    let workspace = world.workspace();
    let (config, hooks) = (workspace.join("config"), workspace.join("hooks"));
    let name = world.name("replaced");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    world.write(&config, "first");
    world.make_dir(&hooks);
    let read_only = [&config, &hooks].map(|path| format!("{}:ro", text(path)));
    let create = ["create", "--name", &name, "shell", &text(&workspace)];
    world
        .run(
            create
                .into_iter()
                .chain(read_only.iter().map(String::as_str)),
        )
        .ok();
    let sandbox = world.adopt(&name, &workspace);
    let ends = |replace: &dyn Fn()| {
        let session = sandbox.open_session();
        let refused = sandbox.sh("echo evil >config || echo evil >hooks/evil");
        assert!(refused.refused().err.contains("Read-only"), "it is open");
        replace();
        world.until_stopped(&name, "it does not go on");
        let reason = world.inspect(&name)["stop_reason"].clone();
        let reason = reason.as_str().unwrap();
        assert!(reason.contains("replaced on the host"), "{reason}");
        // By whichever of the two signals it felt first.
        let told = Ran::from(session.wait_with_output().unwrap());
        assert!(matches!(told.code, 137 | 143), "{told:?}");
        assert!(told.err.contains("replaced on the host"), "{told:?}");
    };
    ends(&|| {
        let new = workspace.join("config.lock");
        world.write(&new, "second");
        fs::rename(&new, &config).unwrap();
    });
    // The next start shares what is there now, as it was to be shared.
    let refused = sandbox.sh("cat config; echo evil >config").refused();
    assert_eq!(refused.out, "second", "{}", refused.err);
    ends(&|| fs::rename(&hooks, workspace.join("older")).unwrap());
}

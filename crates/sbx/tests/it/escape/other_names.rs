//! What no workspace may show, by the names that mounts and links give it: state directories, and the kernel.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::{mounting, run, sbx};
use crate::ModeTest;
use crate::harness::{Ran, World, blocked, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    ("the_state_by_another_mount_is_not_shared", state_by_mount),
    ("file_systems_of_the_kernel_are_not_shared", kernel),
    ("the_state_of_another_daemon_is_not_shared", other_state),
    (
        "a_read_only_path_through_a_link_of_the_inside_is_refused",
        read_only_link,
    ),
    (
        "a_search_path_that_is_a_mount_of_a_workspace_shows_nothing",
        search_path,
    ),
];

/// `as` is `sbx` of the mode's user; `try NAME WORD ...` says whether a command was refused for a reason with that word.
const BEGIN: &str = "set -e; sbx=$1 user=$2 group=$3; shift 3
    mount --make-rprivate /
    as() { setpriv --reuid=$user --regid=$group --clear-groups \"$sbx\" \"$@\"; }
    end() { as rm --all --force; as daemon stop; }
    trap end EXIT
    try() {
        name=$1 word=$2; shift 2
        if said=$(as \"$@\" 2>&1); then echo \"$name ok\"; return; fi
        case $said in *hint:*\"$word\"*) echo \"$name refused\";; *) echo \"$name $said\" | tr '\\n' ' '; echo;; esac
    }
";

fn mounted(world: &World, steps: &str, args: &[&Path]) -> super::Said {
    mounting(world, &format!("{BEGIN}{steps}"), args)
}

#[track_caller]
fn all_as_expected(said: &super::Said, refused: &[&str], fine: &[&str]) {
    for name in refused {
        assert_eq!(said.result(name), "refused", "{name}: {}", said.all);
    }
    for name in fine {
        assert_eq!(said.result(name), "ok", "{name}: {}", said.all);
    }
}

fn state_by_mount(shared: &'static World) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    let world = World::fresh(shared.mode);
    let base = world.workspace();
    let steps = "cd \"$1\"; mkdir -p data/home/project home w/part fine
        chown -R $user:$group data home w fine; mount --bind data/home home
        export SBX_HOME=$1/home/state
        try fine none create -q --name fine shell \"$1/fine\"
        try above 'shows the state' create --name bad shell \"$1/data\"
        try within 'shows the state' create --name bad shell \"$1/data/home/state/vm\"
        try second 'shows the state' create --name bad shell \"$1/fine\" \"$1/data/home:ro\"
        try beside none create -q --name beside shell \"$1/data/home/project\"
        as stop fine
        mount --bind data/home/state/vm w/part
        try part 'shows the state' create --name bad shell \"$1/w\"
        try inpart 'shows the state' create --name bad shell \"$1/w/part/fine\"
        mount --bind data/home/state/vm fine
        try again 'shows the state' exec fine ls
        umount fine
        try back none exec fine ls";
    let said = mounted(&world, steps, &[&base]);
    all_as_expected(
        &said,
        &["above", "within", "second", "part", "inpart", "again"],
        &["fine", "beside", "back"],
    );
}

fn kernel(shared: &'static World) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    let world = World::fresh(shared.mode);
    let base = world.workspace();
    let steps =
        "cd \"$1\"; mkdir -p tree/proc tree/dev tree/sys memory plain; chown -R $user:$group .
        mount -t proc proc tree/proc; mount -t tmpfs -o mode=777 none memory
        try itself \"host's kernel\" create --name bad shell \"$1/tree/proc\"
        try within \"host's kernel\" create --name bad shell \"$1/tree/proc/sys\"
        try below \"host's kernel (proc)\" create --name bad shell \"$1/tree\"
        try second \"host's kernel (proc)\" create --name bad shell \"$1/plain\" \"$1/tree:ro\"
        umount tree/proc
        try sound none create -q --name tree shell \"$1/tree\"
        try memory none create -q --name memory shell \"$1/memory\"
        as stop tree
        if mount -t devtmpfs none tree/dev 2>/dev/null; then
            try device \"host's kernel (devtmpfs)\" exec tree ls; umount tree/dev
        else
            echo device refused
        fi
        mount -t proc proc tree/proc
        try again \"host's kernel (proc)\" exec tree ls
        umount tree/proc
        try back none exec tree ls";
    let said = mounted(&world, steps, &[&base]);
    all_as_expected(
        &said,
        &["itself", "within", "below", "second", "device", "again"],
        &["sound", "memory", "back"],
    );
}

#[track_caller]
fn refused_for(ran: Ran, said: &[&str]) {
    let ran = ran.fails(1);
    for said in said {
        assert!(ran.err.contains(said), "{said}: {ran:?}");
    }
}

fn other_state(world: &'static World) {
    let outer = world.workspace();
    let state = outer.join("its/state");
    world.make_dir(&outer.join("its"));
    let theirs = |args: &[&str]| run(world.sbx(args).env("SBX_HOME", &state), b"");
    let project = world.workspace();
    let create = ["create", "-q", "--name", "its", "shell"];
    theirs(&[&create[..], &[project.to_str().unwrap()]].concat()).ok();
    theirs(&["rm", "--force", "its"]).ok();
    theirs(&["daemon", "stop"]).ok();
    assert!(state.join("vm").is_dir());
    let name = world.name("victim");
    let tried = |home: &Path, path: &Path| {
        let mut command = world.sbx(["create", "--name", &name, "shell"]);
        run(command.arg(path).env("HOME", home), b"")
    };
    let marker = state.join(".sbx-owner");
    let said = [
        "another state directory of sbx",
        state.to_str().unwrap(),
        marker.to_str().unwrap(),
    ];
    for path in [&outer, &state, &state.join("vm")] {
        refused_for(tried(&world.home(), path), &said);
    }
    // The usual place is found however deep it lies.
    let home = outer.join("a/b/c/home");
    let usual = home.join(".docker/sandboxes");
    let mut make = world.command("mkdir");
    run(make.arg("-p").arg(usual.parent().unwrap()), b"").ok();
    let mut moved = world.command("mv");
    run(moved.arg(&state).arg(&usual), b"").ok();
    refused_for(tried(&home, &outer), &["state directory", ".docker"]);
    // Part of it belongs to ids that only the engine has.
    let mut reset = world.sbx(["reset", "--force"]);
    run(reset.env("SBX_HOME", &usual), b"").ok();
    assert!(!usual.join("vm").exists());
    // A file of the same name that an agent made does not block the workspace.
    let sandbox = world.sandbox_with("planter", &[]);
    sandbox
        .sh("mkdir sub vm sub/vm; touch .sbx-owner; ln -s /etc/passwd sub/.sbx-owner")
        .ok();
    for path in [&sandbox.workspace, &sandbox.path("sub"), &outer] {
        tried(&world.home(), path).ok();
        sbx(world, &["rm", "--force", &name]).ok();
    }
    sbx(world, &["stop", &sandbox.name]).ok();
    sandbox.sh("true").ok();
}

fn read_only_link(world: &'static World) {
    let outer = world.workspace();
    for dir in ["real", "real/hooks"] {
        world.make_dir(&outer.join(dir));
    }
    symlink("real", outer.join(".git")).unwrap();
    let theirs = world.sandbox("planter");
    theirs.sh("mkdir real; ln -s real in").ok();
    let name = world.name("linked");
    let own = outer.to_str().unwrap();
    let tried = |path: &Path| {
        let read_only = format!("{}:ro", path.display());
        sbx(
            world,
            &["create", "--name", &name, "shell", own, &read_only],
        )
    };
    for (path, real) in [
        (outer.join(".git"), outer.join("real")),
        (outer.join(".git/hooks"), outer.join("real/hooks")),
        (theirs.path("in"), theirs.path("real")),
    ] {
        let hint = format!("give the real path: {}", real.display());
        refused_for(tried(&path), &["through the link", &hint]);
        tried(&real).ok();
        sbx(world, &["rm", "--force", &name]).ok();
    }
}

/// Its link is the agent's, who can make it lead to a secret of the user's.
fn search_path(shared: &'static World) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    let world = World::with_own_template(shared.mode);
    let (base, workspace, ours) = (world.workspace(), world.workspace(), world.workspace());
    let steps = "cd \"$1\"; mkdir -p bound secret \"$2/tools/bin\"; echo 'host secret' >secret/work
        chmod 755 bound secret; chown -R $user:$group . \"$2\"
        mount --bind \"$2/tools\" bound
        as create -q --name theirs shell \"$2\"
        as exec theirs sh -c \"rm -r tools/bin; ln -s '$1/secret' tools/bin\"
        export PATH=$1/bound/bin:$PATH
        as create -q --name ours shell \"$3\"
        as exec -u root ours sh -c \"grep -qs 'host secret' -r '$1' && echo secret ok || echo secret hidden\"";
    let said = mounted(&world, steps, &[&base, &workspace, &ours]);
    assert_eq!(said.result("secret"), "hidden", "{}", said.all);
}

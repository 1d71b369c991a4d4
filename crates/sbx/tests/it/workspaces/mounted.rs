//! `sbx mount` and `sbx umount`, above all while the sandbox runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Child;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::text;
use crate::harness::{Mode, Ran, Sandbox, World, kill};

/// What the command says, which must succeed, as JSON.
#[track_caller]
fn change(world: &World, args: &[&str]) -> Value {
    let said = world.run(args).ok();
    serde_json::from_str(&said).unwrap()
}

fn shown(sandbox: &Sandbox<'_>, path: &Path) -> Option<Value> {
    let shown = sandbox.world.inspect(&sandbox.name);
    let mut workspaces = shown["workspaces"].as_array().unwrap().iter();
    workspaces.find(|it| it["path"] == json!(path)).cloned()
}

/// Keeps the sandbox up until the file `go` is in its workspace, and then runs the script.
fn session(sandbox: &Sandbox<'_>, script: &str) -> Child {
    let wait = "echo ready; while [ ! -e go ]; do sleep 0.05; done";
    sandbox.begin(&format!("{wait}; {script}"))
}

fn end(sandbox: &Sandbox<'_>, session: Child) -> Ran {
    sandbox.world.write(&sandbox.path("go"), "");
    Ran::from(session.wait_with_output().unwrap())
}

pub(super) fn while_it_runs(world: &'static World) {
    let (data, lib) = (world.workspace(), world.workspace());
    world.write(&data.join("file"), "seen\n");
    world.write(&lib.join("file"), "kept\n");
    let sandbox = world.sandbox("mounted");
    let name = sandbox.name.as_str();
    let running = session(&sandbox, "cat /mnt/data/file; cat /mnt/lib/file");
    let data_at = format!("{}:/mnt/data", text(&data));
    let lib_at = format!("{}:/mnt/lib:ro", text(&lib));
    let done = change(world, &["mount", name, &data_at, &lib_at, "--json"]);
    for (at, target, readonly) in [(0, "/mnt/data", false), (1, "/mnt/lib", true)] {
        let workspace = &done[at]["workspace"];
        assert_eq!(workspace["target"], target, "{done}");
        assert_eq!(workspace["readonly"], readonly, "{done}");
        assert_eq!(done[at]["running"], true, "{done}");
        assert_eq!(done[at]["reason"], Value::Null, "{done}");
    }
    let mounts = world.inspect(name)["mounts"].as_array().unwrap().clone();
    let is_there = |it: &Value| it["target"] == "/mnt/lib" && it["source"] == json!(lib);
    assert!(mounts.iter().any(is_there), "{mounts:?}");
    assert_eq!(shown(&sandbox, &lib).unwrap()["added"], true);

    attacked(&sandbox, &data, &lib);

    let running = end(&sandbox, running);
    assert_eq!(running.ok(), "seen\nkept");
    // The next start has them as well, and they are locked then.
    world.run(["stop", name]).ok();
    assert_eq!(
        sandbox.sh("cat /mnt/data/file /mnt/lib/file").ok(),
        "seen\nkept"
    );
    let tried = sandbox
        .root_sh("umount /mnt/lib || umount -l /mnt/lib || mount -o remount,rw,bind /mnt/lib");
    assert_ne!(tried.code, 0, "{tried:?}");
    let meta = fs::metadata(data.join("roots")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (world.uid, world.gid));
}

/// What root inside, and the agent, try at workspaces that came later.
fn attacked(sandbox: &Sandbox<'_>, data: &Path, lib: &Path) {
    sandbox.sh("echo made > /mnt/data/made").ok();
    sandbox.root_sh("echo x > /mnt/data/roots").ok();
    for (name, world) in [("made", sandbox.world), ("roots", sandbox.world)] {
        let meta = fs::metadata(data.join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (world.uid, world.gid), "{name}");
    }
    let tries = "mkdir -p /tmp/b; for how in 'mount -o remount,rw,bind /mnt/lib' 'mount -o remount,rw /mnt/lib' \
                 'mount --bind /mnt/lib /tmp/b' 'mount -o remount,rw,bind /tmp/b' 'mount --move /mnt/lib /tmp/b'; do \
                 $how; echo x > /mnt/lib/file; echo x > /tmp/b/file; touch /mnt/lib/new /tmp/b/new; \
                 rm -f /mnt/lib/file; done 2>/dev/null; mount --move /tmp/b /mnt/lib; \
                 umount /tmp/b; echo done";
    for said in [
        sandbox.root_sh(tries),
        sandbox.sh(&format!("unshare -Urm sh -c \"{tries}\"")),
    ] {
        assert_eq!(
            fs::read_to_string(lib.join("file")).unwrap(),
            "kept\n",
            "{said:?}"
        );
        assert!(!lib.join("new").exists(), "{said:?}");
    }
    let bits = "cd /mnt/data; chmod 4755 made; chmod 2755 made; cp /bin/true tool; chmod u+s tool; \
                setcap cap_net_raw+ep tool; install -m 4755 /bin/true installed; true";
    for said in [sandbox.sh(bits), sandbox.root_sh(bits)] {
        for entry in fs::read_dir(data).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().mode();
            assert_eq!(mode & 0o6000, 0, "{:?}: {mode:o} {said:?}", entry.path());
        }
    }
}

pub(super) fn taken_away(world: &'static World) {
    let (data, lib) = (world.workspace(), world.workspace());
    world.write(&data.join("file"), "seen\n");
    let sandbox = world.sandbox("unmounted");
    let name = sandbox.name.as_str();
    let running = session(&sandbox, "cat /mnt/data/file");
    let data_at = format!("{}:/mnt/data", text(&data));
    world.run(["mount", name, &data_at, text(&lib)]).ok();
    assert_eq!(
        sandbox.sh(&format!("cd {} && pwd", text(&lib))).ok(),
        text(&lib)
    );
    // What programs use stays, and is told.
    let mut user = sandbox.begin("cd /mnt/data; echo ready; exec sleep 1000");
    let busy = world.run(["umount", name, "/mnt/data"]).fails(1).err;
    assert!(busy.contains("EBUSY") && busy.contains("hint: "), "{busy}");
    assert_eq!(shown(&sandbox, &data).unwrap()["pending"], Value::Null);
    assert_eq!(sandbox.sh("cat /mnt/data/file").ok(), "seen");
    sandbox.sh("for p in /proc/[0-9]*; do [ \"$(cat $p/comm 2>/dev/null)\" = sleep ] && [ \"$(readlink $p/cwd)\" = /mnt/data ] && kill ${p#/proc/}; done; true").ok();
    user.wait().unwrap();

    let done = change(world, &["umount", name, "/mnt/data", text(&lib), "--json"]);
    for at in [0, 1] {
        assert_eq!(done[at]["reason"], Value::Null, "{done}");
        assert_eq!(done[at]["running"], true, "{done}");
    }
    assert!(shown(&sandbox, &data).is_none() && shown(&sandbox, &lib).is_none());
    sandbox.sh("cat /mnt/data/file").refused();
    assert_ne!(end(&sandbox, running).code, 0);
    // And again, at the same place.
    sandbox.world.own(&sandbox.path("go"));
    fs::remove_file(sandbox.path("go")).unwrap();
    world.run(["mount", name, &data_at]).ok();
    assert_eq!(sandbox.sh("cat /mnt/data/file").ok(), "seen");
    world.run(["stop", name]).ok();
    // Of one that does not run, at once.
    let done = change(world, &["umount", name, text(&data), "--json"]);
    assert_eq!(done[0]["running"], false, "{done}");
    sandbox.sh("cat /mnt/data/file").refused();
}

/// A mount that root inside took away, as a daemon may have that was killed before it wrote so, is not taken for one that is there.
pub(super) fn mounted_again(world: &'static World) {
    let data = world.workspace();
    world.write(&data.join("file"), "seen\n");
    let sandbox = world.sandbox("mounted-again");
    let name = sandbox.name.as_str();
    let running = session(&sandbox, "true");
    // Root in name only cannot unmount.
    let rounds: &[&str] = match world.mode {
        Mode::Single => &[],
        Mode::Root | Mode::Subordinate => &["", ":ro"],
    };
    for readonly in rounds {
        let data_at = format!("{}:/mnt/data{readonly}", text(&data));
        world.run(["mount", name, &data_at]).ok();
        sandbox.root_sh("umount /mnt/data").ok();
        let done = change(world, &["umount", name, "/mnt/data", "--json"]);
        assert_ne!(done[0]["reason"], Value::Null, "{done}");
        world.run(["mount", name, &data_at]).ok();
        assert_eq!(shown(&sandbox, &data).unwrap()["pending"], Value::Null);
        assert_eq!(sandbox.sh("cat /mnt/data/file").ok(), "seen");
        let written = sandbox.root_sh("touch /mnt/data/new").code;
        assert_eq!(written == 0, readonly.is_empty());
        let done = change(world, &["umount", name, "/mnt/data", "--json"]);
        assert_eq!(done[0]["reason"], Value::Null, "{done}");
        // What root made is the owner's again.
        if readonly.is_empty() {
            let owner = |path: &Path| fs::metadata(path).unwrap().uid();
            assert_eq!(owner(&data.join("new")), owner(&data));
        }
    }
    // What was mounted when it started, and stays.
    let data_at = format!("{}:/mnt/data", text(&data));
    end(&sandbox, running);
    world.run(["stop", name]).ok();
    world.run(["mount", name, &data_at]).ok();
    sandbox.world.own(&sandbox.path("go"));
    fs::remove_file(sandbox.path("go")).unwrap();
    let running = session(&sandbox, "cat /mnt/data/file");
    let done = change(world, &["umount", name, "/mnt/data", "--json"]);
    assert_ne!(done[0]["reason"], Value::Null, "{done}");
    let done = change(world, &["mount", name, &data_at, "--json"]);
    assert_eq!(done[0]["reason"], Value::Null, "{done}");
    assert_eq!(end(&sandbox, running).ok(), "seen");
}

pub(super) fn after_a_crash(world: &'static World) {
    let world = World::fresh(world.mode);
    let data = world.workspace();
    world.write(&data.join("file"), "seen\n");
    let sandbox = world.sandbox("crash");
    let name = sandbox.name.as_str();
    let running = session(&sandbox, "true");
    let data_at = format!("{}:/mnt/data", text(&data));
    world.run(["mount", name, &data_at]).ok();
    assert!(kill(world.daemon_pid(), Signal::KILL));
    assert_eq!(sandbox.sh("cat /mnt/data/file").ok(), "seen");
    assert_eq!(shown(&sandbox, &data).unwrap()["target"], "/mnt/data");
    let done = change(&world, &["umount", name, "/mnt/data", "--json"]);
    assert_eq!(done[0]["reason"], Value::Null, "{done}");
    sandbox.sh("cat /mnt/data/file").refused();
    end(&sandbox, running);
}

pub(super) fn from_the_next_start(world: &'static World) {
    let (masked, lib) = (world.workspace(), world.workspace());
    world.write(&masked.join(".sbxignore"), "secret\n");
    world.write(&masked.join("secret"), "hunter2");
    world.write(&lib.join("file"), "kept");
    let lib_ro = format!("{}:ro", text(&lib));
    let sandbox = world.sandbox_with("later", &[&lib_ro]);
    let name = sandbox.name.as_str();
    let inner = sandbox.path("inner");
    world.make_dir(&inner);
    world.write(&inner.join("file"), "kept");
    let inner_ro = format!("{}:ro", text(&inner));
    let running = session(&sandbox, "true");
    let done = change(world, &["mount", name, text(&masked), &inner_ro, "--json"]);
    for (at, why) in [(0, ".sbxignore"), (1, "in or around")] {
        let reason = done[at]["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{done}");
        assert_eq!(done[at]["workspace"]["pending"], "mount");
    }
    sandbox
        .sh(&format!("cat {}/secret", text(&masked)))
        .refused();
    let locked = change(world, &["umount", name, text(&lib), "--json"]);
    assert!(
        locked[0]["reason"].as_str().unwrap().contains("locked"),
        "{locked}"
    );
    assert_eq!(shown(&sandbox, &lib).unwrap()["pending"], "unmount");
    sandbox.sh(&format!("cat {}/file", text(&lib))).ok();
    end(&sandbox, running);

    world.run(["stop", name]).ok();
    assert!(shown(&sandbox, &lib).is_none());
    assert_eq!(
        sandbox.sh(&format!("cat {}/secret", text(&masked))).ok(),
        ""
    );
    sandbox
        .root_sh(&format!("echo x > {}/file", text(&inner)))
        .refused();
    sandbox.sh(&format!("cat {}/file", text(&lib))).refused();
    let shown = shown(&sandbox, &masked).unwrap();
    assert_eq!(shown["pending"], Value::Null);
    // Both at once.
    let done = change(
        world,
        &["umount", "--restart", name, text(&inner), "--json"],
    );
    assert_eq!(done[0]["reason"], Value::Null, "{done}");
    sandbox
        .root_sh(&format!("echo x > {}/file", text(&inner)))
        .ok();
}

pub(super) fn refused(world: &'static World) {
    let (data, state) = (world.workspace(), world.state());
    let sandbox = world.sandbox("refused");
    let name = sandbox.name.as_str();
    let running = session(&sandbox, "true");
    let primary = text(&sandbox.workspace).to_owned();
    let at = |place: &str| format!("{}:{place}", text(&data));
    for path in [
        at("/etc/data"),
        at("/usr/bin/data"),
        at("/run/data"),
        at("/proc/data"),
        at("/home/agent"),
        at(&format!("{primary}/data")),
        "/".into(),
        "/etc".into(),
        "/proc".into(),
        text(&state).into(),
        text(&state.join("vm")).into(),
        text(state.parent().unwrap()).into(),
        primary.clone(),
        format!("{primary}:/mnt/again"),
    ] {
        let said = world.run(["mount", name, &path]).fails(1);
        assert!(said.err.contains("error: "), "{path}: {said:?}");
    }
    let missing = data.join("missing");
    let said = world.run(["mount", name, text(&missing)]).fails(1).err;
    assert!(said.contains("hint: "), "{said}");
    for path in [primary.as_str(), text(&data), "/mnt/none"] {
        let said = world.run(["umount", name, path]).fails(1).err;
        assert!(said.contains("hint: "), "{path}: {said}");
    }
    // A link that root inside has put in the way leads nowhere.
    sandbox
        .root_sh("ln -s / /mnt/link 2>/dev/null || ln -s / /opt/link")
        .ok();
    let done = change(world, &["mount", name, &at("/mnt/link/etc/data"), "--json"]);
    if world.mode != Mode::Single {
        let reason = done[0]["reason"].as_str().unwrap();
        assert!(reason.contains("exists and is of another type"), "{done}");
    }
    let workspaces = world.inspect(name)["workspaces"].as_array().unwrap().len();
    assert_eq!(workspaces, 2);
    end(&sandbox, running);
}

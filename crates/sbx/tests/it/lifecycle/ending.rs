//! `sbx stop` and `sbx rm`, also while something runs.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::Signal;

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::{Ran, World, alive, eventually, kill};

pub const TESTS: &[ModeTest] = &[
    ("lifecycle::rm_respects_open_sessions", rm_busy),
    ("lifecycle::rm_of_many", rm_many),
    ("lifecycle::rm_by_force_does_not_wait", rm_does_not_wait),
    ("lifecycle::stop_ends_what_runs", stop_ends),
    ("lifecycle::reset_leaves_nothing", reset),
];

fn rm_busy(world: &'static World) {
    let sandbox = world.sandbox("busy");
    let client = sandbox.open_session();
    // Without a terminal it cannot ask.
    assert!(
        world
            .run(["rm", &sandbox.name])
            .fails(1)
            .err
            .contains("--force")
    );
    eventually("the session is counted", || {
        (world.inspect(&sandbox.name)["sessions"] == 1).then_some(())
    });
    for (answer, word) in [("n\r", "nothing was removed"), ("y\r", "1 running command")] {
        let session = Session::start(world, &["rm", &sandbox.name]);
        session.type_in(answer);
        let (code, shown) = session.end();
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains(word), "{shown}");
        assert_eq!(world.status(&sandbox.name), "running");
    }
    world.run(["rm", "--force", &sandbox.name]).ok();
    let ended = Ran::from(client.wait_with_output().unwrap());
    assert_ne!(ended.code, 0, "{ended:?}");
    assert!(!world.names().contains(&sandbox.name));
    world.run(["rm", "--force", &sandbox.name]).fails(1);
}

fn rm_many(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    for name in ["one", "two", "three"] {
        world.create(name, &dir).ok();
    }
    // One that is missing does not save the others.
    let ran = world
        .run(["rm", "--force", "one", "missing", "two"])
        .fails(1);
    assert!(
        ran.err.contains("sandbox 'missing' not found"),
        "{}",
        ran.err
    );
    assert_eq!(world.names(), ["three"]);
    world.run(["rm", "--all", "--force"]).ok();
    world.assert_no_sandboxes();
    assert!(dir.exists());
    assert_eq!(
        world.run(["ls", "--json"]).ok(),
        "{\n  \"sandboxes\": []\n}"
    );
}

/// What ignores SIGTERM goes too, and what root made is the caller's all the same.
fn rm_does_not_wait(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandboxes = ["a", "b", "c", "d"].map(|hint| world.sandbox(hint));
    let rude =
        "trap '' TERM; mkdir made; touch made/file; echo ready; while :; do sleep 0.05; done";
    for sandbox in &sandboxes {
        let run = ["exec", "-d", "-u", "root", &sandbox.name, "sh", "-c", rude];
        world.run(run).ok();
        eventually("it ignores SIGTERM", || {
            sandbox.path("made/file").exists().then_some(())
        });
    }
    world.run(["rm", "--all", "--force"]).ok();
    world.assert_no_sandboxes();
    for sandbox in &sandboxes {
        for name in ["made", "made/file"] {
            let meta = fs::symlink_metadata(sandbox.path(name)).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (world.uid, world.gid), "{name}");
        }
    }
}

fn stop_ends(world: &'static World) {
    let sandbox = world.sandbox("ends");
    // One that goes when asked, one that does not listen.
    let polite = "trap 'echo bye > said; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let rude = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let clients = [polite, rude].map(|script| sandbox.begin(script));
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(world.status(&sandbox.name), "stopped");
    assert_eq!(fs::read_to_string(sandbox.path("said")).unwrap(), "bye\n");
    for (client, code) in clients.into_iter().zip([0, 137]) {
        Ran::from(client.wait_with_output().unwrap()).fails(code);
    }
    // Stopping what is stopped is no error; what does not exist is.
    world.run(["stop", &sandbox.name]).ok();
    world.run(["stop", "no-such-sandbox"]).fails(1);
}

fn reset(world: &'static World) {
    let world = World::fresh(world.mode);
    // Nothing of ours is there, and nothing is made to find that out.
    let before = world.state().exists();
    world.run(["reset", "--force"]).ok();
    assert_eq!(world.state().exists(), before);
    let sandbox = world.sandbox("reset");
    sandbox.sh("mkdir -p ~/deep/er; echo x > kept").ok();
    sandbox.root_sh("mkdir -m 000 /srv/closed").ok();
    let init = world.init_pid(&sandbox.name);
    let refused = world.run(["reset"]).fails(1).err;
    assert!(refused.contains("--force"), "{refused}");
    for part in [
        &format!("1 sandbox, 1 running: {}", sandbox.name),
        "settings",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    world.run(["reset", "--force"]).ok();
    assert!(!world.state().exists(), "{:?}", fs::read_dir(world.state()));
    assert!(!alive(init), "init is still there");
    assert_eq!(fs::read_to_string(sandbox.path("kept")).unwrap(), "x\n");
    // A sandbox whose daemon was killed is found as well.
    let other = world.sandbox("orphan");
    let (init, daemon) = (world.init_pid(&other.name), world.daemon_pid());
    assert!(kill(daemon, Signal::KILL));
    eventually("the daemon is dead", || (!alive(daemon)).then_some(()));
    assert!(alive(init));
    world.run(["reset", "--force", "--preserve-secrets"]).ok();
    assert!(!alive(init), "init is still there");
    assert!(!world.state().exists(), "{:?}", fs::read_dir(world.state()));
}

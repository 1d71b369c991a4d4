//! `sbx prune`: only what is stopped goes, and only what was shown.

use std::fs;

use serde_json::{Value, json};

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::World;

pub const TESTS: &[ModeTest] = &[
    ("lifecycle::prune_removes_what_is_stopped", prune),
    (
        "lifecycle::prune_leaves_what_was_used_meanwhile",
        used_meanwhile,
    ),
];

fn shown(world: &World, args: &[&str]) -> Value {
    let words = ["prune", "--json"].iter().chain(args);
    serde_json::from_str(&world.run(words).ok()).unwrap()
}

fn prune(world: &'static World) {
    let world = World::fresh(world.mode);
    // Nothing is made to find out that there is nothing.
    let before = world.state().exists();
    assert_eq!(
        shown(&world, &["--force"]),
        json!({"removed": [], "failed": [], "skipped_unknown_stop": []})
    );
    assert_eq!(world.state().exists(), before);
    let [up, old, unknown] = ["up", "old", "unknown"].map(|hint| world.sandbox(hint));
    for sandbox in [&old, &unknown] {
        world.run(["stop", &sandbox.name]).ok();
    }
    world.run(["daemon", "stop"]).ok();
    // `daemon stop` stops everything; what follows asks no daemon.
    let path = world
        .state()
        .join("vm")
        .join(&unknown.name)
        .join("sandbox.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["stopped_at"] = Value::Null;
    world.write(&path, record.to_string());
    let plan = shown(&world, &["--dry-run"]);
    let removed: Vec<&str> = plan["would_remove"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(removed, [&old.name, &up.name]);
    assert_eq!(plan["skipped_unknown_stop"], json!([unknown.name]));
    let first = &plan["would_remove"][0];
    assert_eq!(first["agent"], "shell");
    assert_eq!(first["workspaces"], json!([old.workspace]));
    assert!(first["stopped_at"].is_string(), "{first}");
    let socket = world.state().join("sandboxd.sock");
    assert!(!socket.exists(), "a daemon was started");
    // One runs again; the others stopped less than an hour ago.
    up.exec(["true"]).ok();
    for filter in ["since=1h", "until=1h"] {
        let kept = shown(&world, &["--force", "--filter", filter]);
        assert_eq!(kept["removed"], json!([]), "{kept}");
    }
    let refused = world.run(["prune", "--filter", "age=1h"]).fails(1).err;
    assert!(refused.contains("since=7d"), "{refused}");
    let refused = world.run(["prune"]).fails(1).err;
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(world.names().len(), 3);
    let told = world.run(["prune", "--force"]);
    assert!(
        told.err.contains("its stop time is unknown"),
        "{}",
        told.err
    );
    told.ok();
    assert_eq!(world.names(), [unknown.name.clone(), up.name.clone()]);
    assert_eq!(world.status(&up.name), "running");
    assert!(old.workspace.exists());
}

fn used_meanwhile(world: &'static World) {
    let world = World::fresh(world.mode);
    let [idle, used, runs] = ["idle", "used", "runs"].map(|hint| world.sandbox(hint));
    for sandbox in [&idle, &used, &runs] {
        world.run(["stop", &sandbox.name]).ok();
    }
    let session = Session::start(&world, &["prune"]);
    session.expect("[y/N]");
    used.exec(["true"]).ok();
    world.run(["stop", &used.name]).ok();
    runs.exec(["true"]).ok();
    session.type_in("y\r");
    let (code, shown) = session.end();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("has been used since"), "{shown}");
    assert_eq!(world.names(), [runs.name.clone(), used.name.clone()]);
    assert_eq!(world.status(&runs.name), "running");
}

//! `sbx settings`: what is set holds, and where a value comes from is told.

use std::fs;

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{World, eventually};

pub const TESTS: &[ModeTest] = &[
    ("daemon::settings_hold_at_once", hold_at_once),
    ("daemon::settings_of_the_environment_win", environment_wins),
];

fn of(world: &World, key: &str) -> Value {
    let all = world.run(["settings", "list", "--all", "--json"]).ok();
    let all: Value = serde_json::from_str(&all).unwrap();
    let mut all = all["settings"].as_array().unwrap().iter();
    all.find(|it| it["key"] == key).unwrap().clone()
}

fn stop_at(world: &World, name: &str) -> bool {
    !world.inspect(name)["stop_at"].is_null()
}

fn hold_at_once(world: &'static World) {
    let world = World::fresh(world.mode);
    let default = of(&world, "auto_stop_seconds");
    assert_eq!(
        (&default["value"], &default["source"]),
        (&json!(30), &json!("default"))
    );
    assert!(
        !world.state().join("daemon.json").exists(),
        "a daemon was started"
    );
    // Before the first command, and with a daemon.
    world
        .run(["settings", "set", "auto_stop_seconds", "off"])
        .ok();
    let sandbox = world.sandbox("settings");
    sandbox.exec(["true"]).ok();
    assert!(!stop_at(&world, &sandbox.name));
    let pid = world.daemon_pid();
    world
        .run(["settings", "set", "auto_stop_seconds", "3600"])
        .ok();
    assert_eq!(
        world.run(["settings", "get", "auto_stop_seconds"]).ok(),
        "3600"
    );
    assert_eq!(of(&world, "auto_stop_seconds")["source"], "override");
    sandbox.exec(["true"]).ok();
    eventually("the new time holds", || {
        stop_at(&world, &sandbox.name).then_some(())
    });
    // By an editor.
    let file = world.state().join("settings.json");
    let text = fs::read_to_string(&file).unwrap();
    world.write(&file, text.replace("3600", "0"));
    eventually("the edit is noticed", || {
        sandbox.exec(["true"]).ok();
        (!stop_at(&world, &sandbox.name)).then_some(())
    });
    for (args, word) in [
        (
            ["settings", "set", "auto_stop_second", "5"],
            "auto_stop_seconds",
        ),
        (
            ["settings", "set", "cache_max_mib", "lots"],
            "cache_max_mib",
        ),
        (["settings", "set", "mode", "root"], "mode"),
    ] {
        let refused = world.run(args).fails(1).err;
        assert!(refused.contains(word), "{refused}");
    }
    world.run(["settings", "unset", "auto_stop_seconds"]).ok();
    assert_eq!(of(&world, "auto_stop_seconds")["value"], 30);
    let told = world.run(["settings", "unset", "cache_max_mib"]);
    assert!(told.err.contains("was not set"), "{}", told.err);
    let subordinate = world.run(["settings", "set", "mode", "subordinate"]);
    assert!(
        subordinate.err.contains("sbx daemon restart"),
        "{}",
        subordinate.err
    );
    assert_eq!(of(&world, "mode")["restart_needed"], true);
    assert_eq!(world.daemon_pid(), pid);
}

fn environment_wins(world: &'static World) {
    let world = World::fresh(world.mode);
    world.run(["settings", "set", "cache_max_mib", "7"]).ok();
    let mut start = world.sbx(["daemon", "start", "-d"]);
    assert!(
        start
            .env("SBX_CACHE_MAX_MIB", "9")
            .status()
            .unwrap()
            .success()
    );
    let shown = of(&world, "cache_max_mib");
    assert_eq!(
        (&shown["value"], &shown["source"]),
        (&json!(9), &json!("envvar"))
    );
    let told = world.run(["settings", "set", "cache_max_mib", "8"]).err;
    assert!(told.contains("SBX_CACHE_MAX_MIB=9"), "{told}");
    world.run(["daemon", "stop"]).ok();
    let mut start = world.sbx(["daemon", "start", "-d"]);
    let refused = start.env("SBX_MODE", "root").output().unwrap();
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("SBX_MODE"), "{refused}");
    assert_eq!(of(&world, "cache_max_mib")["value"], 8);
}

//! Sandboxes that are not used stop by themselves.

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{World, eventually};

pub const TESTS: &[ModeTest] = &[
    ("lifecycle::idle_sandboxes_stop", auto_stop),
    ("lifecycle::auto_stop_can_be_switched_off", auto_stop_off),
    (
        "lifecycle::a_sandbox_has_an_idle_timeout_of_its_own",
        own_timeout,
    ),
    ("lifecycle::deadlines_survive_the_daemon", deadline_survives),
];

fn auto_stop(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 1}));
    let (busy, kept, idle) = (
        world.sandbox("busy"),
        world.sandbox("kept"),
        world.sandbox("idle"),
    );
    let mut client = busy.open_session();
    busy.exec(["true"]).ok();
    world.run(["run", "-d", "--name", &kept.name]).ok();
    idle.exec(["true"]).ok();
    // It was used last: when it has stopped, the others would have too.
    let stopped = || world.inspect(&idle.name);
    eventually("an idle sandbox stops", || {
        (stopped()["status"] == "stopped").then_some(())
    });
    assert_eq!(stopped()["stop_reason"], "idle");
    let text = world.run(["inspect", &idle.name]).ok();
    assert!(text.contains("stopped (idle)"), "{text}");
    let shown = world.inspect(&busy.name);
    assert_eq!(
        (&shown["status"], &shown["sessions"]),
        (&json!("running"), &json!(1))
    );
    assert_eq!(world.status(&kept.name), "running");
    // It comes back when it is used.
    assert_eq!(idle.exec(["echo", "back"]).ok(), "back");
    // The end of the command is the beginning of the grace period.
    world.write(&busy.path("go"), "");
    assert_eq!(client.wait().unwrap().code(), Some(44));
    world.until_stopped(&busy.name, "it stops when its command has ended");
    assert_eq!(world.inspect(&busy.name)["stop_reason"], "idle");
    assert_eq!(world.status(&kept.name), "running");
    // One that is created and never used stops too.
    let unused = world.sandbox("unused");
    world.until_stopped(&unused.name, "it stops without a command");
}

fn auto_stop_off(world: &'static World) {
    for off in [json!("off"), json!(0)] {
        let world = World::fresh(world.mode);
        world.settings(json!({"auto_stop_seconds": off}));
        let sandbox = world.sandbox("forever");
        sandbox.exec(["true"]).ok();
        eventually("the command is counted out", || {
            (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
        });
        assert_eq!(world.inspect(&sandbox.name)["stop_at"], Value::Null);
    }
    // By default it is thirty seconds after the last use.
    let sandbox = world.sandbox("default");
    let shown = world.inspect(&sandbox.name);
    let time = |key: &str| {
        shown[key]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    assert_eq!(
        time("stop_at").duration_since(time("last_used_at")),
        jiff::SignedDuration::from_secs(30)
    );
    let bad = World::fresh(world.mode);
    bad.settings(json!({"auto_stop_seconds": "soon"}));
    let workspace = bad.workspace();
    let refused = bad.create("box", &workspace).refused();
    assert!(refused.err.contains("settings.json"), "{}", refused.err);
}

/// Longer, shorter or none, whatever the settings say, and after a restart of the sandbox too.
fn own_timeout(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 900}));
    let workspace = world.workspace();
    let path = workspace.to_str().unwrap();
    let create = |name: &str, timeout: &str| {
        world.run([
            "create",
            "--name",
            name,
            "--idle-timeout",
            timeout,
            "shell",
            path,
        ])
    };
    let refused = create("bad", "soon").fails(1);
    assert!(refused.err.contains("90s, 10m"), "{}", refused.err);
    for (name, timeout) in [("short", "1s"), ("long", "2h"), ("never", "0")] {
        create(name, timeout).ok();
    }
    let _made = ["short", "long", "never"].map(|name| world.adopt(name, &workspace));
    world.until_stopped("short", "its own time is over");
    assert_eq!(world.inspect("short")["stop_reason"], "idle");
    world.run(["exec", "short", "true"]).ok();
    world.until_stopped("short", "again");
    for (name, seconds) in [("long", Some(7200)), ("never", None)] {
        world.run(["exec", name, "true"]).ok();
        let shown = eventually("the command is counted out", || {
            let shown = world.inspect(name);
            (shown["sessions"] == 0).then_some(shown)
        });
        assert_eq!(shown["idle_seconds"], seconds.unwrap_or(0));
        let Some(seconds) = seconds else {
            assert_eq!(shown["stop_at"], Value::Null);
            continue;
        };
        let time = |key: &str| {
            let text = shown[key].as_str().unwrap();
            text.parse::<jiff::Timestamp>().unwrap()
        };
        let left = time("stop_at").duration_since(time("last_used_at"));
        assert_eq!(left, jiff::SignedDuration::from_secs(seconds));
    }
    let late = world
        .run(["run", "--name", "long", "--idle-timeout", "1h"])
        .fails(125);
    assert!(late.err.contains("--idle-timeout"), "{}", late.err);
}

fn deadline_survives(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 2}));
    let (idle, kept) = (world.sandbox("idle"), world.sandbox("kept"));
    world.run(["run", "-d", "--name", &kept.name]).ok();
    idle.exec(["true"]).ok();
    // The daemon is away, and the next one knows what is due.
    world.run(["daemon", "restart"]).ok();
    world.until_stopped(&idle.name, "it stops under the next daemon");
    assert_eq!(world.inspect(&idle.name)["stop_reason"], "idle");
    let shown = world.inspect(&kept.name);
    assert_eq!(
        (&shown["status"], &shown["keep_alive"]),
        (&json!("running"), &json!(true))
    );
}

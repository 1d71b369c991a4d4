//! What is shown of a sandbox, to people and to programs.

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::World;

pub const TESTS: &[ModeTest] = &[
    (
        "lifecycle::the_very_first_command_is_quiet_on_stdout",
        first_command,
    ),
    ("lifecycle::ls_as_json", json_shapes),
    ("lifecycle::inspect_as_json", inspect_json),
    ("lifecycle::inspect_for_people", inspect_text),
    ("lifecycle::reading_without_a_daemon", reading_stopped),
];

fn first_command(world: &'static World) {
    let world = World::with_own_template(world.mode);
    let dir = world.workspace();
    // Starts the daemon and builds the template, and says nothing of it on stdout.
    let ran = world
        .run_in(&dir, &["run", "shell", "--", "-c", "echo only this"])
        .fails(0);
    assert_eq!(ran.out, "only this\n", "{}", ran.err);
    assert_eq!(world.daemon()["status"], "running");

    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let ran = world.create("made", &dir).fails(0);
    assert_eq!(ran.out, "made\n", "{}", ran.err);
}

fn json_shapes(world: &'static World) {
    let extra = world.workspace();
    let read_only = format!("{}:ro", extra.display());
    let sandbox = world.sandbox_with("shape", &[&read_only]);
    let list: Value = serde_json::from_str(&world.run(["ls", "--json"]).ok()).unwrap();
    assert_eq!(
        list.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["sandboxes"]
    );
    let listed = list["sandboxes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == sandbox.name.as_str())
        .unwrap();
    let keys: Vec<&str> = listed
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    for key in [
        "name",
        "id",
        "agent",
        "status",
        "workspaces",
        "workspace",
        "ports",
        "created_at",
        "backend",
    ] {
        assert!(keys.contains(&key), "{key}: {keys:?}");
    }
    let primary = sandbox.workspace.to_str().unwrap();
    assert_eq!(listed["workspaces"], json!([primary, extra]));
    assert_eq!(listed["workspace"], primary);
    assert_eq!(
        (&listed["agent"], &listed["status"], &listed["backend"]),
        (&json!("shell"), &json!("running"), &json!("namespace"))
    );
    assert_eq!(listed["ports"], json!([]));
    assert!(!keys.contains(&"workspace_missing"));
    let shown = world.inspect(&sandbox.name);
    assert_eq!(
        (&shown["id"], &shown["created_at"]),
        (&listed["id"], &listed["created_at"])
    );
    let table = world.run(["ls"]).ok();
    assert!(
        table.lines().next().unwrap().starts_with("SANDBOX"),
        "{table}"
    );
}

fn inspect_json(world: &'static World) {
    let extra = world.workspace();
    let read_only = format!("{}:ro", extra.display());
    let sandbox = world.sandbox_with("inspect", &[&read_only]);
    let primary = sandbox.workspace.to_str().unwrap();
    let shown = world.inspect(&sandbox.name);
    let id = shown["id"].as_str().unwrap();
    assert!(
        id.len() == 36 && id.split('-').map(str::len).eq([8, 4, 4, 4, 12]),
        "{id}"
    );
    assert_eq!(
        shown["labels"],
        json!({
            "com.docker.sandbox.agent": "shell",
            "com.docker.sandbox.workingDirectory": primary,
            "com.docker.sandboxes.flavor": "namespace",
        })
    );
    assert_eq!(
        (&shown["status"], &shown["state"], &shown["template"]),
        (&json!("running"), &json!("running"), &json!("host"))
    );
    assert_eq!(shown["mode"], world.mode.name());
    shown["created_at"]
        .as_str()
        .unwrap()
        .parse::<jiff::Timestamp>()
        .unwrap();
    assert_eq!(
        shown["workspaces"],
        json!([
            {"path": primary, "readonly": false, "missing": false},
            {"path": extra, "readonly": true, "missing": false},
        ])
    );
    assert!(
        shown["isolation"].as_array().unwrap().len() > 2
            && shown["mounts"].as_array().unwrap().len() > 2
    );
    world.run(["inspect", "--json", "no-such-sandbox"]).fails(1);
    // One that is missing does not hide the others.
    let names = ["no-such-sandbox", &sandbox.name];
    let ran = world
        .run(["inspect", "--json", names[0], names[1]])
        .fails(1);
    let one: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (one.as_array().unwrap().len(), &one[0]["id"]),
        (1, &json!(id))
    );
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    let ran = world.run(["inspect", names[1], names[0]]).fails(1);
    assert!(ran.out.starts_with("Name:") && ran.err.contains("`no-such-sandbox`"));
}

fn inspect_text(world: &'static World) {
    let sandbox = world.sandbox("labels");
    let primary = sandbox.workspace.to_str().unwrap();
    // For people it is not JSON, and has one line per label.
    let text = world.run(["inspect", &sandbox.name]).ok();
    assert!(
        text.contains("State:          running") && text.contains(primary),
        "{text}"
    );
    let labels = text.lines().filter_map(|line| line.split_once(':'));
    let labels: Vec<&str> = labels.map(|(label, _)| label).collect();
    for label in [
        "Kits",
        "Image digest",
        "Auth mode",
        "Network Policy",
        "Mount Policy",
        "Proxy",
        "Secrets",
        "MCP gateway",
        "Ports",
        "Sessions",
        "Daemon",
    ] {
        assert!(labels.contains(&label), "{label}: {text}");
    }
    // The host's own files are not said to be writable.
    for line in text.lines().filter(|line| line.contains(" -> ")) {
        let writable = line.contains("(rw, ");
        assert_eq!(
            writable,
            line.contains(&format!(" -> {primary} (")),
            "{line}"
        );
    }
    assert!(
        text.contains(" -> /usr (changes stay inside, template)"),
        "{text}"
    );
    assert!(serde_json::from_str::<Value>(&text).is_err());
}

fn reading_stopped(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("asleep");
    world.run(["daemon", "stop"]).ok();
    for args in [&["ls", "--json"][..], &["inspect", "--json", &sandbox.name]] {
        let ran = world.run(args).fails(0);
        let value: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(ran.err, "");
        let one = value.get("sandboxes").unwrap_or(&value)[0].clone();
        assert_eq!(
            (&one["name"], &one["status"]),
            (&json!(sandbox.name), &json!("stopped"))
        );
    }
    assert_eq!(world.names(), [sandbox.name.as_str()]);
    assert_eq!(world.inspect(&sandbox.name)["stop_reason"], "daemon stop");
    let version = world.run(["version"]).ok();
    assert!(version.contains("server: unavailable"), "{version}");
    world.run(["diagnose"]);
    sizes_unknown(&world, &sandbox.name);
    assert_eq!(
        world.daemon()["status"],
        "stopped",
        "reading started a daemon"
    );
    // What changes something starts it.
    assert_eq!(sandbox.exec(["echo", "awake"]).ok(), "awake");
    assert_eq!(world.daemon()["status"], "running");
}

/// `ls --size` without a daemon, which alone can measure.
fn sizes_unknown(world: &World, name: &str) {
    let ran = world.run(["ls", "--size"]).fails(0);
    let line = ran.out.lines().find(|line| line.starts_with(name)).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("-"), "{}", ran.out);
    assert!(
        ran.err.contains("note: no daemon is running"),
        "{}",
        ran.err
    );
    let ran = world.run(["ls", "--size", "--json"]).fails(0);
    let listed: Value = serde_json::from_str(&ran.out).unwrap();
    let one = &listed["sandboxes"][0];
    assert!(one.get("size_bytes").is_none() && one["limits"].is_object());
}

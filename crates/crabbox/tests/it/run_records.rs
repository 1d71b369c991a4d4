//! What a run writes down: timing, the lease, history and logs, and its last lines.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::world::World;

fn timing(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn keep_on_failure_keeps_after_a_failure_only() {
    let world = World::new();
    world
        .crabbox(&["run", "--keep-on-failure", "--", "true"])
        .exits(0);
    world.is_clean();
    let ran = world.crabbox(&[
        "run",
        "--keep-on-failure",
        "--slug",
        "f",
        "--ttl",
        "1h",
        "--idle-timeout",
        "10m",
        "--timing-json",
        "--",
        "sh",
        "-c",
        "exit 3",
    ]);
    let ran = ran.exits(3);
    let lease = world.claim_names().remove(0);
    let lines: Vec<_> = ran.err.lines().collect();
    let from = lines
        .iter()
        .position(|line| line.starts_with("keep-on-failure"))
        .unwrap();
    assert_eq!(
        lines[from..from + 3],
        [
            &format!(
                "keep-on-failure: kept lease={lease} slug=f expires=idle/ttl idle_timeout=10m0s ttl=1h0m0s"
            ),
            "rerun: crabbox run --provider docker-sandbox --id f -- sh -c 'exit 3'",
            "stop: crabbox stop --provider docker-sandbox f",
        ]
    );
    // Then the timing, then the cause.
    assert_eq!(timing(lines[from + 3])["exitCode"], 3);
    assert_eq!(lines[from + 4..], ["error: docker-sandbox run exited 3"]);
}

/// What failed may be the engine, and not the command.
#[test]
fn keep_on_failure_keeps_also_where_the_command_never_ran() {
    let world = World::of_our_engine();
    let script = "exit 125";
    let run = [
        "run",
        "--keep-on-failure",
        "--slug",
        "f",
        "--",
        "sh",
        "-c",
        script,
    ];
    world.behave("status", r#"{"by":"engine","code":125}"#);
    let ran = world.crabbox(&run).exits(1);
    assert!(
        ran.cause()
            .starts_with("docker-sandbox run failed: `sbx exec`"),
        "{}",
        ran.cause()
    );
    let lease = world.claim_names().remove(0);
    ran.says(&format!("keep-on-failure: kept lease={lease} slug=f "));
    assert_eq!((world.sandboxes().len(), world.count("rm")), (1, 0));
    world.crabbox(&["stop", "f"]).exits(0);

    let world = World::new();
    world.behave("fail-before-exec", "125\nno room");
    world
        .crabbox(&run)
        .exits(125)
        .says("keep-on-failure: kept lease=");
    assert_eq!((world.sandboxes().len(), world.count("rm")), (1, 0));
}

#[test]
fn the_timing_is_one_line_and_adds_up() {
    let world = World::new();
    let ran = world
        .crabbox(&["run", "--timing-json", "--label", "a <b> & c", "--", "true"])
        .exits(0);
    assert!(
        ran.last().contains("a <b> & c"),
        "not escaped: {}",
        ran.last()
    );
    let report = timing(ran.last());
    assert_eq!(report["label"], "a <b> & c");
    assert_eq!(report["provider"], "docker-sandbox");
    assert_eq!(report["exitCode"], 0);
    assert_eq!(report["runStatus"], "succeeded");
    assert_eq!(report["syncDelegated"], true);
    assert_eq!(
        report["syncPhases"][0]["reason"],
        "provider-delegated workspace"
    );
    assert!(report.get("errorKind").is_none());
    let phases = report["phases"].as_array().unwrap();
    let sum: u64 = phases
        .iter()
        .map(|phase| phase["ms"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, report["endToEndMs"].as_u64().unwrap(), "{report}");
    let release = phases.iter().find(|phase| phase["name"] == "release");
    let release = release.unwrap()["ms"].as_u64().unwrap();
    let total = report["totalMs"].as_u64().unwrap();
    assert!(total + release <= sum + 1, "{report}");
    assert_eq!(
        report["commandMs"],
        phases
            .iter()
            .find(|phase| phase["name"] == "command")
            .unwrap()["ms"]
    );
    let failed = world
        .crabbox(&["run", "--timing-json", "--", "false"])
        .exits(1);
    let lines: Vec<_> = failed.err.lines().rev().collect();
    assert_eq!(lines[0], "error: docker-sandbox run exited 1");
    assert_eq!(timing(lines[1])["errorKind"], "command-exit");
}

/// On failure: timing, hints, cause.
#[test]
fn the_last_lines_come_in_their_order() {
    let world = World::new();
    world.behave("fail-before-create", "1\nERROR: not logged in");
    let ran = world
        .crabbox(&["run", "--timing-json", "--", "true"])
        .exits(1);
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(timing(lines[0])["errorKind"], "provider-error");
    assert_eq!(lines[1], "hint: run `sbx login` and retry");
    assert!(lines[2].contains("not logged in"), "{}", ran.err);
    assert_eq!(lines.len(), 3, "{}", ran.err);
    world.is_clean();
}

#[test]
fn lease_output_says_how_to_clean_up() {
    let world = World::new();
    let file = world.repo().join("lease.json");
    world
        .crabbox(&[
            "run",
            "--slug",
            "a",
            "--keep",
            "--lease-output",
            "lease.json",
            "--",
            "false",
        ])
        .exits(1);
    let lease: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let id = world.claim_names().remove(0);
    assert_eq!(lease["provider"], "docker-sandbox");
    assert_eq!(lease["leaseId"], id);
    assert_eq!(lease["slug"], "a");
    assert_eq!(
        (&lease["reused"], &lease["kept"]),
        (&Value::Bool(false), &Value::Bool(true))
    );
    assert_eq!(
        lease["cleanupCommand"],
        "crabbox stop --provider docker-sandbox a"
    );
    assert!(lease["runId"].as_str().unwrap().starts_with("run_"));
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("\n  \"leaseId\""),
        "pretty"
    );
    world
        .crabbox(&[
            "run",
            "--id",
            "a",
            "--lease-output",
            "lease.json",
            "--",
            "true",
        ])
        .exits(0);
    let lease: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        (&lease["reused"], &lease["kept"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
    // The command that it names works.
    world
        .crabbox(&["stop", "--provider", "docker-sandbox", "a"])
        .exits(0);
    world.is_clean();
}

#[test]
fn lease_output_that_cannot_be_written_is_known_before_anything_is_made() {
    let world = World::new();
    for path in ["nowhere/lease.json", "."] {
        let ran = world
            .crabbox(&["run", "--lease-output", path, "--", "true"])
            .exits(2);
        assert!(ran.cause().contains("--lease-output"), "{}", ran.cause());
    }
    assert_eq!(world.calls().len(), 0);
    // No lease, no file.
    world.behave("fail-before-create", "1\nno");
    world
        .crabbox(&["run", "--lease-output", "lease.json", "--", "true"])
        .exits(1);
    assert!(!world.repo().join("lease.json").exists());
}

#[test]
fn history_and_logs_remember_the_runs() {
    let world = World::new();
    world
        .crabbox(&[
            "run",
            "--slug",
            "first",
            "--label",
            "one",
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2",
        ])
        .exits(0);
    world
        .crabbox(&["run", "--label", "two", "--", "sh", "-c", "exit 4"])
        .exits(4);
    let runs = world.crabbox(&["history", "--json"]).exits(0).json();
    let runs = runs["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    let (new, old) = (&runs[0], &runs[1]);
    assert_eq!(
        (&new["exitCode"], &new["runStatus"]),
        (&4.into(), &"failed".into())
    );
    assert_eq!(
        (&old["exitCode"], &old["runStatus"], &old["slug"]),
        (&0.into(), &"succeeded".into(), &"first".into())
    );
    assert_eq!(old["command"], "sh -c 'echo out; echo err >&2'");
    let phases = old["timing"]["phases"].as_array().unwrap();
    let sum: u64 = phases
        .iter()
        .map(|phase| phase["ms"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, old["timing"]["endToEndMs"].as_u64().unwrap());
    for name in [
        old["runId"].as_str().unwrap(),
        "first",
        &old["runId"].as_str().unwrap()[..10],
    ] {
        assert_eq!(world.crabbox(&["logs", name]).ok(), "out\n", "{name}");
        assert_eq!(
            world.crabbox(&["logs", "--stderr", name]).ok(),
            "err\n",
            "{name}"
        );
    }
    let chosen = world.crabbox(&["history", "--label", "one"]).ok();
    assert_eq!(chosen.lines().count(), 1);
    assert_eq!(
        world
            .crabbox(&["history", "--limit", "1"])
            .ok()
            .lines()
            .count(),
        1
    );
    world.crabbox(&["logs", "nope"]).exits(4);
    // A run that never came to be is remembered as well.
    world.behave("fail-before-create", "1\nno");
    world.crabbox(&["run", "--", "true"]).exits(1);
    let runs = world
        .crabbox(&["history", "--json", "--limit", "1"])
        .exits(0)
        .json();
    assert_eq!(runs["runs"][0]["errorKind"], "provider-error");
}

#[test]
fn a_lease_output_that_cannot_be_written_any_more_is_a_warning_if_the_run_failed() {
    let world = World::new();
    let dir = world.path("out");
    let run = |script: &str| {
        fs::create_dir(&dir).unwrap();
        let file = dir.join("lease.json");
        let gone = format!("rm -r {}; {script}", dir.display());
        world.crabbox(&[
            "run",
            "--lease-output",
            file.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            &gone,
        ])
    };
    let ran = run("exit 3")
        .exits(3)
        .says("warning: cannot write --lease-output");
    assert_eq!(ran.cause(), "docker-sandbox run exited 3");
    let ran = run("exit 0").exits(2);
    assert!(
        ran.cause().starts_with("cannot write --lease-output"),
        "{}",
        ran.cause()
    );
    world.is_clean();
}

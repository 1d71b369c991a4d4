//! What the original lacks besides its numbered defects.

use serde_json::Value;

use crate::world::{World, write};

#[test]
fn gap_warmup_without_keeping_is_refused_and_not_ignored() {
    let world = World::new();
    let ran = world.crabbox(&["warmup", "--keep=false"]).exits(2);
    assert_eq!(
        ran.cause(),
        "docker-sandbox warmup keeps its sandbox; --keep=false is not possible"
    );
    assert_eq!(world.calls().len(), 0);
    world.crabbox(&["warmup", "--keep", "--slug", "a"]).exits(0);
    world
        .crabbox(&["warmup", "--keep=true", "--slug", "b"])
        .exits(0);
}

#[test]
fn gap_a_requested_slug_that_is_taken_is_refused_before_anything_is_made() {
    let world = World::new();
    let lease = world.warm("mine");
    for args in [
        &["warmup", "--slug", "mine"][..],
        &["run", "--slug", "Mine!", "--", "true"],
    ] {
        let ran = world.crabbox(args).exits(2);
        assert_eq!(
            ran.cause(),
            format!("slug `mine` is taken by lease {lease}")
        );
    }
    assert_eq!(world.count("create"), 1);
    assert_eq!(world.claim_names(), [lease]);
}

#[test]
fn gap_list_and_status_say_when_a_lease_ends() {
    let world = World::new();
    let args = [
        "warmup",
        "--slug",
        "a",
        "--idle-timeout",
        "10m",
        "--ttl",
        "1h",
        "--json",
    ];
    let made = world.crabbox(&args).exits(0).json();
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["idleTimeoutSeconds"], 600);
    assert_eq!(list[0]["ttlSeconds"], 3600);
    let status = world.crabbox(&["status", "a", "--json"]).exits(0).json();
    assert_eq!(status["idleTimeout"], "10m0s");
    let claims = world.crabbox(&["claims", "list", "--json"]).ok();
    let claims: Value = serde_json::from_str(&claims).unwrap();
    // The words mean the same wherever they are said.
    for said in [&made, &list[0], &status, &claims["claims"][0]] {
        for key in ["expiresAt", "dueAt", "dueReason"] {
            assert_eq!(said[key], list[0][key], "{key} {said}");
        }
    }
    let time = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let since = |from: &str, to: &str| {
        let (from, to) = (time(&list[0][from]), time(&list[0][to]));
        to.duration_since(from).as_secs()
    };
    assert_eq!(since("createdAt", "expiresAt"), 3600);
    // The idle time comes first.
    assert_eq!(since("lastUsedAt", "dueAt"), 600);
    assert_eq!(list[0]["dueReason"], "idle");
    for args in [&["list"][..], &["status", "a"]] {
        let line = world.crabbox(args).ok();
        let (expires, due) = (text(&list[0]["expiresAt"]), text(&list[0]["dueAt"]));
        let end = format!(" expires={expires} due={due}\n");
        assert!(line.ends_with(&end), "{line}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn gap_one_damaged_claim_breaks_nothing_else() {
    let world = World::new();
    let lease = world.warm("whole");
    write(&world.claim_path("dsbx_damaged"), "{ not json");
    write(
        &world.claim_path("dsbx_other"),
        r#"{"leaseID":"dsbx_wrong","provider":"docker-sandbox"}"#,
    );
    let ran = world.crabbox(&["list", "--json"]).exits(0);
    assert_eq!(ran.json().as_array().unwrap().len(), 1);
    ran.says("warning: claim dsbx_damaged.json");
    assert_eq!(
        world
            .crabbox(&["run", "--id", "whole", "--", "echo", "x"])
            .ok(),
        "x\n"
    );
    world.crabbox(&["warmup", "--slug", "another"]).exits(0);
    world.crabbox(&["run", "--", "true"]).exits(0);
    let claims = world.crabbox(&["claims", "list", "--json"]).exits(2).json();
    assert_eq!(claims["claims"].as_array().unwrap().len(), 2);
    let codes: Vec<_> = claims["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| &problem["code"])
        .collect();
    assert_eq!(codes, ["invalid_json", "lease_id_mismatch"]);
    world.age(&lease);
    world.crabbox(&["cleanup"]).exits(0);
    world.crabbox(&["stop", "another"]).exits(0);
    assert_eq!(world.claim_names(), ["dsbx_damaged", "dsbx_other"]);
}

#[test]
fn gap_one_failure_does_not_end_a_cleanup() {
    let world = World::new();
    let (first, second) = (world.warm("one"), world.warm("two"));
    world.age(&first);
    world.age(&second);
    // Claims are swept in the order of their names: the first is the one whose sandbox does not go.
    let stuck = first.clone().min(second.clone());
    let other = first.max(second);
    world.behave("stuck", stuck.strip_prefix("dsbx_").unwrap());
    let ran = world.crabbox(&["cleanup"]).exits(1);
    assert!(ran.out.contains("removed=1 checked=2"), "{}", ran.out);
    let told = |text: &str, start: &str| text.lines().any(|line| line.starts_with(start));
    let skipped = format!("skip lease={stuck} ");
    assert!(told(&ran.err, &skipped), "{}", ran.err);
    let deleted = format!("delete lease={other} ");
    assert!(told(&ran.out, &deleted), "{}", ran.out);
    assert_eq!(ran.err.matches("busy").count(), 2, "{}", ran.err);
    assert_eq!(world.claim_names(), [stuck]);
    world.behave_well("stuck");
    let ran = world.crabbox(&["cleanup"]).exits(0);
    assert!(ran.out.contains("removed=1 checked=1"), "{}", ran.out);
    world.is_clean();
}

#[test]
fn gap_a_repository_cannot_have_any_variable_forwarded() {
    let world = World::new();
    world.repo_config("env:\n  allow: [CI, AWS_SECRET_ACCESS_KEY]\n");
    let env = [("AWS_SECRET_ACCESS_KEY", "hunter2")];
    let ran = world.with_env(&env, &["run", "--", "true"]).exits(2);
    ran.says("a repository may not set `env.allow`")
        .says("AWS_SECRET_ACCESS_KEY")
        .never_says("hunter2");
    // The same by the other name.
    world.repo_config("profile: p\nprofiles:\n  p:\n    envAllow: [AWS_SECRET_ACCESS_KEY]\n");
    world
        .with_env(&env, &["run", "--", "true"])
        .exits(2)
        .never_says("hunter2");
    assert_eq!(world.calls().len(), 0);
    // What the user allows, the repository may ask for.
    world.user_config("env:\n  allow: [AWS_*]\n");
    world.repo_config("env:\n  allow: [AWS_SECRET_ACCESS_KEY]\n");
    let ran = world.with_env(&env, &["run", "--", "printenv", "AWS_SECRET_ACCESS_KEY"]);
    assert_eq!(ran.ok(), "hunter2\n");
}

#[test]
fn gap_pond_is_recorded_and_chosen_by() {
    let world = World::new();
    world
        .crabbox(&["warmup", "--slug", "a", "--pond", "blue"])
        .exits(0);
    world.warm("b");
    let list = world
        .crabbox(&["list", "--json", "--pond", "blue"])
        .exits(0)
        .json();
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(list[0]["labels"]["pond"], "blue");
    assert_eq!(list[0]["slug"], "a");
    let status = |slug| world.crabbox(&["status", slug, "--json"]).exits(0).json();
    assert_eq!(status("a")["pond"], "blue");
    assert_eq!(status("b").get("pond"), None);
    let line = world.crabbox(&["status", "a"]).ok();
    assert!(line.contains(" pond=blue network="), "{line}");
    // A run's own sandbox is of the group as well.
    let args = [
        "run", "--keep", "--slug", "c", "--pond", "blue", "--", "true",
    ];
    world.crabbox(&args).exits(0);
    assert_eq!(status("c")["pond"], "blue");
    let list = world
        .crabbox(&["list", "--json", "--pond", "blue"])
        .exits(0);
    assert_eq!(list.json().as_array().unwrap().len(), 2);
}

#[test]
fn gap_tailscale_is_refused_by_warmup_too() {
    let world = World::new();
    for command in [
        &["warmup", "--tailscale"][..],
        &["run", "--tailscale", "--", "true"],
    ] {
        let ran = world.crabbox(command).exits(2);
        assert_eq!(
            ran.cause(),
            "provider=docker-sandbox is delegated-run only and does not support Tailscale options"
        );
    }
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn gap_a_vanished_sandbox_is_not_a_command_that_failed() {
    let world = World::new();
    world.warm("gone");
    let sandbox = world.sandboxes().remove(0);
    world.lose_sandbox(&sandbox);
    let ran = world
        .crabbox(&["run", "--id", "gone", "--", "true"])
        .exits(4);
    assert_eq!(
        ran.cause(),
        format!("docker-sandbox sandbox {sandbox:?} is not present in sbx inventory")
    );
    // A command's own 1 stays a 1.
    world.warm("there");
    world
        .crabbox(&["run", "--id", "there", "--", "false"])
        .exits(1);
    world
        .crabbox(&["run", "--id", "there", "--", "sh", "-c", "exit 125"])
        .exits(125);
}

#[test]
fn gap_the_timing_knows_its_run_and_its_end() {
    let world = World::new();
    let ran = world
        .crabbox(&[
            "run",
            "--keep",
            "--slug",
            "t",
            "--timing-json",
            "--",
            "true",
        ])
        .exits(0);
    let timing: Value = serde_json::from_str(ran.last()).unwrap();
    assert_eq!(timing["workdir"], world.repo().display().to_string());
    assert_eq!(
        timing["stopCommand"],
        "crabbox stop --provider docker-sandbox t"
    );
    assert!(timing["runId"].as_str().unwrap().starts_with("run_"));
    assert_ne!(timing["endToEndMs"], 0);
}

/// A release of the engine took `--env-file`, ignored it, and succeeded.
#[test]
fn gap_an_engine_that_ignores_variables_is_found_out() {
    let world = World::new();
    world.behave(
        "version",
        "Client Version:  v0.37.0\nServer Version:  v0.37.0",
    );
    world.warm("a");
    let asked = [
        "run",
        "--id",
        "a",
        "--allow-env",
        "WANTED",
        "--",
        "touch",
        "ran",
    ];
    let with = || world.with_env(&[("WANTED", "w")], &asked);

    world.behave("ignore-env-file", "yes");
    let ran = with().exits(1);
    assert!(ran.err.contains("ignores `exec --env-file`"), "{}", ran.err);
    assert!(ran.err.contains("hint: use another version"), "{}", ran.err);
    assert!(!world.repo().join("ran").exists());
    // What asks for no variables does not suffer.
    world.crabbox(&["run", "--id", "a", "--", "true"]).exits(0);

    // The version alone proves nothing: one of the series may be cured.
    world.behave("ignore-env-file", "");
    with().exits(0);
    assert!(world.repo().join("ran").exists());
    assert_eq!(world.env_dir(), [""; 0]);
}

/// Whatever else goes wrong on the way is not the engine's ignorance.
#[test]
fn gap_what_ends_the_look_at_variables_is_told_for_what_it_is() {
    let world = World::new();
    world.behave("version", "Client Version:  v0.37.0");
    world.warm("a");
    let run = || {
        let args = ["run", "--id", "a", "--allow-env", "WANTED", "--", "true"];
        let ran = world.with_env(&[("WANTED", "w")], &args);
        assert_eq!(world.env_dir(), [""; 0]);
        ran.never_says("ignores")
    };
    for (said, code) in [("printenv: not found", 127), ("daemon: out of memory", 125)] {
        world.behave("fail-before-exec", &format!("{code}\n{said}"));
        let last = format!(
            "cannot show that variables reach the command, so it was not run: `sbx exec` exited {code}: {said}"
        );
        assert_eq!(run().exits(1).cause(), last);
    }
    // The list that is to prove that the sandbox is there.
    world.behave("fail-before-exec", "1\nsomething");
    world.behave("fail-before-ls", "1\nnot logged in");
    run()
        .exits(1)
        .says("not logged in")
        .says("hint: run `sbx login`");
    world.behave_well("fail-before-ls");
    let name = world.sandboxes().remove(0);
    world.lose_sandbox(&name);
    let absent = format!("docker-sandbox sandbox {name:?} is not present in sbx inventory");
    for code in [1, 125] {
        world.behave("fail-before-exec", &format!("{code}\nno such sandbox"));
        assert_eq!(run().exits(4).cause(), absent);
    }
}

//! Small commands that users of the original have.

use std::fs;

use serde_json::{Value, json};

use crate::world::{World, write};

#[test]
fn inspect_shows_the_status_the_claim_and_the_runs() {
    let world = World::new();
    let lease = world.warm("a");
    world
        .crabbox(&["run", "--id", "a", "--", "echo", "x"])
        .exits(0);
    let shown = world.crabbox(&["inspect", "a", "--json"]).exits(0).json();
    let status = world.crabbox(&["status", "a", "--json"]).exits(0).json();
    for key in ["id", "slug", "provider", "state", "labels", "ready"] {
        assert_eq!(shown[key], status[key], "{key}");
    }
    assert_eq!(shown["claimState"], "ready");
    assert_eq!(
        (&shown["keep"], &shown["ttlSeconds"]),
        (&json!(true), &json!(5400))
    );
    assert_eq!(
        shown["stopCommand"],
        "crabbox stop --provider docker-sandbox a"
    );
    assert_eq!(shown["runs"][0]["command"], "echo x");
    let text = world.crabbox(&["inspect", "--id", &lease]).ok();
    for line in [
        "slug        a",
        "state       running (ready)",
        "succeeded exit=0 echo x",
    ] {
        assert!(text.contains(line), "{text}");
    }
    world.crabbox(&["inspect", "nothing"]).exits(4);
    world.crabbox(&["inspect"]).exits(2);
}

const JOBS: &str = "jobs:
  test:
    command: sh -c 'echo \"$1\"; exit \"$2\"' x 'a b' 0
    label: nightly
    ttl: 10m
  script: {shell: true, command: 'echo one && echo two'}
  bad: {command: sh -c 'exit 7'}
  kept: {command: 'true', stop: never}
";

#[test]
fn a_job_is_warmup_run_and_stop() {
    let world = World::new();
    world.repo_config(JOBS);
    let ran = world.crabbox(&["job", "run", "test"]).exits(0);
    assert_eq!(ran.out, "a b\n");
    let ran = ran.says("leased dsbx_");
    assert!(
        ran.last().starts_with("released lease=dsbx_"),
        "{}",
        ran.err
    );
    world.is_clean();
    let runs = world.crabbox(&["history", "--json"]).exits(0).json();
    assert_eq!(runs["runs"][0]["label"], "nightly");
    assert_eq!(world.crabbox(&["job", "run", "script"]).ok(), "one\ntwo\n");
    let ran = world.crabbox(&["job", "run", "bad"]).exits(7);
    assert_eq!(ran.cause(), "job `bad` exited 7");
    world.is_clean();
    // The lease that it is told to use stays.
    world.warm("mine");
    world
        .crabbox(&["job", "run", "test", "--id", "mine"])
        .exits(0);
    assert_eq!(world.claim_names().len(), 1);
    world
        .crabbox(&["job", "run", "test", "--id", "mine", "--stop", "success"])
        .exits(0);
    world.is_clean();
}

#[test]
fn a_job_stops_its_lease_as_it_is_told() {
    let world = World::new();
    world.repo_config(JOBS);
    let ran = world.crabbox(&["job", "run", "kept"]).exits(0);
    assert!(
        ran.last().starts_with("stop: crabbox stop dsbx_"),
        "{}",
        ran.err
    );
    assert_eq!(world.claim_names().len(), 1);
    world
        .crabbox(&["job", "run", "bad", "--stop", "success"])
        .exits(7);
    assert_eq!(world.claim_names().len(), 2);
    world
        .crabbox(&["job", "run", "bad", "--stop", "failure"])
        .exits(7);
    assert_eq!(world.claim_names().len(), 2);
    let ran = world
        .crabbox(&["job", "run", "bad", "--stop", "soon"])
        .exits(2);
    assert!(
        ran.cause().starts_with("invalid --stop `soon`"),
        "{}",
        ran.cause()
    );
}

#[test]
fn a_job_can_be_seen_before_it_is_run() {
    let world = World::new();
    world.repo_config(JOBS);
    let jobs = world.crabbox(&["job", "list", "--json"]).exits(0).json();
    let names: Vec<_> = jobs
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["name"])
        .collect();
    assert_eq!(names, ["bad", "kept", "script", "test"]);
    assert!(
        world
            .crabbox(&["job", "list"])
            .ok()
            .contains("sh -c 'exit 7'")
    );
    let plan = world.crabbox(&["job", "run", "test", "--dry-run"]).ok();
    assert_eq!(
        plan,
        "# job test\n\
         crabbox warmup --ttl 10m0s\n\
         crabbox run --label nightly --id <lease> -- sh -c 'echo \"$1\"; exit \"$2\"' x 'a b' 0\n\
         crabbox stop <lease>\n"
    );
    let args = ["job", "run", "script", "--dry-run", "--stop", "failure"];
    let plan = world.crabbox(&args).ok();
    assert!(
        plan.ends_with("# if it fails\ncrabbox stop <lease>\n"),
        "{plan}"
    );
    assert_eq!(world.calls().len(), 0);
    let ran = world.crabbox(&["job", "run", "none"]).exits(2);
    assert_eq!(ran.cause(), "unknown job `none`");
    ran.says("hint: jobs: bad, kept, script, test");
}

#[test]
fn a_job_cannot_say_what_its_file_may_not() {
    let world = World::new();
    world.repo_config(
        "jobs:\n  long: {command: 'true', ttl: 100h}\n  big: {command: 'true', class: big}\n",
    );
    let ran = world.crabbox(&["job", "run", "long"]).exits(2);
    assert!(
        ran.cause()
            .contains("a repository may not set `jobs.long.ttl`"),
        "{}",
        ran.cause()
    );
    ran.says("crabbox trust");
    let ran = world.crabbox(&["job", "run", "big"]).exits(2);
    assert_eq!(
        ran.cause(),
        "job `big` sets `class`, which no provider here supports"
    );
    // Nothing else is held up by it.
    world.crabbox(&["run", "--", "true"]).exits(0);
    world.crabbox(&["trust"]).exits(0);
    world.crabbox(&["job", "run", "long"]).exits(0);
}

#[test]
fn a_preset_is_a_command_with_values() {
    let world = World::new();
    world.repo_config(
        "presets:\n  hello: {command: 'echo {{who}} \"&&\" {{scenario}}', env: {GREETING: hi}}\n  script: {shell: true, command: 'echo $GREETING-{{n}}; echo two', env: {GREETING: hi}}\n  other: {command: x, artifactGlobs: [a]}\n",
    );
    let args = [
        "run",
        "--preset",
        "hello",
        "--preset-var",
        "who=a b",
        "--scenario",
        "; ls",
    ];
    let ran = world.crabbox(&args).exits(0);
    assert_eq!(ran.out, "a b && ; ls\n");
    ran.says("expanded preset hello: env=GREETING echo 'a b' '&&' '; ls'");
    let args = ["run", "--preset", "script", "--preset-var", "n=1,m=2"];
    assert_eq!(world.crabbox(&args).ok(), "hi-1\ntwo\n");
    for (args, cause) in [
        (
            &["--preset", "hello"][..],
            "preset `hello`: no value for `{{who}}`",
        ),
        (&["--preset", "none"], "unknown preset `none`"),
        (
            &["--preset", "other"],
            "preset `other` sets `artifactGlobs`, which no provider here supports",
        ),
        (
            &["--preset", "script", "--preset-var", "n"],
            "invalid --preset-var `n`: expected NAME=VALUE",
        ),
        (
            &["--preset-var", "n=1", "--", "true"],
            "--preset-var requires --preset",
        ),
        (
            &["--preset", "script", "--", "true"],
            "--preset has a command of its own; leave the command out",
        ),
    ] {
        let ran = world.crabbox(&[&["run"], args].concat()).exits(2);
        assert_eq!(ran.cause(), cause);
    }
    assert_eq!(world.count("create"), 2);
}

#[test]
fn timings_are_recorded_and_compared() {
    let world = World::new();
    let ran = world.crabbox(&["bench", "report"]).exits(4);
    assert!(
        ran.cause().starts_with("cannot read the timing record"),
        "{}",
        ran.cause()
    );
    for _ in 0..2 {
        let ran = world
            .crabbox(&["run", "--timing-record", "default", "--", "true"])
            .exits(0);
        ran.says("benchmark timing record appended path=")
            .says(" observations=1");
    }
    world
        .crabbox(&["run", "--timing-record", "default", "--", "false"])
        .exits(1);
    world
        .crabbox(&["run", "--timing-record", "off", "--", "true"])
        .exits(0);
    let ledger = world.state().join("timings.jsonl");
    let text = fs::read_to_string(&ledger).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(
        (&lines[0]["schemaVersion"], &lines[0]["source"]),
        (&json!(1), &json!("run"))
    );
    let subject = &lines[0]["benchmark"];
    assert_eq!(subject["commandDisplay"], "true");
    assert_eq!(subject["repoName"], "my-app");
    assert_eq!(subject["repoHead"].as_str().unwrap().len(), 40);
    assert_eq!(
        (&subject["providerFamily"], &subject["coldRun"]),
        (&json!("docker-sandbox"), &json!(true))
    );
    assert_eq!(lines[0]["timing"]["runStatus"], "succeeded");
    let report = world
        .crabbox(&["bench", "report", "--json"])
        .exits(0)
        .json();
    let groups = report["groups"].as_array().unwrap();
    let of = |command: &str| {
        groups
            .iter()
            .find(|group| group["command"] == command)
            .unwrap()
    };
    assert_eq!(
        (&of("true")["samples"], &of("true")["insufficientEvidence"]),
        (&json!(2), &json!(false))
    );
    assert_eq!(
        (&of("false")["failed"], &of("false")["insufficientEvidence"]),
        (&json!(1), &json!(true))
    );
    let text = world.crabbox(&["bench", "report"]).ok();
    assert!(
        text.contains("docker-sandbox samples=2 failed=0 total_median="),
        "{text}"
    );
    let args = ["run", "--timing-record", "own.jsonl", "--", "true"];
    world.crabbox(&args).exits(0);
    let report = world.crabbox(&["bench", "report", "--timing-record", "own.jsonl", "--json"]);
    assert_eq!(report.exits(0).json()["observations"], 1);
    let made = world.count("create");
    let ran = world
        .crabbox(&["run", "--timing-record", "no/such/dir", "--", "true"])
        .exits(2);
    assert!(
        ran.cause().starts_with("cannot write --timing-record"),
        "{}",
        ran.cause()
    );
    assert_eq!(world.count("create"), made);
}

#[test]
fn init_writes_a_job_that_runs_and_never_overwrites() {
    let world = World::new();
    let ran = world.crabbox(&["init", "--detect"]).exits(4);
    assert!(
        ran.cause().starts_with("found nothing to test"),
        "{}",
        ran.cause()
    );
    write(&world.repo().join("Makefile"), "test:\n\t@echo tested\n");
    let ran = world.crabbox(&["init", "--detect"]).exits(0);
    let path = world.repo().join(".crabbox.yaml");
    assert_eq!(ran.out, format!("wrote {}\n", path.display()));
    ran.says("detected Makefile: make test");
    let plan = world.crabbox(&["job", "run", "detected", "--dry-run"]).ok();
    assert!(
        plan.contains("crabbox run --shell --id <lease> -- 'make test'"),
        "{plan}"
    );
    let text = fs::read_to_string(&path).unwrap();
    for args in [&["init"][..], &["init", "--detect"]] {
        let ran = world.crabbox(args).exits(2);
        assert!(
            ran.cause().contains("never overwrites it"),
            "{}",
            ran.cause()
        );
    }
    world.crabbox(&["init", "--force"]).exits(2);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    // Nor what is only a link.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/nonexistent/x", &path).unwrap();
    world.crabbox(&["init"]).exits(2);
    fs::remove_file(&path).unwrap();
    world.crabbox(&["init"]).exits(0);
    world.crabbox(&["config", "show"]).exits(0);
}

#[test]
fn doctor_checks_all_providers_at_once() {
    let world = World::new();
    let told = world
        .crabbox(&["doctor", "--all", "--json"])
        .exits(0)
        .json();
    assert_eq!(
        (&told["ok"], &told["provider"]),
        (&json!(true), &json!("all"))
    );
    let checks = told["checks"].as_array().unwrap();
    let has = |name: &str, provider: &str, status: &str| {
        checks.iter().any(|check| {
            check["check"] == name && check["provider"] == provider && check["status"] == status
        })
    };
    assert!(has("sbx_version", "docker-sandbox", "ok"));
    // No server is configured.
    assert!(has("provider", "opensandbox", "skip"));
    world
        .crabbox(&["doctor", "--all", "--providers", "docker-sandbox"])
        .exits(0);
    let ran = world
        .crabbox(&["doctor", "--all", "--providers", "nope"])
        .exits(2);
    assert_eq!(ran.cause(), "unknown provider \"nope\"");
    world
        .crabbox(&["doctor", "--providers", "docker-sandbox"])
        .exits(2);
    world.behave("fail-before-ls", "1\nERROR: not logged in");
    world.crabbox(&["doctor", "--all"]).exits(1);
}

#[test]
fn a_provider_is_recommended_with_reasons() {
    let world = World::without_sbx();
    let told = world
        .crabbox(&["providers", "recommend", "mcp-sandbox", "--json"])
        .exits(0)
        .json();
    assert_eq!(told["useCase"], "mcp-sandbox");
    let best = &told["recommendations"][0];
    assert_eq!(best["provider"], "docker-sandbox");
    assert!(best["score"].as_u64().unwrap() > 0);
    assert_eq!(best["reasons"][0], "attaches MCP servers");
    let known = world.crabbox(&["providers", "recommend"]).ok();
    assert!(known.contains("isolated-execution"), "{known}");
    let ran = world
        .crabbox(&["providers", "recommend", "nonsense"])
        .exits(2);
    assert!(
        ran.cause().contains("allowed: agent-sandbox, "),
        "{}",
        ran.cause()
    );
}

#[test]
fn claims_of_sandboxes_that_are_gone_are_pruned() {
    let world = World::new();
    let (lost, there) = (world.warm("lost"), world.warm("there"));
    world.lose_sandbox(lost.strip_prefix("dsbx_").unwrap());
    let text = fs::read_to_string(world.claim_path(&there)).unwrap();
    let other = text
        .replace("docker-sandbox", "elsewhere")
        .replace(&there, "cbx_1")
        .replace("\"there\"", "\"other\"");
    write(&world.claim_path("cbx_1"), other);
    let preview = world.crabbox(&["claims", "prune", "--dry-run"]).ok();
    assert!(
        preview.contains(&format!("would delete lease={lost} ")),
        "{preview}"
    );
    assert_eq!(world.claim_names().len(), 3);
    let told = world
        .crabbox(&["claims", "prune", "--json"])
        .exits(0)
        .json();
    assert_eq!((&told["removed"], &told["checked"]), (&json!(1), &json!(3)));
    assert_eq!(world.claim_names(), ["cbx_1".to_owned(), there.clone()]);
    assert_eq!(world.count("rm"), 0);
    // An engine that does not answer proves nothing.
    world.lose_sandbox(there.strip_prefix("dsbx_").unwrap());
    world.behave("fail-before-ls", "1\nERROR: not logged in");
    world.crabbox(&["claims", "prune"]).exits(0);
    assert_eq!(world.claim_names().len(), 2);
}

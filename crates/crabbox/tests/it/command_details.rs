//! Small promises of the command line that no other test is about.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::world::{World, write};

#[test]
fn warmup_says_how_long_it_took() {
    let world = World::new();
    let ran = world.crabbox(&["warmup", "--slug", "a", "--timing-json"]);
    let ran = ran.exits(0);
    let lease = world.claim_names().remove(0);
    let (first, second) = ran.out.split_once('\n').unwrap();
    let leased = format!("leased {lease} slug=a provider=docker-sandbox sandbox=");
    assert!(first.starts_with(&leased), "{first}");
    assert!(second.starts_with("warmup complete total="), "{second}");
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    let mut timing: Value = serde_json::from_str(ran.last()).unwrap();
    let total = timing["totalMs"].take();
    assert!(total.as_u64().unwrap() > 0, "{total}");
    let phases = timing["phases"].take();
    assert_eq!(phases, json!([{"name": "lease", "ms": total}]));
    assert_eq!(
        timing,
        json!({
            "provider": "docker-sandbox", "leaseId": lease, "slug": "a", "syncMs": 0, "syncSkipped": true, "commandMs": 0,
            "totalMs": null, "endToEndMs": total, "exitCode": 0, "runStatus": "succeeded", "phases": null,
        })
    );
}

/// There is nothing to take over where all is new; scripts say it anyway.
#[test]
fn warmup_takes_the_originals_reclaim() {
    let world = World::new();
    world
        .crabbox(&["warmup", "--reclaim", "--slug", "a"])
        .exits(0);
    assert_eq!(world.claim_names().len(), 1);
}

/// Of the files alone: no engine is asked, and nothing that is wrong with the settings is in the way.
#[test]
fn claims_are_listed_without_an_engine_and_without_settings() {
    let world = World::new();
    let lease = world.warm("a");
    world.forget_calls();
    world.user_config("bogus: [");
    world.repo_config("dockerSandbox:\n  cliPath: ./theirs\n");
    let env = [("CRABBOX_PROVIDER", "nope"), ("CRABBOX_TTL", "soon")];
    let before = locks(&world);
    let ran = world.with_env(&env, &["claims", "list", "--json"]).exits(0);
    assert_eq!(ran.json()["claims"][0]["leaseId"], lease);
    assert_eq!(ran.err, "");
    fs::remove_file(world.path("bin/sbx")).unwrap();
    let out = world.with_env(&env, &["claims", "list"]).ok();
    assert!(out.contains(&lease), "{out}");
    assert_eq!(world.log().len(), 0);
    assert_eq!(locks(&world), before);
}

fn locks(world: &World) -> usize {
    fs::read_dir(world.state().join("claim-locks"))
        .unwrap()
        .count()
}

/// They would ask a broker, and mean nothing without one.
#[test]
fn list_takes_the_originals_flags() {
    let world = World::new();
    world.warm("a");
    let list = world.crabbox(&["list", "--json"]).ok();
    for flags in [&["--all"][..], &["--refresh"], &["--all", "--refresh"]] {
        let args = [&["list", "--json"], flags].concat();
        assert_eq!(world.crabbox(&args).ok(), list, "{flags:?}");
    }
}

#[test]
fn the_engines_states_are_ready_terminal_or_neither() {
    let world = World::new();
    world.warm("a");
    let name = world.sandboxes().remove(0);
    let state = |state: &str| {
        let path = world.path("engine/sandboxes").join(format!("{name}.json"));
        let mut one: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        one["status"] = state.into();
        write(&path, one.to_string());
    };
    for ready in [
        "running", "ready", "started", "active", "Running", "stopped",
    ] {
        state(ready);
        let status = world.crabbox(&["status", "a", "--wait", "--json"]);
        let status = status.exits(0).json();
        let told = (&status["state"], &status["ready"]);
        assert_eq!(told, (&ready.to_lowercase().into(), &true.into()));
    }
    for over in [
        "expired",
        "failed",
        "released",
        "stopped_with_code",
        "terminated",
    ] {
        state(over);
        let ran = world.crabbox(&["status", "a", "--wait"]).exits(5);
        let said = format!("lease a reached terminal state {over} before ready");
        assert_eq!(ran.cause(), said);
        // Without waiting it is only told.
        let status = world.crabbox(&["status", "a", "--json"]).exits(0).json();
        assert_eq!(
            (&status["state"], &status["ready"]),
            (&over.into(), &false.into())
        );
    }
    for neither in ["starting", "", "somewhere else"] {
        state(neither);
        let args = ["status", "a", "--wait", "--wait-timeout", "1ms"];
        let ran = world.crabbox(&args).exits(5);
        assert!(
            ran.cause().starts_with("timed out waiting for"),
            "{}",
            ran.cause()
        );
    }
}

#[test]
fn what_is_wrong_with_claims_is_told_by_code() {
    let world = World::new();
    let lease = world.warm("whole");
    let times = r#""claimedAt":"2026-01-01T00:00:00Z","lastUsedAt":"2026-01-01T00:00:00Z""#;
    let claim =
        |id: &str, more: &str| format!(r#"{{"leaseID":"{id}","provider":"p",{times}{more}}}"#);
    let put = |name: &str, text: &str| write(&world.claim_path(name), text);
    put("con:1", &claim("con:1", ""));
    put("x_large", &" ".repeat((1 << 20) + 1));
    put("x_nameless", &claim("", ""));
    put("x_other", &claim("x_another", ""));
    put("x_odd", &claim("x_odd", r#","state":"odd""#));
    put("x_text", "text");
    symlink("/dev/null", world.claim_path("x_link")).unwrap();
    let ran = world.crabbox(&["claims", "list", "--json"]).exits(2);
    let told = ran.json();
    assert_eq!(
        told["claims"][0]["leaseId"], lease,
        "what is whole is shown"
    );
    let problems = told["problems"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut problems: Vec<_> = problems
        .map(|problem| (text(&problem["file"]), text(&problem["code"])))
        .collect();
    let (hidden, code) = problems.remove(0);
    assert_eq!(code, "invalid_filename");
    let hash = hidden.strip_prefix("sha256:").unwrap();
    assert!(
        hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{hidden}"
    );
    let expected = [
        ("x_large.json", "claim_too_large"),
        ("x_link.json", "non_regular_file"),
        ("x_nameless.json", "empty_lease_id"),
        ("x_odd.json", "invalid_claim"),
        ("x_other.json", "lease_id_mismatch"),
        ("x_text.json", "invalid_json"),
    ];
    assert_eq!(
        problems,
        expected.map(|(file, code)| (file.to_owned(), code.to_owned()))
    );
    let human = world.crabbox(&["claims", "list"]).exits(2).out;
    assert!(
        human.contains("problem=\"claim_too_large\"\nfile=\"x_large.json\"\n"),
        "{human}"
    );
}

#[test]
fn problems_beyond_the_limit_are_counted() {
    let world = World::new();
    world.warm("whole");
    for number in 0..150 {
        write(&world.claim_path(&format!("x_{number:03}")), "{");
    }
    let told = world.crabbox(&["claims", "list", "--json"]).exits(2).json();
    let problems = told["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 100);
    let last = problems.last().unwrap();
    assert_eq!(last["code"], "problems_truncated");
    assert_eq!(last["message"], "51 more problems not shown");
    assert_eq!(told["claims"].as_array().unwrap().len(), 1);
}

#[test]
fn providers_are_chosen_by_every_filter() {
    let world = World::without_sbx();
    let chosen = |flags: &[&str]| {
        let list = world.crabbox(&[&["providers", "--json"], flags].concat());
        let list = list.exits(0).json();
        list.as_array()
            .unwrap()
            .iter()
            .any(|one| one["provider"] == "docker-sandbox")
    };
    for (filter, value) in [
        ("--kind", "delegated-run"),
        ("--category", "local-sandbox"),
        ("--target", "linux"),
        ("--feature", "mcp-attachments"),
        ("--runtime", "local-runtime,delegated-command"),
        ("--evidence", "session"),
        ("--lifecycle", "cleanup"),
    ] {
        assert!(chosen(&[filter, value]), "{filter}");
        let ran = world.crabbox(&["providers", filter, "nonsense"]).exits(2);
        let said = format!("unknown {filter} `nonsense`; allowed: ");
        assert!(ran.cause().starts_with(&said), "{}", ran.cause());
        let named = value.split(',').all(|value| ran.cause().contains(value));
        assert!(named, "{}", ran.cause());
    }
    assert!(chosen(&[
        "--runtime",
        "local-runtime",
        "--lifecycle",
        "cleanup"
    ]));
    // No provider of this build has any of these.
    for filter in ["--reachability", "--workspace"] {
        let ran = world.crabbox(&["providers", filter, "public"]).exits(2);
        assert!(
            ran.cause()
                .starts_with(&format!("unknown {filter} `public`")),
            "{}",
            ran.cause()
        );
    }
    let filters = world
        .crabbox(&["providers", "filters", "--json"])
        .exits(0)
        .json();
    let filters = filters.as_object().unwrap();
    assert_eq!(filters.len(), 9);
    assert_eq!(
        filters["category"],
        json!(["delegated-sandbox", "local-sandbox"])
    );
    assert_eq!(filters["workspace"], json!([]));
}

/// From what is compiled in: neither a file nor a variable changes a default here.
#[test]
fn describe_has_the_flags_of_all_providers() {
    let world = World::without_sbx();
    let env = [("CRABBOX_TTL", "5m"), ("CRABBOX_PROVIDER", "nonsense")];
    let args = ["providers", "describe", "docker-sandbox", "--json"];
    let mut told = world.with_env(&env, &args).exits(0).json();
    let shared = told["sharedFlags"].take();
    assert_eq!(told["providerFlags"].take().as_array().unwrap().len(), 11);
    assert_eq!(
        told,
        json!({
            "schemaVersion": 2,
            "provider": {
                "requested": "docker-sandbox", "canonical": "docker-sandbox", "inputAlias": false, "aliases": [],
                "deprecated": false, "replacement": "",
            },
            "runnable": true, "kind": "delegated-run", "family": "docker-sandbox", "targets": ["linux"],
            "capabilities": {
                "features": ["cleanup", "mcp-attachments", "run-session"],
                "runtime": ["delegated-command", "local-runtime", "local-sandbox"],
                "reachability": [], "workspace": [], "evidence": ["session"],
                "lifecycle": ["cleanup", "run-session"], "coordinator": "never",
            },
            "classCatalog": {"disposition": "unmapped", "profiles": []},
            "sharedFlags": null, "providerFlags": null,
        })
    );
    let flags = shared.as_array().unwrap();
    let flag = |name: &str| flags.iter().find(|flag| flag["name"] == name).unwrap();
    assert_eq!(
        flag("ttl"),
        &json!({
            "name": "ttl", "type": "duration", "valueShape": "scalar", "default": "1h30m0s", "repeatable": false,
            "usage": flag("ttl")["usage"], "deprecated": false, "replacement": "", "routing": false, "creationOnly": true,
        })
    );
    assert_eq!(flag("provider")["routing"], true);
    assert_eq!(flag("force-sync-large")["type"], "bool");
    let mut names: Vec<_> = flags
        .iter()
        .map(|flag| flag["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "cache",
            "force-sync-large",
            "idle-timeout",
            "profile",
            "provider",
            "target",
            "ttl"
        ]
    );
    // Each of them is a flag of the command that makes sandboxes, if its provider can do anything with it.
    let help = world.crabbox(&["warmup", "--help"]).ok();
    for name in names.into_iter().filter(|name| *name != "force-sync-large") {
        assert!(help.contains(&format!("--{name}")), "{name}: {help}");
    }
}

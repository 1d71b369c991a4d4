//! What readers of the original's output and command line rely on.

use serde_json::{Value, json};

use crate::world::{World, write};

/// One value per line, for programs that read line by line.
#[test]
fn json_is_one_line_where_stdout_is_not_a_terminal() {
    let world = World::new();
    world.warm("a");
    for args in [
        &["list", "--json"][..],
        &["status", "a", "--json"],
        &["config", "show", "--json"],
        &["doctor", "--json"],
        &["claims", "list", "--json"],
        &["providers", "--json"],
        &["history", "--json"],
    ] {
        let ran = world.crabbox(args).exits(0);
        assert_eq!(ran.out.lines().count(), 1, "{args:?} {}", ran.out);
        ran.json();
    }
}

#[test]
fn the_leased_line_names_the_sandbox() {
    let world = World::new();
    let ran = world.crabbox(&["run", "--", "true"]).exits(0);
    let line = ran
        .err
        .lines()
        .find(|line| line.starts_with("leased dsbx_"));
    let words: Vec<_> = line.unwrap().split(' ').collect();
    let name = words.iter().find_map(|word| word.strip_prefix("name="));
    assert_eq!(words[1].strip_prefix("dsbx_"), name);
    let out = world.crabbox(&["warmup", "--slug", "a"]).ok();
    assert!(
        out.lines()
            .next()
            .unwrap()
            .contains(" name=crabbox-my-app-"),
        "{out}"
    );
}

#[test]
fn status_has_the_labels_of_the_list() {
    let world = World::new();
    let lease = world.warm("a");
    let status = world.crabbox(&["status", "a", "--json"]).exits(0).json();
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(status["labels"], list[0]["labels"]);
    for (key, value) in [
        ("lease", lease.as_str()),
        ("provider", "docker-sandbox"),
        ("slug", "a"),
        ("state", "running"),
    ] {
        assert_eq!(status["labels"][key], value, "{status}");
    }
}

#[test]
fn the_last_of_a_repeated_flag_wins_and_lists_grow() {
    let world = World::new();
    let args = [
        "run",
        "--slug",
        "a",
        "--ttl",
        "1h",
        "--slug",
        "b",
        "--ttl",
        "2h",
        "--keep=false",
        "--keep",
        "--label",
        "x",
        "--label",
        "y",
        "--timing-json",
        "--timing-json",
        "--docker-sandbox-cpus",
        "2",
        "--docker-sandbox-cpus",
        "3",
        "--docker-sandbox-mcp",
        "one",
        "--docker-sandbox-mcp",
        "two",
        "--allow-env",
        "FIRST",
        "--allow-env",
        "SECOND",
        "--",
        "true",
    ];
    let ran = world
        .with_env(&[("FIRST", "1"), ("SECOND", "2")], &args)
        .exits(0);
    ran.says("vars=FIRST=set,SECOND=set");
    let lease = world.claim_names().remove(0);
    let claim = world.claim(&lease);
    assert_eq!(claim["slug"], "b");
    assert_eq!(claim["ttlSeconds"], 7200);
    let create = world.call("create").line();
    assert!(create.contains("--cpus 3 --mcp one --mcp two"), "{create}");
    let history = world.crabbox(&["history", "--json"]).exits(0).json();
    assert_eq!(history["runs"][0]["label"], "y");
    let ran = world.crabbox(&["status", "--id", "a", "--id", "b", "--json", "--json"]);
    assert_eq!(ran.exits(0).json()["slug"], "b");
}

#[test]
fn ids_are_taken_without_a_flag() {
    let world = World::new();
    let lease = world.warm("a");
    let name = lease.strip_prefix("dsbx_").unwrap();
    world.crabbox(&["ports", "a"]).exits(0);
    world.crabbox(&["ports", "--json", &lease]).exits(0);
    world.crabbox(&["cp", "a", "x", "SANDBOX:/tmp/x"]).exits(0);
    assert_eq!(world.call("cp").line(), format!("cp x {name}:/tmp/x"));
    world.crabbox(&["status", "a"]).exits(0);
    for wrong in [
        &["ports"][..],
        &["ports", "--id", "a", "a"],
        &["cp", "x", "SANDBOX:/tmp/x"],
        &["cp", "--id", "a", "a", "x", "SANDBOX:/tmp/x"],
    ] {
        world.crabbox(wrong).exits(2);
    }
    world.crabbox(&["stop", "a"]).exits(0);
}

#[test]
fn a_wait_tells_what_it_ended_in_and_the_id_that_was_given() {
    let world = World::new();
    let lease = world.warm("a");
    let path = world
        .path("engine/sandboxes")
        .join(format!("{}.json", &lease[5..]));
    let in_state = |state: &str| {
        write(
            &path,
            json!({"name": &lease[5..], "status": state}).to_string(),
        );
    };
    in_state("failed");
    let ran = world.crabbox(&["status", "a", "--wait", "--json"]).exits(5);
    assert_eq!(ran.json()["state"], "failed");
    let error: Value = serde_json::from_str(ran.last()).unwrap();
    let message = "lease a reached terminal state failed before ready";
    assert_eq!(error["error"]["message"], message);
    let ran = world.crabbox(&["status", "--wait", &lease]).exits(5);
    assert!(ran.out.contains(" state=failed "), "{}", ran.out);
    assert_eq!(
        ran.cause(),
        format!("lease {lease} reached terminal state failed before ready")
    );
    in_state("starting");
    let args = ["status", "a", "--wait", "--wait-timeout", "1ms"];
    let ran = world.crabbox(&args).exits(5);
    assert!(ran.out.contains(" state=starting "), "{}", ran.out);
    assert_eq!(ran.cause(), "timed out waiting for a to become ready");
}

#[test]
fn defaults_of_flags_have_the_type_of_the_flag() {
    let world = World::without_sbx();
    let args = ["providers", "describe", "docker-sandbox", "--json"];
    let described = world.crabbox(&args).exits(0).json();
    let flags = |kind: &str| described[kind].as_array().unwrap().clone();
    let all: Vec<_> = [flags("sharedFlags"), flags("providerFlags")].concat();
    let default = |name: &str| {
        let flag = all.iter().find(|flag| flag["name"] == name).unwrap();
        flag["default"].clone()
    };
    assert_eq!(default("ttl"), "1h30m0s");
    assert_eq!(default("force-sync-large"), false);
    assert_eq!(default("docker-sandbox-cpus"), 0);
    assert_eq!(default("docker-sandbox-mcp"), json!([]));
    assert_eq!(default("docker-sandbox-cli"), "sbx");
}

#[test]
fn checks_say_in_details_what_their_messages_say() {
    let world = World::new();
    world.user_config("provider: docker-sandbox\n");
    let checks = world.crabbox(&["doctor", "--json"]).exits(0).json();
    let details = |name: &str| {
        let checks = checks["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["check"] == name).unwrap();
        check["details"].clone()
    };
    let config = world
        .path("config/crabbox/config.yaml")
        .display()
        .to_string();
    assert_eq!(details("config"), json!({"path": config, "mode": "0600"}));
    assert_eq!(
        details("provider-selection"),
        json!({"provider": "docker-sandbox", "source": "user_config", "selected": "true"})
    );
    let git = details("git");
    assert_eq!(git["tool"], "git");
    assert!(git["path"].as_str().unwrap().ends_with("/git"), "{git}");
    assert_eq!(details("ssh-key")["mode"], "per-lease");
    let engine = details("sbx_engine");
    assert_eq!(engine["tool"], "sbx");
    assert_eq!(engine["path"], world.path("bin/sbx").display().to_string());
    assert_eq!(engine["source"], engine["found"]);
    assert_eq!(
        details("sbx_version")["version"],
        "Client Version:  v0.31.3"
    );
}

/// The original's own test of the boundary: no stdin, and the values in the file alone.
#[test]
fn another_engine_gets_a_stdin_only_if_it_is_asked_for() {
    let world = World::new();
    let execs = |world: &World| {
        let calls = world
            .calls()
            .into_iter()
            .filter(|call| call.verb() == "exec");
        calls.map(|call| call.argv[1].clone()).collect::<Vec<_>>()
    };
    let ran = world.with_stdin(b"typed", &["run", "--", "cat"]).exits(0);
    assert_eq!(ran.out, "");
    assert_eq!(execs(&world), ["--workdir"]);
    world.forget_calls();
    let ran = world
        .with_stdin(b"typed", &["run", "-i", "--", "cat"])
        .exits(0);
    assert_eq!(ran.out, "typed");
    assert_eq!(execs(&world), ["-i"]);
    let ours = World::of_our_engine();
    let ran = ours.with_stdin(b"typed", &["run", "--", "cat"]).exits(0);
    assert_eq!(ran.out, "typed");
}

#[test]
fn generated_slugs_end_in_the_hash_of_the_lease() {
    let world = World::new();
    world.crabbox(&["warmup"]).exits(0);
    let lease = world.claim_names().remove(0);
    let slug = world.claim(&lease)["slug"].as_str().unwrap().to_owned();
    let (words, hash) = slug.rsplit_once('-').unwrap();
    assert!(
        hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "{slug}"
    );
    // The two words are enough, as they were before.
    let status = world.crabbox(&["status", words, "--json"]).exits(0).json();
    assert_eq!(status["id"], lease);
    world.crabbox(&["stop", words]).exits(0);
    world.is_clean();
}

#[test]
fn a_requested_slug_is_found_and_stopped_by_its_beginning_if_that_is_unique() {
    let world = World::new();
    let lease = world.warm("job-2");
    let status = world.crabbox(&["status", "job", "--json"]).exits(0).json();
    assert_eq!(status["id"], lease);
    let other = world.warm("job-3");
    for args in [&["run", "--id", "job", "--", "true"][..], &["stop", "job"]] {
        let ran = world.crabbox(args).exits(2);
        assert!(ran.cause().contains("ambiguous"), "{}", ran.cause());
    }
    assert_eq!(world.count("exec"), 0);
    assert_eq!(world.claim_names().len(), 2);
    world.crabbox(&["stop", "job-2"]).exits(0);
    assert_eq!(world.claim_names(), std::slice::from_ref(&other));
    // The beginning of a lease id is not one of a slug.
    let start = &other[.."dsbx_crabbox".len()];
    world.crabbox(&["stop", start]).exits(4);
    world.crabbox(&["stop", "jo"]).exits(0);
    world.is_clean();
}

#[test]
fn an_empty_list_of_variables_clears_the_inherited_one() {
    let env = [("CI", "1"), ("MINE", "2")];
    let forwarded = |world: &World| {
        world.with_env(&env, &["run", "--", "true"]).exits(0);
        let file = world.env_files().pop().unwrap();
        let content = file["content"].as_str().unwrap().to_owned();
        content.contains("CI=") || content.contains("MINE=")
    };
    let world = World::new();
    world.user_config("env:\n  allow: [CI, MINE]\n");
    assert!(forwarded(&world));
    world.repo_config("env:\n  allow: []\n");
    assert!(!forwarded(&world));
    let world = World::new();
    world.user_config("env:\n  allow: []\n");
    assert!(!forwarded(&world));
}

#[test]
fn config_show_has_both_lifetimes() {
    let world = World::without_sbx();
    world.user_config("ttl: 2h\nidleTimeout: 10m\n");
    let shown = world.crabbox(&["config", "show", "--json"]).exits(0).json();
    assert_eq!(
        (&shown["ttl"], &shown["idleTimeout"]),
        (&json!("2h0m0s"), &json!("10m0s"))
    );
    let text = world.crabbox(&["config", "show"]).ok();
    assert!(text.contains(" ttl=2h0m0s idle_timeout=10m0s"), "{text}");
}

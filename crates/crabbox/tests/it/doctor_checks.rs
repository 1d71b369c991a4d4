//! The checks of `crabbox doctor` one by one: what became of each, of which class it is, and what to do.

use std::fs;

use serde_json::{Value, json};

use crate::world::{Ran, World};

fn check_of(ran: &Ran, name: &str) -> Value {
    let json = ran.json();
    let mut checks = json["checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["check"] == name);
    check.unwrap().clone()
}

fn class_of(ran: &Ran, name: &str) -> (Value, Value) {
    let details = check_of(ran, name)["details"].take();
    (details["class"].clone(), details["hint"].clone())
}

/// What became of each check of the engine.
fn health_of(ran: &Ran) -> Vec<(String, String)> {
    let json = ran.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = json["checks"].as_array().unwrap().iter();
    checks
        .map(|check| (text(&check["check"]), text(&check["status"])))
        .filter(|(name, _)| name.starts_with("sbx_"))
        .collect()
}

fn owned((name, health): (&str, &str)) -> (String, String) {
    (name.to_owned(), health.to_owned())
}

/// What is wrong with an engine, and what to do, in words for programs; the advice for people is another one.
#[test]
fn problems_have_a_class_and_a_hint() {
    let world = World::new();
    for (said, class, hint) in [
        ("it timed out", "timeout", "retry_or_check_provider_status"),
        ("not logged in", "auth", "check_provider_auth_and_config"),
        ("no such file", "tool", "install_provider_cli"),
        (
            "connection refused",
            "network",
            "check_network_and_provider_endpoint",
        ),
        (
            "region is not configured",
            "config",
            "check_crabbox_provider_config",
        ),
        (
            "quota exceeded",
            "provider",
            "check_provider_auth_and_config",
        ),
    ] {
        for (verb, check, code) in [
            ("version", "sbx_version", 0),
            ("ls", "sbx_inventory", 1),
            ("diagnose", "sbx_diagnose", 0),
        ] {
            let key = format!("fail-before-{verb}");
            world.behave(&key, &format!("1\n{said}"));
            let ran = world.crabbox(&["doctor", "--json"]).exits(code);
            let told = class_of(&ran, check);
            assert_eq!(told, (class.into(), hint.into()), "{verb}: {said}");
            world.behave_well(&key);
        }
    }
    let ran = world.crabbox(&["doctor", "--json"]).exits(0);
    assert_eq!(class_of(&ran, "sbx_inventory"), (Value::Null, Value::Null));
    let without = World::without_sbx();
    let ran = Ran::from(without.alone(&["doctor", "--json"]).output().unwrap()).exits(1);
    for check in ["sbx_engine", "sbx_version"] {
        let told = class_of(&ran, check);
        assert_eq!(told, ("tool".into(), "install_provider_cli".into()));
    }
}

#[test]
fn bad_settings_are_a_check_and_hide_no_other() {
    let world = World::new();
    let ran = world
        .crabbox(&["doctor", "--docker-sandbox-agent", "claude"])
        .exits(1);
    let line = "failed  provider           provider=docker-sandbox class=config \
        hint=check_crabbox_provider_config docker-sandbox agent \"claude\" is not supported yet; \
        v1 supports shell only\n";
    assert!(ran.out.contains(line), "{}", ran.out);
    assert!(ran.out.contains("ok      git"), "{}", ran.out);
    assert!(ran.out.contains("ok      sbx_inventory"), "{}", ran.out);
    let args = ["doctor", "--docker-sandbox-agent", "claude", "--json"];
    let ran = world.crabbox(&args).exits(1);
    assert_eq!(
        class_of(&ran, "provider"),
        ("config".into(), "check_crabbox_provider_config".into())
    );
    // So is what is wrong with a file or a variable.
    let env = [("CRABBOX_TTL", "soon")];
    let ran = world.with_env(&env, &["doctor", "--json"]).exits(1);
    assert_eq!(
        class_of(&ran, "settings"),
        ("config".into(), "check_crabbox_provider_config".into())
    );
}

#[test]
fn a_version_that_is_not_told_hides_no_other_check() {
    let world = World::new();
    world.behave("fail-before-version", "1\nbroken");
    let ran = world.crabbox(&["doctor"]).exits(0);
    let skipped = "skip    sbx_compatibility  not checked: the version is not known";
    assert!(ran.out.contains(skipped), "{}", ran.out);
    let json = world.crabbox(&["doctor", "--json"]).exits(0);
    assert_eq!(
        health_of(&json),
        [
            ("sbx_engine", "ok"),
            ("sbx_version", "warn"),
            ("sbx_compatibility", "skip"),
            ("sbx_inventory", "ok"),
            ("sbx_diagnose", "ok"),
        ]
        .map(owned)
    );
}

#[test]
fn a_missing_program_is_missing_and_the_rest_is_shown() {
    let world = World::without_sbx();
    let ran = Ran::from(world.alone(&["doctor"]).output().unwrap()).exits(1);
    assert!(ran.out.contains("missing sbx_version"), "{}", ran.out);
    assert!(ran.out.contains("ok      git"), "{}", ran.out);
    for line in [
        "missing sbx_engine         sbx not found: neither in PATH nor beside crabbox",
        "missing sbx_version        no sbx found",
        "skip    sbx_compatibility  not checked: no sbx found",
        "skip    sbx_inventory      not checked: no sbx found",
        "skip    sbx_diagnose       not checked: no sbx found",
    ] {
        assert!(ran.out.contains(line), "{line}: {}", ran.out);
    }
    let json = Ran::from(world.alone(&["doctor", "--json"]).output().unwrap());
    assert_eq!(
        health_of(&json),
        [
            ("sbx_engine", "missing"),
            ("sbx_version", "missing"),
            ("sbx_compatibility", "skip"),
            ("sbx_inventory", "skip"),
            ("sbx_diagnose", "skip")
        ]
        .map(owned)
    );
    // An engine beside our own program is found without being named.
    let bundled = World::new();
    let mut command = bundled.alone(&["doctor"]);
    fs::rename(bundled.path("bin/sbx"), bundled.path("alone/sbx")).unwrap();
    let ran = Ran::from(command.output().unwrap());
    assert!(
        ran.out.contains(&format!(
            "program={} found=bundled",
            bundled.path("alone/sbx").display()
        )),
        "{}",
        ran.out
    );
}

#[test]
fn the_inventory_counts_whatever_the_engine_has() {
    let world = World::new();
    world.warm("a");
    world.foreign_sandbox("theirs");
    let ran = world.crabbox(&["doctor", "--json"]).exits(0);
    let check = check_of(&ran, "sbx_inventory");
    assert_eq!(check["message"], "leases=2");
    assert_eq!(
        check["details"],
        json!({"leases": "2", "mutation": "false"})
    );
}

#[test]
fn the_version_is_the_first_line_that_says_anything() {
    let world = World::new();
    let version = "\n\n  Client Version: v0.31.3\nServer Version: v0.31.3";
    world.behave("version", version);
    let ran = world.crabbox(&["doctor", "--json"]).exits(0);
    let details = check_of(&ran, "sbx_version")["details"].take();
    assert_eq!(details["version"], "Client Version: v0.31.3");
}

/// Its own name is no advice.
#[test]
fn doctor_does_not_send_people_to_doctor() {
    let world = World::new();
    // A port without a listener.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", taken.local_addr().unwrap());
    drop(taken);
    let with_server = |args: &[&str]| {
        let mut command = world.command(args);
        let command = command.env("CRABBOX_PROVIDER", "opensandbox");
        let command = command.env("CRABBOX_OPENSANDBOX_API_URL", &url);
        Ran::from(
            command
                .env("CRABBOX_OPENSANDBOX_API_KEY", "k")
                .output()
                .unwrap(),
        )
    };
    let ran = with_server(&["doctor"]).exits(1);
    assert!(
        ran.out.contains("cannot connect to 127.0.0.1:"),
        "{}",
        ran.out
    );
    ran.never_says("hint: crabbox doctor");
    with_server(&["run", "--", "true"])
        .exits(1)
        .says("hint: crabbox doctor --provider opensandbox");
}

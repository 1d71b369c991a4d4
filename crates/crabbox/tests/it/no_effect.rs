//! Settings that are accepted and do nothing with the provider that was chosen.

use crate::world::World;

#[test]
fn a_setting_without_effect_gets_one_warning_and_is_listed() {
    let world = World::new();
    world.user_config("sync:\n  delete: false\n  warnFiles: 7\n");
    let env = [
        ("CRABBOX_SYNC_TIMEOUT", "1m"),
        ("CRABBOX_SYNC_CHECKSUM", "1"),
    ];
    let ran = world.with_env(&env, &["run", "--", "true"]).exits(0);
    let warnings: Vec<_> = ran
        .err
        .lines()
        .filter(|line| line.starts_with("warning: no effect"))
        .collect();
    assert_eq!(warnings.len(), 1, "{}", ran.err);
    assert!(
        warnings[0].starts_with("warning: no effect with provider=docker-sandbox: sync.delete ("),
        "{}",
        warnings[0]
    );
    assert!(
        warnings[0].ends_with("config.yaml:2), sync.checksum (CRABBOX_SYNC_CHECKSUM), sync.timeout (CRABBOX_SYNC_TIMEOUT)"),
        "{}",
        warnings[0]
    );
    let shown = world.with_env(&env, &["config", "show", "--json"]).exits(0);
    let keys = serde_json::json!(["sync.delete", "sync.checksum", "sync.timeout"]);
    assert_eq!(shown.json()["noEffect"], keys);
    let shown = world.with_env(&env, &["config", "show"]).exits(0);
    let line = "no_effect key=sync.timeout provider=docker-sandbox origin=CRABBOX_SYNC_TIMEOUT\n";
    assert!(shown.out.contains(line), "{}", shown.out);
}

/// What the sync step takes has an effect where there is one.
#[test]
fn archive_providers_honour_delete_fingerprint_and_timeout() {
    let world = World::new();
    world.user_config(
        "sync:\n  delete: false\n  fingerprint: false\n  timeout: 1m\n  checksum: true\n\
         agentSandbox:\n  context: a-cluster\n  warmPool: a-pool\n",
    );
    let api = [
        ("CRABBOX_OPENSANDBOX_API_URL", "http://127.0.0.1:8080"),
        ("CRABBOX_OPENSANDBOX_API_KEY", "a-key"),
    ];
    for (provider, expected) in [
        (
            "docker-sandbox",
            &["delete", "checksum", "fingerprint", "timeout"][..],
        ),
        ("agent-sandbox", &["checksum"]),
        ("opensandbox", &["checksum"]),
    ] {
        let shown = world
            .with_env(&api, &["config", "show", "--json", "--provider", provider])
            .exits(0);
        let expected: Vec<String> = expected.iter().map(|key| format!("sync.{key}")).collect();
        assert_eq!(
            shown.json()["noEffect"],
            serde_json::json!(expected),
            "{provider}"
        );
    }
}

#[test]
fn defaults_are_no_choice() {
    let world = World::new();
    world
        .crabbox(&["run", "--", "true"])
        .exits(0)
        .never_says("no effect");
    let shown = world.crabbox(&["config", "show", "--json"]).exits(0);
    assert!(shown.json().get("noEffect").is_none());
}

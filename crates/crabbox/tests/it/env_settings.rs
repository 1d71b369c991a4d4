//! Variables that say what holds and where it lies.

use serde_json::json;

use crate::world::{Ran, World, write};

/// Where the XDG variables name nothing, everything is below HOME.
#[test]
fn home_alone_is_enough() {
    let world = World::new();
    let home = |args: &[&str]| {
        let mut command = world.command(args);
        command.env_remove("XDG_CONFIG_HOME");
        command.env_remove("XDG_STATE_HOME");
        Ran::from(command.output().unwrap())
    };
    let config = world.path("home/.config/crabbox");
    let file = config.join("config.yaml");
    assert_eq!(
        home(&["config", "path"]).ok(),
        format!("{}\n", file.display())
    );
    write(&file, "dockerSandbox:\n  template: t\n");
    home(&["warmup", "--slug", "a"]).exits(0);
    assert!(world.call("create").line().contains("--template t"));
    let sandbox = world.sandboxes().remove(0);
    let claim = config.join(format!("state/claims/dsbx_{sandbox}.json"));
    assert!(claim.is_file(), "{}", claim.display());
    assert_eq!(world.claim_names(), [""; 0]);
    home(&["stop", "a"]).exits(0);
    assert!(!claim.exists());
    world.is_clean();
}

#[test]
fn every_setting_of_the_core_has_its_variable() {
    let world = World::new();
    let env = [
        ("CRABBOX_PROFILE", "ci"),
        ("CRABBOX_PROVIDER", "Docker-Sandbox"),
        ("CRABBOX_TARGET", "Linux"),
        ("CRABBOX_TTL", "1h"),
        ("CRABBOX_IDLE_TIMEOUT", "5m"),
        ("CRABBOX_SYNC_DELETE", "0"),
        ("CRABBOX_SYNC_CHECKSUM", "1"),
        ("CRABBOX_SYNC_GIT_SEED", "off"),
        ("CRABBOX_SYNC_FINGERPRINT", "no"),
        ("CRABBOX_SYNC_BASE_REF", "main"),
        ("CRABBOX_SYNC_TIMEOUT", "2m"),
        ("CRABBOX_SYNC_WARN_FILES", "1"),
        ("CRABBOX_SYNC_WARN_BYTES", "2"),
        ("CRABBOX_SYNC_FAIL_FILES", "3"),
        ("CRABBOX_SYNC_FAIL_BYTES", "4"),
        ("CRABBOX_SYNC_ALLOW_LARGE", "yes"),
        ("CRABBOX_ENV_ALLOW", "A,B_*"),
    ];
    let mut shown = world
        .with_env(&env, &["config", "show", "--json"])
        .exits(0)
        .json();
    shown["sync"].as_object_mut().unwrap().remove("exclude");
    assert_eq!(
        shown["sync"],
        json!({
            "include": [], "delete": false, "checksum": true, "gitSeed": false, "fingerprint": false,
            "baseRef": "main", "timeout": "2m0s", "warnFiles": 1, "warnBytes": 2, "failFiles": 3,
            "failBytes": 4, "allowLarge": true,
        })
    );
    for (key, value) in [
        ("profile", "ci"),
        ("provider", "docker-sandbox"),
        ("target", "linux"),
        ("ttl", "1h0m0s"),
        ("idleTimeout", "5m0s"),
    ] {
        assert_eq!(shown[key], value, "{key}");
    }
    assert_eq!(shown["env"]["allow"], json!(["A", "B_*"]));
    let origins = shown["origins"].as_object().unwrap().values();
    let named = origins.filter(|origin| origin["source"] == "environment");
    assert_eq!(named.count(), env.len());
    // The other spelling, where the first is not there.
    let env = [("CRABBOX_TARGET_OS", "linux")];
    let shown = world.with_env(&env, &["config", "show", "--json"]);
    assert_eq!(
        shown.exits(0).json()["origins"]["target"],
        json!({"source": "environment", "name": "CRABBOX_TARGET_OS"})
    );
}

#[test]
fn a_missing_user_file_is_fine_and_its_path_is_told() {
    let world = World::new();
    let path = world.crabbox(&["config", "path"]).ok();
    assert_eq!(
        path,
        format!("{}\n", world.path("config/crabbox/config.yaml").display())
    );
}

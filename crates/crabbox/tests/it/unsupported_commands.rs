//! Commands and flags of the original for what no provider here has: machines over SSH, a broker.

use crate::unsupported_flags::refused;
use crate::world::World;

#[test]
fn commands_of_the_original_that_are_not_here_say_why() {
    let world = World::new();
    for name in [
        "ssh",
        "connect",
        "open",
        "tunnel",
        "watch",
        "vnc",
        "webvnc",
        "code",
        "egress",
        "screenshot",
        "checkpoint",
        "shard",
        "actions",
        "desktop",
        "prewarm",
    ] {
        let words = format!(
            "provider=docker-sandbox does not support {name}: it requires an SSH lease provider"
        );
        refused(&world, &[name], &words);
        refused(&world, &[name, "--id", "a", "--", "x"], &words);
    }
    for (name, what) in [
        ("heartbeat", "lease heartbeat"),
        ("pause", "pause"),
        ("resume", "resume"),
    ] {
        let words = format!("provider=docker-sandbox does not support {what}");
        refused(&world, &[name, "a"], &words);
    }
    for name in [
        "events", "attach", "results", "usage", "share", "unshare", "whoami",
    ] {
        refused(&world, &[name], "command requires a configured coordinator");
    }
    let words = "`crabbox verify` is not available in this version";
    refused(&world, &["verify", "x"], words);
    refused(
        &world,
        &["config", "set-broker", "--url", "https://example.org"],
        "command requires a configured coordinator",
    );
    let ran = world.crabbox(&["nonsense"]).exits(2);
    assert!(ran.cause().contains("nonsense"), "{}", ran.cause());
}

/// A command that no provider has is refused in the name of the one that would have been asked.
#[test]
fn the_chosen_provider_is_the_one_that_lacks_it() {
    let world = World::new();
    let words = "provider=docker-sandbox does not support pause";
    refused(
        &world,
        &["pause", "a", "--provider", "Docker-Sandbox"],
        words,
    );
    let chosen = |env: &[(&str, &str)], args: &[&str], name: &str| {
        let ran = world.with_env(env, args).exits(2);
        let words = format!("unknown provider \"{name}\"");
        assert!(ran.cause().ends_with(&words), "{args:?}: {}", ran.cause());
    };
    let env = [("CRABBOX_PROVIDER", "from-env")];
    chosen(&env, &["pause", "a"], "from-env");
    chosen(&env, &["ssh", "--provider=from-flag"], "from-flag");
    world.user_config("provider: from-file\n");
    chosen(&[], &["heartbeat"], "from-file");
    chosen(&env, &["heartbeat"], "from-env");
}

#[test]
fn what_only_a_lease_over_ssh_has() {
    let world = World::new();
    for flags in [
        ["--network", "public"],
        ["--windows-mode", "wsl2"],
        ["--static-host", "h"],
        ["--static-user", "u"],
        ["--static-port", "22"],
        ["--static-work-root", "/w"],
        ["--image-min-os", "14"],
        ["--image-sdk", "a=1"],
        ["--image-runtime", "a=1"],
        ["--expose", "8080"],
        ["--os", "ubuntu"],
        ["--ssh-port", "22"],
        ["--market", "spot"],
    ] {
        let words = format!(
            "provider=docker-sandbox has no SSH lease; {} is not supported",
            flags[0]
        );
        refused(
            &world,
            &[&["run"], &flags[..], &["--", "true"]].concat(),
            &words,
        );
        refused(&world, &[&["warmup"], &flags[..]].concat(), &words);
    }
    for flag in [
        "--image-require-browser",
        "--image-require-webview2",
        "--image-require-desktop",
    ] {
        let words = format!("provider=docker-sandbox has no SSH lease; {flag} is not supported");
        refused(&world, &["run", flag, "--", "true"], &words);
        refused(&world, &["warmup", flag], &words);
    }
    // Where a machine is was every command's to say.
    for command in [
        &["list"][..],
        &["status", "a"],
        &["stop", "a"],
        &["cleanup"],
        &["ports", "--id", "a"],
        &["cp", "--id", "a", "SANDBOX:x", "y"],
        &["doctor"],
    ] {
        for flags in [
            ["--windows-mode", "wsl2"],
            ["--static-host", "h"],
            ["--static-user", "u"],
            ["--static-port", "22"],
            ["--static-work-root", "/w"],
        ] {
            let flag = flags[0];
            let words =
                format!("provider=docker-sandbox has no SSH lease; {flag} is not supported");
            refused(&world, &[command, &flags[..]].concat(), &words);
        }
    }
}

//! The flags of the original that this provider does not have, with the words that scripts know.

use crate::world::World;

/// Refused with exit code 2, in exactly these words, before anything is asked or made.
#[track_caller]
pub(crate) fn refused(world: &World, args: &[&str], words: &str) {
    let ran = world.crabbox(args).exits(2);
    assert_eq!(ran.cause(), words, "{args:?}");
    assert_eq!(world.log().len(), 0, "{args:?}");
    assert_eq!(world.claim_names(), [""; 0], "{args:?}");
}

#[test]
fn what_concerns_the_sync_is_the_providers() {
    let world = World::new();
    for flags in [
        &["--sync-only"][..],
        &["--force-sync-large"],
        &["--checksum"],
        &["--full-resync"],
        &["--fresh-sync"],
        &["--fresh-pr", "7"],
    ] {
        let words = format!(
            "docker-sandbox delegates sync; {} is not supported",
            flags[0]
        );
        let args = [&["run"], flags, &["--", "true"]].concat();
        refused(&world, &args, &words);
    }
}

/// What stands in the place of a command is refused for what it is, and not missed as a command.
#[test]
fn what_needs_no_command_is_refused_without_one() {
    let world = World::new();
    for (flags, delegates) in [
        (&["--script", "x"][..], "run execution"),
        (&["--script-stdin"], "run execution"),
        (&["--sync-only"], "sync"),
    ] {
        let flag = flags[0];
        let words = format!("docker-sandbox delegates {delegates}; {flag} is not supported");
        refused(&world, &[&["run"], flags].concat(), &words);
        refused(&world, &[&["run"], flags, &["--"]].concat(), &words);
    }
    let words = "usage: crabbox run [flags] -- <command...>";
    refused(&world, &["run", "--sync-only=false"], words);
}

/// Of two mistakes the one that is told is the one that the original tells.
#[test]
fn mistakes_are_told_in_their_order() {
    let world = World::new();
    world.user_config("bogus: 1\n");
    let config = "unknown key `bogus`";
    let told = |args: &[&str], words: &str| {
        let ran = world.crabbox(args).exits(2);
        assert!(ran.cause().contains(words), "{args:?}: {}", ran.cause());
        assert_eq!(world.log().len(), 0, "{args:?}");
    };
    let no_slug = ["--slug=--!"];
    told(
        &[&["run"], &no_slug[..], &["--", "true"]].concat(),
        "needs at least one letter or digit",
    );
    told(
        &[&["warmup"], &no_slug[..]].concat(),
        "needs at least one letter or digit",
    );
    told(
        &[&["run", "--id", "a"], &no_slug[..]].concat(),
        "needs at least one letter or digit",
    );
    told(
        &["run", "--id", "a", "--slug", "b"],
        "--slug only applies when creating",
    );
    told(&["run", "--desktop"], config);
    told(&["run"], config);
    told(&["run", "--target", "windows"], config);
    world.user_config("dockerSandbox:\n  agent: claude\n");
    told(&["run", "--ttl", "0", "--desktop"], "ttl must be positive");
    told(&["run", "--desktop"], "desktop/VNC is not supported");
    told(&["run"], "usage: crabbox run");
    told(&["run", "--", "true"], "v1 supports shell only");
}

#[test]
fn what_concerns_the_execution_is_the_providers() {
    let world = World::new();
    for flags in [
        &["--env-helper", "x"][..],
        &["--capture-stdout", "x"],
        &["--capture-stderr", "x"],
        &["--capture-on-fail"],
        &["--download", "a=b"],
        &["--artifact-glob", "*"],
        &["--require-artifact", "x"],
        &["--emit-proof", "x"],
        &["--stop-after", "success"],
        &["--script", "x"],
        &["--script-stdin"],
    ] {
        let words = format!(
            "docker-sandbox delegates run execution; {} is not supported",
            flags[0]
        );
        let args = [&["run"], flags, &["--", "true"]].concat();
        refused(&world, &args, &words);
    }
}

#[test]
fn every_other_row_of_the_table() {
    let world = World::new();
    let run = |flags: &[&str], words: &str| {
        refused(&world, &[&["run"], flags, &["--", "true"]].concat(), words);
    };
    run(
        &["--require-artifact-schema", "x"],
        "--require-artifact-schema is not supported for provider=docker-sandbox yet; use an SSH-backed provider",
    );
    run(
        &["--pool", "x"],
        "--pool requires a brokered SSH lease provider",
    );
    let both = |flags: &[&str], words: &str| {
        run(flags, words);
        refused(&world, &[&["warmup"], flags].concat(), words);
    };
    both(
        &["--desktop"],
        "desktop/VNC is not supported for provider=docker-sandbox",
    );
    both(
        &["--browser"],
        "browser provisioning is not supported for provider=docker-sandbox",
    );
    both(
        &["--code"],
        "web code is not supported for provider=docker-sandbox",
    );
    both(
        &["--tailscale"],
        "provider=docker-sandbox is delegated-run only and does not support Tailscale options",
    );
    both(
        &["--class", "large"],
        "--class is not supported for provider=docker-sandbox; use --docker-sandbox-cpus and --docker-sandbox-memory",
    );
    both(
        &["--type", "c7"],
        "--type is not supported for provider=docker-sandbox; use --docker-sandbox-template",
    );
    both(
        &["--arch", "arm64"],
        "provider=docker-sandbox does not support --arch arm64",
    );
    both(
        &["--cache-volume", "x"],
        "provider=docker-sandbox does not support required cache volume \"x\"",
    );
    both(&["--ttl", "0"], "ttl must be positive");
    both(&["--idle-timeout", "0s"], "idle timeout must be positive");
    let linux = "provider=docker-sandbox managed provisioning supports target=linux only";
    both(&["--target", "windows"], linux);
    both(&["--target", "macos"], linux);
    refused(
        &world,
        &["warmup", "--actions-runner"],
        "--actions-runner is not supported for provider=docker-sandbox",
    );
    refused(
        &world,
        &["warmup", "--lease-id", "x"],
        "provider=docker-sandbox does not support fixed idempotent lease IDs",
    );
}

/// By a variable or a file, not only by the flag.
#[test]
fn a_target_is_refused_wherever_it_comes_from() {
    let world = World::new();
    let linux = "provider=docker-sandbox managed provisioning supports target=linux only";
    for name in ["CRABBOX_TARGET", "CRABBOX_TARGET_OS"] {
        let env = [(name, "windows")];
        let ran = world.with_env(&env, &["run", "--", "true"]).exits(2);
        assert!(ran.cause().ends_with(linux), "{}", ran.cause());
        // The flag is stronger.
        let args = ["run", "--target", "linux", "--", "true"];
        world.with_env(&env, &args).exits(0);
    }
    world.forget_calls();
    for key in ["target", "targetOS"] {
        world.user_config(&format!("{key}: macos\n"));
        let ran = world.crabbox(&["warmup"]).exits(2);
        assert!(ran.cause().ends_with(linux), "{}", ran.cause());
    }
    assert_eq!(world.log().len(), 0);
}

#[test]
fn a_profile_with_a_doctor_is_refused() {
    let world = World::new();
    world.user_config("profile: ci\nprofiles:\n  ci:\n    doctor:\n      enabled: true\n");
    refused(
        &world,
        &["run", "--", "true"],
        "docker-sandbox delegates run execution; profile doctor is not supported",
    );
    // That of another profile does not matter.
    world
        .crabbox(&["run", "--profile", "other", "--", "true"])
        .exits(0);
    world.user_config("profile: ci\nprofiles:\n  ci:\n    doctor:\n      enabled: false\n");
    world.crabbox(&["run", "--", "true"]).exits(0);
}

#[test]
fn what_asks_for_nothing_is_accepted() {
    let world = World::new();
    let flags = [
        "run",
        "--desktop=false",
        "--arch",
        "amd64",
        "--no-sync",
        "--no-hydrate",
        "--",
        "true",
    ];
    world.crabbox(&flags).exits(0);
    let ran = world
        .crabbox(&["run", "--preflight", "--", "true"])
        .exits(0);
    ran.says("remote preflight provider=docker-sandbox delegated unsupported; provider owns workspace and command transport");
}

#[test]
fn usage_is_checked_before_anything_else() {
    let world = World::new();
    refused(
        &world,
        &["run"],
        "usage: crabbox run [flags] -- <command...>",
    );
    refused(
        &world,
        &["run", "--"],
        "usage: crabbox run [flags] -- <command...>",
    );
    refused(
        &world,
        &["run", "--slug", "a", "--id", "b", "--", "true"],
        "--slug only applies when creating a new lease; omit it with --id",
    );
    refused(
        &world,
        &["run", "--slug=--!", "--", "true"],
        "invalid slug `--!`: needs at least one letter or digit",
    );
    refused(
        &world,
        &["warmup", "--slug", &"a".repeat(42)],
        &format!(
            "slug `{}` is too long: 42 characters, maximum 41",
            "a".repeat(42)
        ),
    );
    refused(
        &world,
        &["run", "-t", "--", "true"],
        "--tty needs a terminal on stdin",
    );
    refused(
        &world,
        &["stop", "--reclaim", "x"],
        "provider=docker-sandbox does not support stop --reclaim",
    );
    refused(
        &world,
        &["ports", "--id", "x", "--publish", "1", "--unpublish", "2"],
        "use either --publish or --unpublish, not both",
    );
    for args in [
        ["cp", "--id", "x", "a", "b"],
        ["cp", "--id", "x", "SANDBOX:a", "sandbox:b"],
    ] {
        refused(
            &world,
            &args,
            "usage: crabbox cp --id <lease> [-L] <src> <dst>, with exactly one SANDBOX:PATH",
        );
    }
    for args in [&["stop"][..], &["stop", "--id", "a", "b"]] {
        refused(&world, args, "usage: crabbox stop [flags] <lease>");
    }
}

#[test]
fn what_is_refused_is_not_in_the_help() {
    let world = World::new();
    for command in ["run", "warmup"] {
        let help = world.crabbox(&[command, "--help"]).ok();
        assert!(!help.contains("--force-sync-large"), "{help}");
    }
    let help = world.crabbox(&["sync-plan", "--help"]).ok();
    assert!(help.contains("--force-sync-large"), "{help}");
}

#[test]
fn what_concerns_a_new_sandbox_is_refused_for_one_that_exists() {
    let world = World::new();
    for flags in [
        &["--slug", "b"][..],
        &["--pond", "p"],
        &["--ttl", "5m"],
        &["--docker-sandbox-agent", "shell"],
        &["--docker-sandbox-template", "t"],
        &["--docker-sandbox-cpus", "2"],
        &["--docker-sandbox-memory", "1g"],
        &["--docker-sandbox-clone"],
        &["--docker-sandbox-extra-workspace", "/srv"],
        &["--docker-sandbox-mcp", "m"],
        &["--docker-sandbox-kit", "k"],
    ] {
        let words = format!(
            "{} only applies when creating a new lease; omit it with --id",
            flags[0]
        );
        let args = [&["run", "--id", "a"], flags, &["--", "true"]].concat();
        refused(&world, &args, &words);
    }
    // Variables and files say it for new ones; a run in an old one does not mind.
    world.warm("a");
    let env = [("CRABBOX_TTL", "5m"), ("CRABBOX_DOCKER_SANDBOX_MCP", "m")];
    world
        .with_env(&env, &["run", "--id", "a", "--", "true"])
        .exits(0);
}

#[test]
fn the_rest_of_the_runs_flags() {
    let world = World::new();
    let run = |flags: &[&str], words: &str| {
        refused(&world, &[&["run"], flags, &["--", "true"]].concat(), words);
    };
    for flags in [["--preflight-tools", "node"], ["--proof-template", "t"]] {
        let words = format!(
            "docker-sandbox delegates run execution; {} is not supported",
            flags[0]
        );
        run(&flags, &words);
    }
    run(
        &["--attest", "receipt.json"],
        "--attest is not available in this version",
    );
    run(&["--attest-key", "k"], "--attest-key requires --attest");
    run(
        &["--attest", "r", "--attest-key", "k"],
        "--attest is not available in this version",
    );
    run(
        &["--apply-local-patch"],
        "--apply-local-patch requires --fresh-pr",
    );
    run(
        &["--fresh-pr", "7", "--apply-local-patch"],
        "docker-sandbox delegates sync; --fresh-pr is not supported",
    );
}

/// With opensandbox, whose server is not asked: none is there.
#[track_caller]
fn opensandbox_refused(args: &[&str], words: &str) {
    let world = World::without_sbx();
    world.user_config("provider: opensandbox\n");
    let server = [
        ("CRABBOX_OPENSANDBOX_API_KEY", "k"),
        ("CRABBOX_OPENSANDBOX_API_URL", "http://127.0.0.1:1"),
    ];
    let ran = world.with_env(&server, args).exits(2);
    assert_eq!(ran.cause(), words, "{args:?}");
    assert_eq!(world.claim_names(), [""; 0], "{args:?}");
}

#[test]
fn opensandbox_refuses_by_name_what_concerns_a_run() {
    for (flag, words) in [
        (
            "--checksum",
            "opensandbox delegates sync; --checksum is not supported",
        ),
        (
            "--fresh-pr=7",
            "opensandbox delegates sync; --fresh-pr is not supported",
        ),
        (
            "--script=x",
            "opensandbox delegates run execution; --script is not supported",
        ),
        (
            "--capture-stdout=x",
            "opensandbox delegates run execution; --capture-stdout is not supported",
        ),
        (
            "--download=a=b",
            "opensandbox delegates run execution; --download is not supported",
        ),
        ("--pool=x", "--pool requires a brokered SSH lease provider"),
    ] {
        opensandbox_refused(&["run", flag, "--", "true"], words);
    }
    for command in ["ssh", "vnc", "desktop", "code"] {
        let words = format!(
            "provider=opensandbox does not support {command}: it requires an SSH lease provider"
        );
        opensandbox_refused(&[command, "a"], &words);
    }
    let reclaim = "provider=opensandbox does not support stop --reclaim";
    opensandbox_refused(&["stop", "--reclaim", "x"], reclaim);
}

#[test]
fn opensandbox_refuses_by_name_what_concerns_a_lease() {
    let resources =
        "is not supported for provider=opensandbox; use --opensandbox-cpu and --opensandbox-memory";
    for (flag, words) in [
        (
            "--desktop",
            "desktop/VNC is not supported for provider=opensandbox",
        ),
        (
            "--browser",
            "browser provisioning is not supported for provider=opensandbox",
        ),
        (
            "--code",
            "web code is not supported for provider=opensandbox",
        ),
        (
            "--tailscale",
            "provider=opensandbox is delegated-run only and does not support Tailscale options",
        ),
        ("--class=large", &format!("--class {resources}")),
        ("--type=c7", &format!("--type {resources}")),
        (
            "--arch=arm64",
            "provider=opensandbox does not support --arch arm64",
        ),
        (
            "--cache-volume=x",
            "provider=opensandbox does not support required cache volume \"x\"",
        ),
        (
            "--cache",
            "provider=opensandbox does not support --cache: it keeps no build cache",
        ),
        (
            "--ssh-port=1",
            "provider=opensandbox has no SSH lease; --ssh-port is not supported",
        ),
        (
            "--target=windows",
            "provider=opensandbox managed provisioning supports target=linux only",
        ),
    ] {
        opensandbox_refused(&["run", flag, "--", "true"], words);
        opensandbox_refused(&["warmup", flag], words);
    }
    let runner = "--actions-runner is not supported for provider=opensandbox";
    opensandbox_refused(&["warmup", "--actions-runner"], runner);
    let fixed = "provider=opensandbox does not support fixed idempotent lease IDs";
    opensandbox_refused(&["warmup", "--lease-id", "x"], fixed);
}

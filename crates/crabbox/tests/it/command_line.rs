//! Command lines, and what is said about them.

use std::fs;
use std::process::Command;

use crate::world::{Ran, World, write};

#[test]
fn switches_take_true_and_false() {
    let world = World::new();
    let on = world
        .crabbox(&[
            "run",
            "--timing-json=true",
            "--no-sync=false",
            "--",
            "echo",
            "--x=true",
        ])
        .exits(0);
    assert_eq!(on.out, "--x=true\n");
    on.says("\"runStatus\":\"succeeded\"");
    world
        .crabbox(&[
            "run",
            "--timing-json=false",
            "--shell=true",
            "echo a; echo b",
        ])
        .exits(0)
        .never_says("runStatus");
    world.warm("w");
    let status = world
        .crabbox(&["status", "w", "--wait=true", "--json=true"])
        .exits(0);
    assert_eq!(status.json()["ready"], true);
    world.crabbox(&["cleanup", "--dry-run=true"]).exits(0);
    let listed = world.crabbox(&["list", "-json=true"]).exits(0);
    assert_eq!(listed.json().as_array().unwrap().len(), 1);
    world
        .crabbox(&[
            "run",
            "--id",
            "w",
            "--reclaim=true",
            "--debug=true",
            "--preflight=true",
            "--",
            "true",
        ])
        .exits(0)
        .says("remote preflight");
    for (args, flag) in [
        (&["list", "--json=maybe"][..], "--json"),
        (&["run", "--keep=maybe", "--", "true"], "--keep[=<BOOL>]"),
        (&["run", "-t=maybe", "--", "true"], "--tty"),
        (&["cp", "-L=maybe", "a", "b"], "-L"),
    ] {
        let refused = world.crabbox(args).exits(2);
        assert_eq!(
            refused.cause(),
            format!("invalid value 'maybe' for '{flag}' [possible values: true, false]")
        );
    }
    world
        .crabbox(&["run", "--id", "w", "-t=false", "--", "true"])
        .exits(0);
    world
        .crabbox(&["run", "--id", "w", "-t=true", "--", "true"])
        .exits(2)
        .says("--tty needs a terminal");
    for (switch, follows) in [("-L=true", true), ("-L=false", false)] {
        world.forget_calls();
        let args = ["cp", "--id", "w", switch, "SANDBOX:/a", "b"];
        world.crabbox(&args).exits(0);
        assert_eq!(world.call("cp").argv.contains(&"-L".to_owned()), follows);
    }
    // A failure is JSON as well.
    let failed = world.crabbox(&["stop", "nothing", "--json=true"]).exits(4);
    assert!(failed.last().starts_with("{\"error\""), "{}", failed.err);
}

/// As the original takes them: with one hyphen, and the value where it may stand.
#[test]
fn long_flags_may_have_one_hyphen() {
    let world = World::new();
    let args = [
        "warmup",
        "-slug",
        "a",
        "-ttl",
        "5m",
        "-idle-timeout=2m",
        "-timing-json",
    ];
    world.crabbox(&args).exits(0).says("\"runStatus\"");
    let lease = world.claim_names().remove(0);
    let claim = world.claim(&lease);
    assert_eq!(claim["slug"], "a");
    assert_eq!(claim["ttlSeconds"], 300);
    assert_eq!(claim["idleTimeoutSeconds"], 120);
    // Behind the command's first word they are the command's.
    let args = ["run", "-id", "a", "-label", "l", "echo", "-ttl", "5m"];
    assert_eq!(world.crabbox(&args).ok(), "-ttl 5m\n");
}

#[test]
fn a_flag_is_not_taken_for_a_value() {
    let world = World::new();
    for (args, flag) in [
        (
            &["run", "--ttl", "--json", "--", "true"][..],
            "--ttl <DURATION>",
        ),
        (&["run", "--ttl", "--", "true"], "--ttl <DURATION>"),
        (
            &["run", "--docker-sandbox-cpus", "-t", "--", "true"],
            "--docker-sandbox-cpus <N>",
        ),
        (
            &["status", "w", "--wait-timeout", "--wait"],
            "--wait-timeout <DURATION>",
        ),
        (&["run", "--id", "--json", "--", "true"], "--id <LEASE>"),
    ] {
        let message = format!("a value is required for '{flag}' but none was supplied");
        world.crabbox(args).exits(2).says(&message);
    }
    world
        .crabbox(&["run", "--ttl", "-5m", "--", "true"])
        .exits(2)
        .says("ttl must be positive")
        .never_says("a value is required");
}

#[test]
fn a_jujutsu_workspace_is_not_sent_where_it_is_refused_again() {
    let world = World::new();
    let dir = world.path("jj");
    fs::create_dir_all(dir.join(".jj")).unwrap();
    world
        .within(&dir, &["sync-plan"])
        .exits(6)
        .says("Jujutsu")
        .never_says("--no-git");
    let plain = world.path("plain");
    fs::create_dir_all(&plain).unwrap();
    world
        .within(&plain, &["sync-plan"])
        .exits(6)
        .says("--no-git");
}

#[test]
fn a_finding_without_a_hint_has_none() {
    let world = World::new();
    world.behave(
        "diagnose",
        r#"{"checks":[{"name":"Disk","status":"fail","message":"full"}]}"#,
    );
    let ran = world.crabbox(&["doctor"]);
    assert!(ran.out.contains("Disk: full"), "{}", ran.out);
    ran.never_says("(hint: )");
}

#[test]
fn what_a_named_file_was_trusted_for_can_be_taken_back() {
    let world = World::new();
    let named = world.repo().join("ci.yaml");
    write(&named, "env:\n  allow: [AWS_SECRET]\n");
    let env = [("CRABBOX_CONFIG", named.to_str().unwrap())];
    world
        .with_env(&env, &["run", "--", "true"])
        .exits(2)
        .says("`AWS_SECRET` is not in your own list");
    world.with_env(&env, &["trust"]).exits(0);
    world.with_env(&env, &["run", "--", "true"]).exits(0);
    world
        .with_env(&env, &["trust", "--revoke"])
        .exits(0)
        .says("no longer trusted");
    world.with_env(&env, &["run", "--", "true"]).exits(2);
}

#[test]
fn help_shows_only_flags_that_apply() {
    let world = World::new();
    for command in ["list", "status", "stop", "cleanup", "ports", "cp", "run"] {
        world
            .crabbox(&[command, "--help"])
            .exits(0)
            .never_says("force-sync-large");
    }
    let plan = world.crabbox(&["sync-plan", "--help"]).ok();
    assert!(plan.contains("--force-sync-large"), "{plan}");
    let run = world.crabbox(&["run", "--help"]).ok();
    assert!(run.contains("relative to the repository root"), "{run}");
}

/// A shell in a directory that it removes.
fn nowhere(world: &World, args: &[&str]) -> Ran {
    let command = world.command(args);
    let gone = world.path("gone");
    fs::create_dir_all(&gone).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "rmdir \"$PWD\" && exec \"$@\"", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    let env = command.get_envs().filter_map(|(k, v)| Some((k, v?)));
    shell.env_clear().envs(env).current_dir(&gone);
    Ran::from(shell.output().unwrap())
}

#[test]
fn a_directory_that_is_gone_only_stops_what_needs_it() {
    let world = World::new();
    world.warm("w");
    nowhere(&world, &["--version"]).exits(0);
    let list = nowhere(&world, &["list"]).exits(0);
    assert!(list.out.contains("slug=w"), "{}", list.out);
    for args in [
        &["run", "--", "true"][..],
        &["run", "--id", "w", "--", "true"],
        &["warmup"],
        &["sync-plan"],
    ] {
        let ran = nowhere(&world, args).exits(1);
        assert_eq!(ran.cause(), "the working directory no longer exists");
    }
    assert_eq!(world.count("create"), 1);
    nowhere(&world, &["stop", "w"]).exits(0);
}

#[test]
fn times_in_the_history_are_of_one_length() {
    let world = World::new();
    for _ in 0..3 {
        world.crabbox(&["run", "--", "true"]).exits(0);
    }
    let history = world.crabbox(&["history"]).ok();
    for line in history.lines() {
        let time = line.split_whitespace().find(|w| w.ends_with('Z')).unwrap();
        assert_eq!(time.len(), "2026-08-01T12:00:00.000Z".len(), "{line}");
    }
}

#[test]
fn a_repository_that_is_a_trap_holds_nothing_up() {
    let world = World::new();
    let made = Command::new("mkfifo")
        .arg(world.repo().join(".git/x"))
        .status();
    assert!(made.unwrap().success());
    world.git(&["config", "include.path", "x"]);
    world.warm("w");
    for args in [
        &["run", "--", "true"][..],
        &["run", "--id", "w", "--", "true"],
        &["list"],
        &["status", "w"],
        &["sync-plan"],
        &["stop", "w"],
    ] {
        world.crabbox(args).exits(0);
    }
    world.crabbox(&["doctor"]).never_says("hung");
}

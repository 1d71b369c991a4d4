//! Which `sbx` is used where there are several.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::world::{Ran, World, write};

/// A world whose engine lies beside the program, and in whose PATH another program is called `sbx`.
fn with_a_foreign_engine() -> World {
    let world = World::new();
    drop(world.alone(&[]));
    fs::rename(world.path("bin/sbx"), world.path("alone/sbx")).unwrap();
    let other_engine = world.path("bin/sbx");
    let mark = world.path("other-engine-was-called");
    write(
        &other_engine,
        format!("#!/bin/sh\necho \"$@\" >> {}\nexit 9\n", mark.display()),
    );
    fs::set_permissions(&other_engine, fs::Permissions::from_mode(0o755)).unwrap();
    world
}

fn run(world: &World, env: &[(&str, &str)], args: &[&str]) -> Ran {
    let mut command = world.alone(args);
    command.envs(env.iter().copied());
    Ran::from(command.output().unwrap())
}

/// The program and how it was found.
fn engine(world: &World, env: &[(&str, &str)], args: &[&str]) -> String {
    let doctor = run(world, env, &[&["doctor", "--json"], args].concat()).json();
    let mut checks = doctor["checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["check"] == "sbx_engine").unwrap();
    check["message"].as_str().unwrap().to_owned()
}

#[test]
fn the_bundled_engine_wins_unless_the_user_chose_the_provider() {
    let world = with_a_foreign_engine();
    let bundled = format!(
        "program={} found=bundled",
        world.path("alone/sbx").display()
    );
    let other_engine = format!("program={} found=PATH", world.path("bin/sbx").display());
    assert_eq!(engine(&world, &[], &[]), bundled);
    assert_eq!(engine(&world, &[], &["--all"]), bundled);
    world.repo_config("provider: docker-sandbox\n");
    assert_eq!(
        engine(&world, &[], &[]),
        bundled,
        "a repository chooses no program"
    );
    world.repo_config("");
    assert_eq!(
        engine(&world, &[], &["--provider", "docker-sandbox"]),
        other_engine
    );
    let chosen = [("CRABBOX_PROVIDER", "docker-sandbox")];
    assert_eq!(engine(&world, &chosen, &[]), other_engine);
    world.user_config("provider: docker-sandbox\n");
    assert_eq!(engine(&world, &[], &[]), other_engine);
    let path = world.path("alone/sbx").display().to_string();
    let named = format!("program={path} found=dockerSandbox.cliPath");
    assert_eq!(engine(&world, &[], &["--docker-sandbox-cli", &path]), named);
}

/// With the provider named, doctor would examine the other program.
#[test]
fn a_failure_of_the_bundled_engine_names_the_doctor_that_examines_it() {
    let world = with_a_foreign_engine();
    world.behave("own", "yes");
    world.behave("version", "contract: 0.31.3");
    world.behave("fail-before-exec", "2\nno");
    let hint = |args: &[&str]| {
        let ran = run(&world, &[], &[&["run"], args, &["--", "true"]].concat()).exits(1);
        let mut hints = ran
            .err
            .lines()
            .filter_map(|line| line.strip_prefix("hint: "));
        hints
            .find(|hint| hint.contains("doctor"))
            .unwrap()
            .to_owned()
    };
    assert_eq!(hint(&[]), "crabbox doctor");
    assert!(!world.path("stranger-was-called").exists());
    let path = world.path("alone/sbx").display().to_string();
    let named = format!("crabbox doctor --provider docker-sandbox --docker-sandbox-cli {path}");
    assert_eq!(hint(&["--docker-sandbox-cli", &path]), named);
}

#[test]
fn run_keep_and_the_printed_stop_use_one_engine_with_another_sbx_in_path() {
    let world = with_a_foreign_engine();
    let output = world.path("lease.json");
    let to = output.display().to_string();
    let args = [
        "run",
        "--keep",
        "--slug",
        "k",
        "--lease-output",
        &to,
        "--",
        "echo",
        "x",
    ];
    assert_eq!(run(&world, &[], &args).ok(), "x\n");
    let session: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    let stop = session["cleanupCommand"].as_str().unwrap();
    assert_eq!(stop, "crabbox stop --provider docker-sandbox k");
    let words: Vec<_> = stop.split(' ').skip(1).collect();
    run(&world, &[], &["list", "--provider", "docker-sandbox"]).exits(0);
    run(&world, &[], &words).exits(0).says("released lease=");
    assert!(!world.path("other-engine-was-called").exists());
    world.is_clean();
}

//! How runs end, and what is said then.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{Ran, World, end, signal};

#[test]
fn output_that_cannot_be_written_fails_the_run() {
    let world = World::new();
    world.warm("w");
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    for count in ["1", "100000"] {
        let mut command = world.command(&["run", "--id", "w", "--", "seq", count]);
        let ran = Ran::from(command.stdout(full()).output().unwrap()).exits(1);
        assert!(
            ran.cause().starts_with("cannot write the command's stdout"),
            "{}",
            ran.err
        );
        ran.says("No space left on device");
    }
}

#[test]
fn a_closed_stdout_is_not_a_failure() {
    let world = World::new();
    world.warm("w");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = world.command(&["run", "--id", "w", "--", "sh", "-c", "seq 100000"]);
    let ran = Ran::from(command.stdout(writer).output().unwrap());
    ran.never_says("cannot write");
}

#[test]
fn a_lease_is_only_written_to_a_regular_file() {
    let world = World::new();
    let target = world.path("target");
    crate::world::write(&target, "");
    let link = world.path("link");
    symlink(&target, &link).unwrap();
    let pipe = world.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for (path, why) in [
        ("/dev/null", "not a regular file"),
        (link.to_str().unwrap(), "is a symbolic link"),
        (pipe.to_str().unwrap(), "not a regular file"),
        (world.path("home").to_str().unwrap(), "is a directory"),
    ] {
        let ran = world
            .crabbox(&["run", "--lease-output", path, "--", "true"])
            .exits(2);
        assert_eq!(
            ran.cause(),
            format!("cannot write --lease-output `{path}`: {why}")
        );
        ran.says("hint: name a regular file");
    }
    assert_eq!(world.count("create"), 0);
    let target = target.to_str().unwrap();
    world
        .crabbox(&["run", "--lease-output", target, "--", "true"])
        .exits(0);
    let written: Value = serde_json::from_slice(&fs::read(target).unwrap()).unwrap();
    assert_eq!(written["provider"], "docker-sandbox");
}

#[test]
fn a_lifetime_of_less_than_a_second_is_refused_wherever_it_stands() {
    let world = World::new();
    let says = "must be whole seconds, at least one, not `900ms`";
    world
        .crabbox(&["run", "--ttl", "900ms", "--", "true"])
        .exits(2)
        .says(says);
    world
        .with_env(&[("CRABBOX_IDLE_TIMEOUT", "900ms")], &["warmup"])
        .exits(2)
        .says(says);
    world.repo_config("ttl: 900ms\n");
    world.crabbox(&["warmup"]).exits(2).says(says);
    assert_eq!(world.count("create"), 0);
}

#[test]
fn a_clone_can_be_used_after_its_time() {
    let world = World::new();
    let lease = {
        let args = ["warmup", "--slug", "c", "--docker-sandbox-clone", "--json"];
        let made = world.crabbox(&args).exits(0).json();
        made["leaseId"].as_str().unwrap().to_owned()
    };
    world.edit_claim(&lease, |claim| {
        claim["expiresAt"] = "2020-01-01T00:00:00Z".into();
    });
    world
        .crabbox(&["run", "--id", "c", "--", "true"])
        .exits(0)
        .says("reached its TTL expiry and stays, because clone mode may hold commits")
        .says("crabbox stop --provider docker-sandbox c");
    let status = world.crabbox(&["status", "c", "--json"]).exits(0).json();
    assert_eq!(status["ready"], true);
    // Any other one is over.
    let other = world.warm("o");
    world.edit_claim(&other, |claim| {
        claim["expiresAt"] = "2020-01-01T00:00:00Z".into();
    });
    world.crabbox(&["run", "--id", "o", "--", "true"]).exits(4);
}

#[test]
fn the_end_of_a_command_is_json_where_failures_are() {
    let world = World::new();
    let ran = world
        .crabbox(&["run", "--json", "--", "sh", "-c", "exit 7"])
        .exits(7);
    let told: Value = serde_json::from_str(ran.last()).unwrap();
    assert_eq!(told["error"]["code"], "command_exit");
    assert_eq!(told["error"]["exitCode"], 7);
    assert_eq!(told["error"]["message"], "docker-sandbox run exited 7");
    world
        .crabbox(&["run", "--", "sh", "-c", "exit 7"])
        .exits(7)
        .says("\nerror: docker-sandbox run exited 7\n");
}

#[test]
fn ctrl_c_during_the_release_is_told() {
    let world = World::new();
    let mut gate = world.gate("rm", "before");
    let child = world.spawn(&["run", "--", "true"]);
    gate.wait();
    signal(&child, Signal::INT);
    gate.open();
    let ran = end(child).exits(130);
    assert!(ran.cause().ends_with("was released"), "{}", ran.err);
    world.is_clean();
}

#[test]
fn ctrl_c_during_a_release_that_fails_says_what_is_left() {
    let world = World::new();
    world.behave("noop-rm", "yes");
    let mut gate = world.gate("rm", "before");
    let child = world.spawn(&["run", "--slug", "x", "--", "true"]);
    gate.wait();
    signal(&child, Signal::INT);
    gate.open();
    let ran = end(child).exits(130);
    assert!(
        ran.cause().contains(" stays; docker-sandbox rm failed"),
        "{}",
        ran.err
    );
    let hint = "hint: crabbox stop --provider docker-sandbox x\n";
    assert_eq!(ran.err.matches(hint).count(), 1, "{}", ran.err);
}

#[test]
fn what_a_failing_run_left_is_told_with_its_last_words() {
    let world = World::new();
    world.behave("noop-rm", "yes");
    let stop = "crabbox stop --provider docker-sandbox x";
    let last = |ran: &Ran, count: usize| -> Vec<String> {
        let lines: Vec<_> = ran.err.lines().map(str::to_owned).collect();
        lines[lines.len() - count..].to_vec()
    };
    let args = [
        "run",
        "--slug",
        "x",
        "--timing-json",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    let ran = world.crabbox(&args).exits(3);
    let [timing, retry, hint, cause] = last(&ran, 4).try_into().unwrap();
    assert!(timing.starts_with("{\"provider\""), "{}", ran.err);
    assert!(
        retry.starts_with("hint: run `sbx rm --force crabbox-my-app-"),
        "{}",
        ran.err
    );
    assert_eq!(hint, format!("hint: {stop}"));
    assert_eq!(cause, "error: docker-sandbox run exited 3");
    let told = |args: &[&str], code: i32| -> Value {
        let lease = world.claim_names().remove(0);
        world.crabbox(&["claims", "forget", &lease]).exits(0);
        let ran = world.crabbox(args).exits(code);
        serde_json::from_str(ran.last()).unwrap()
    };
    let command = told(
        &["run", "--slug", "x", "--json", "--", "sh", "-c", "exit 3"],
        3,
    );
    assert_eq!(command["error"]["hints"][1], stop);
    world.behave("fail-before-exec", "2\nno");
    world.behave("own", "yes");
    world.behave("version", "contract: 0.31.3");
    // What our own engine says of a removal is believed.
    world.behave("fail-before-rm", "1\nbusy");
    let engine = told(&["run", "--slug", "x", "--json", "--", "true"], 1);
    let hints = engine["error"]["hints"].as_array().unwrap();
    assert_eq!(hints.last().unwrap(), stop, "{engine}");
}

#[test]
fn a_warmup_that_fails_has_its_timing_too() {
    let world = World::new();
    world.behave("fail-before-create", "1\nno room");
    let ran = world.crabbox(&["warmup", "--timing-json"]).exits(1);
    let lines: Vec<_> = ran.err.lines().collect();
    let timing: Value = serde_json::from_str(lines[lines.len() - 2]).unwrap();
    assert_eq!(timing["exitCode"], 1);
    assert_eq!(timing["runStatus"], "failed");
    assert_eq!(timing["errorKind"], "provider-error");
    assert_eq!(timing["leaseId"], "");
    assert!(ran.cause().ends_with("no room"), "{}", ran.err);
}

#[test]
fn a_rerun_is_the_same_command() {
    let world = World::new();
    let ran = world.crabbox(&[
        "run",
        "--keep-on-failure",
        "--slug",
        "f",
        "--shell",
        "--workdir",
        "sub dir",
        "--allow-env",
        "CI,A_*",
        "--allow-env",
        "B",
        "--",
        "exit 3; echo",
        "x",
    ]);
    ran.says(
        "rerun: crabbox run --provider docker-sandbox --id f --shell --workdir 'sub dir' --allow-env 'CI,A_*' --allow-env B -- 'exit 3; echo' x\n",
    );
}

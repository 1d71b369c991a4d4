//! From the first thought of a sandbox to the proof that it is gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use rustix::process::Signal;

use crate::world::{Barrier, Ran, World, end, signal};

/// A command of ours, held up where it makes its sandbox.
fn making(world: &World, when: &str, args: &[&str]) -> (Barrier, Child) {
    let mut gate = world.gate("create", when);
    let child = world.spawn(args);
    gate.wait();
    (gate, child)
}

/// A run in a lease that goes on until it is ended.
fn going_on(world: &World, slug: &str) -> Child {
    let script = "echo; exec sleep 1000";
    let mut run = world.spawn(&["run", "--id", slug, "--", "sh", "-c", script]);
    run.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    run
}

fn end_by(mut child: Child, with: Signal) -> Ran {
    // Its end would be the command's end too.
    let stdin = child.stdin.take();
    signal(&child, with);
    let ran = end(child);
    drop(stdin);
    ran
}

#[test]
fn a_fresh_run_mirrors_the_code_and_leaves_nothing() {
    let world = World::new();
    let ran = world
        .crabbox(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"])
        .exits(7);
    assert_eq!(ran.out, "out\n");
    assert_eq!(ran.cause(), "docker-sandbox run exited 7");
    assert!(ran.err.lines().any(|line| line == "err"));
    world.is_clean();
    let verbs: Vec<_> = world
        .calls()
        .iter()
        .map(|call| call.verb().to_owned())
        .collect();
    assert_eq!(verbs, ["version", "create", "exec", "ls", "rm", "ls"]);
}

/// The claim is on disk while `sbx create` runs.
#[test]
fn the_claim_comes_before_the_sandbox() {
    let world = World::new();
    let args = ["run", "--slug", "early", "--", "true"];
    let (mut gate, child) = making(&world, "before", &args);
    let lease = world.claim_names().remove(0);
    let claim = world.claim(&lease);
    assert_eq!(claim["state"], "creating");
    assert_eq!(claim["slug"], "early");
    assert_eq!(world.sandboxes(), [""; 0]);
    // Others see it, and keep their hands off it.
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "creating");
    world.crabbox(&["cleanup"]).exits(0);
    world.crabbox(&["warmup", "--slug", "early"]).exits(2);
    assert_eq!(world.claim_names(), [lease]);
    gate.open();
    end(child).exits(0);
    world.is_clean();
}

#[test]
fn what_a_killed_run_left_is_swept_by_the_next() {
    let world = World::new();
    // The sandbox is created, and the process that asked for it is killed before it gets the answer.
    let (mut gate, child) = making(&world, "after", &["run", "--", "true"]);
    end_by(child, Signal::KILL);
    gate.open();
    world.behave_well("gate-create");
    let orphan = world.sandboxes().remove(0);
    let lease = world.claim_names().remove(0);
    assert_eq!(lease, format!("dsbx_{orphan}"));
    // Swept as soon as the call that makes it is over.
    let mut ran = world.crabbox(&["run", "--", "true"]).exits(0);
    while !ran
        .err
        .contains(&format!("removed lease={lease} reason=its creator died"))
    {
        ran.says("is in use").never_says("removed lease");
        ran = world.crabbox(&["run", "--", "true"]).exits(0);
    }
    world.is_clean();
}

/// A command that says a word and goes on until its stdin ends.
const WAITS: [&str; 5] = ["-i", "--", "sh", "-c", "echo; cat"];

/// Starts a run and comes back when its command runs.
fn running(world: &World, args: &[&str]) -> Child {
    let args: Vec<&str> = args.iter().chain(&WAITS).copied().collect();
    let mut child = world
        .command(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.as_mut().unwrap();
    out.read_exact(&mut [0]).unwrap();
    child
}

fn kill(mut run: Child) {
    signal(&run, Signal::KILL);
    drop(run.stdin.take());
    end(run);
}

#[test]
fn a_sandbox_that_stays_can_be_used_while_its_first_command_runs() {
    let world = World::new();
    let mut first = running(&world, &["run", "--keep", "--slug", "kk"]);
    world.crabbox(&["run", "--id", "kk", "--", "true"]).exits(0);
    // It is not removed meanwhile.
    world.crabbox(&["cleanup"]).exits(0);
    assert_eq!(world.sandboxes().len(), 1);
    drop(first.stdin.take());
    end(first).exits(0);
    world.crabbox(&["run", "--id", "kk", "--", "true"]).exits(0);
    world.crabbox(&["stop", "kk"]).exits(0);
    world.is_clean();
}

#[test]
fn the_sandbox_of_a_run_that_was_killed_is_swept_by_the_next() {
    let world = World::new();
    let killed = running(&world, &["run"]);
    let orphan = world.sandboxes().remove(0);
    kill(killed);
    assert_eq!(world.sandboxes(), [orphan.as_str()]);
    let ran = world.crabbox(&["run", "--", "true"]).exits(0);
    ran.says(&format!(
        "removed lease=dsbx_{orphan} reason=its creator died"
    ));
    world.is_clean();

    // The next run that uses it takes it over.
    let killed = running(&world, &["run", "--slug", "left"]);
    kill(killed);
    world
        .crabbox(&["run", "--id", "left", "--", "true"])
        .exits(0);
    world.crabbox(&["run", "--", "true"]).exits(0);
    assert_eq!(world.sandboxes().len(), 1);
    world.crabbox(&["stop", "left"]).exits(0);
    world.is_clean();
}

#[test]
fn what_stays_after_a_failure_is_not_taken_for_left_behind() {
    let world = World::new();
    world
        .crabbox(&["run", "--keep-on-failure", "--slug", "f", "--", "false"])
        .exits(1);
    world.crabbox(&["run", "--", "true"]).exits(0);
    world.crabbox(&["cleanup"]).exits(0);
    assert_eq!(world.sandboxes().len(), 1);
    world.crabbox(&["stop", "f"]).exits(0);
    world.is_clean();
}

/// A clone may hold commits that were not fetched.
#[test]
fn a_clone_of_a_run_that_was_killed_stays() {
    let world = World::new();
    let killed = running(&world, &["run", "--docker-sandbox-clone"]);
    kill(killed);
    world.crabbox(&["run", "--", "true"]).exits(0);
    world.crabbox(&["cleanup"]).exits(0);
    assert_eq!(world.sandboxes().len(), 1);
}

/// `sbx create` outlives its parent. As long as it may still create the sandbox, the claim stays.
#[test]
fn a_sandbox_that_is_made_after_its_maker_died_is_not_lost() {
    let world = World::new();
    let (mut gate, child) = making(&world, "before", &["warmup", "--slug", "late"]);
    end_by(child, Signal::KILL);
    world.behave_well("gate-create");
    // The next one comes while `sbx create` still runs.
    world.crabbox(&["run", "--", "true"]).exits(0);
    world.crabbox(&["cleanup"]);
    gate.open();
    // It ends some time: then there is nothing, or something that a claim knows.
    while world.events("created").len() < 2 {
        world.crabbox(&["list"]).exits(0);
    }
    while !world.claim_names().is_empty() {
        world.crabbox(&["cleanup"]).exits(0);
    }
    world.is_clean();
}

#[test]
fn a_create_that_fails_half_way_is_undone() {
    let world = World::new();
    world.behave("fail-after-create", "1\nERROR: cannot attach the network");
    let ran = world.crabbox(&["run", "--", "true"]).exits(1);
    assert!(
        ran.cause().contains("cannot attach the network"),
        "{}",
        ran.err
    );
    assert_eq!(world.count("exec"), 0);
    world.is_clean();
}

#[test]
fn a_create_that_is_killed_is_undone() {
    let world = World::new();
    let (_gate, child) = making(&world, "after", &["run", "--", "true"]);
    let calls = world.events("call");
    let create = calls.iter().find(|call| call["argv"][0] == "create");
    let pid = create.unwrap()["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let ran = end(child);
    assert_ne!(ran.code, 0);
    assert_eq!(world.count("exec"), 0);
    world.is_clean();
}

#[test]
fn ctrl_c_stops_the_command_releases_and_exits_130() {
    let world = World::new();
    let mut child = world.spawn(&[
        "run",
        "--timing-json",
        "--",
        "sh",
        "-c",
        "echo $$; exec sleep 1000",
    ]);
    let mut out = child.stdout.take().unwrap();
    let mut pid = [0; 16];
    let read = out.read(&mut pid).unwrap();
    let pid = std::str::from_utf8(&pid[..read]).unwrap().trim().to_owned();
    let ran = end_by(child, Signal::INT).exits(130);
    assert_eq!(ran.cause(), "canceled: interrupted");
    assert!(
        !std::path::Path::new(&format!("/proc/{pid}")).exists(),
        "the command is gone"
    );
    assert!(
        ran.err
            .contains(r#""runStatus":"canceled","errorKind":"canceled""#),
        "{}",
        ran.err
    );
    assert_eq!(world.count("rm"), 1);
    world.is_clean();
    let runs = world.crabbox(&["history", "--json"]).exits(0).json();
    assert_eq!(runs["runs"][0]["runStatus"], "canceled");
    assert_eq!(runs["runs"][0]["exitCode"], 130);
}

/// That a run fails, also by the user's own hand, is what the flag is for.
#[test]
fn ctrl_c_keeps_what_is_to_stay_after_a_failure() {
    let world = World::new();
    let run = running(&world, &["run", "--keep-on-failure", "--slug", "f"]);
    let ran = end_by(run, Signal::INT).exits(130);
    assert_eq!(ran.cause(), "canceled: interrupted");
    let lease = world.claim_names().remove(0);
    ran.says(&format!("keep-on-failure: kept lease={lease} slug=f "))
        .says("stop: crabbox stop --provider docker-sandbox f");
    assert_eq!(world.count("rm"), 0);
    // It is one that is kept, not one that was left behind.
    world.crabbox(&["run", "--", "true"]).exits(0);
    assert_eq!(world.claim_names(), [lease]);
    world.crabbox(&["stop", "f"]).exits(0);
    world.is_clean();
}

/// The process that changed the claim now decides about the sandbox.
#[test]
fn a_claim_that_changed_during_a_run_keeps_its_sandbox() {
    let world = World::new();
    let mut run = running(&world, &["run", "--slug", "mine"]);
    let lease = world.claim_names().remove(0);
    let sandbox = world.sandboxes().remove(0);
    world.edit_claim(&lease, |claim| claim["revision"] = "0".repeat(32).into());
    let changed = world.claim(&lease);
    drop(run.stdin.take());
    let ran = end(run).exits(1);
    assert_eq!(
        ran.cause(),
        format!("docker-sandbox rm failed for {sandbox}: lease {lease} claim changed; retry")
    );
    ran.says("hint: crabbox stop --provider docker-sandbox mine");
    assert_eq!(world.count("rm"), 0);
    assert_eq!(world.claim(&lease), changed);
    assert_eq!(world.sandboxes(), [sandbox]);
}

#[test]
fn ctrl_c_during_create_leaves_nothing() {
    let world = World::new();
    for when in ["before", "after"] {
        let (_gate, child) = making(&world, when, &["run", "--", "true"]);
        let ran = end_by(child, Signal::INT).exits(130);
        assert_eq!(world.count("exec"), 0, "{}", ran.err);
        world.is_clean();
        std::fs::remove_file(world.path("engine/gate-create.reached")).unwrap();
        std::fs::remove_file(world.path("engine/gate-create.go")).unwrap();
    }
}

/// A kept lease stays: it was there before the run.
#[test]
fn ctrl_c_keeps_what_the_run_did_not_make() {
    let world = World::new();
    let lease = world.warm("kept");
    end_by(going_on(&world, "kept"), Signal::INT).exits(130);
    assert_eq!(world.claim_names(), [lease]);
    assert_eq!(
        world
            .crabbox(&["run", "--id", "kept", "--", "echo", "x"])
            .ok(),
        "x\n"
    );
}

#[test]
fn a_stop_waits_for_a_run() {
    let world = World::new();
    world.warm("busy");
    let mut run = world
        .command(&[
            "run",
            "-i",
            "--id",
            "busy",
            "--",
            "sh",
            "-c",
            "echo ready; read line; echo $line",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = run.stdout.take().unwrap();
    out.read_exact(&mut [0; 6]).unwrap();
    let mut stop = world.spawn(&["stop", "busy"]);
    // A command that waits says so, also without a terminal.
    let mut told = BufReader::new(stop.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    let holder = format!("in use by process {} (crabbox run)\n", run.id());
    assert!(
        line.starts_with("waiting for lease ") && line.ends_with(&holder),
        "{line}"
    );
    // Runs do not wait for each other, nor for who waits to stop it.
    let ran = world.crabbox(&["cleanup"]).exits(0);
    assert!(ran.out.contains("removed=0"), "{}", ran.out);
    assert_eq!(world.count("rm"), 0);
    run.stdin.take().unwrap().write_all(b"done\n").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "done\n");
    end(run).exits(0);
    end(stop).exits(0);
    line.clear();
    told.read_to_string(&mut line).unwrap();
    assert!(line.starts_with("released lease="), "{line}");
    world.is_clean();
}

#[test]
fn two_runs_share_a_lease() {
    let world = World::new();
    world.warm("shared");
    let run = going_on(&world, "shared");
    assert_eq!(
        world
            .crabbox(&["run", "--id", "shared", "--", "echo", "x"])
            .ok(),
        "x\n"
    );
    end_by(run, Signal::TERM).exits(143);
}

#[test]
fn a_removal_that_fails_after_success_is_a_failure_and_the_lease_is_kept() {
    let world = World::new();
    world.behave("fail-before-rm", "1\nbusy");
    let output = world.path("lease.json").display().to_string();
    let args = [
        "run",
        "--slug",
        "s",
        "--timing-json",
        "--lease-output",
        &output,
        "--",
        "true",
    ];
    let ran = world.crabbox(&args).exits(1);
    assert!(
        ran.cause()
            .starts_with("docker-sandbox rm failed for crabbox-my-app-")
            && ran.cause().ends_with("busy"),
        "{}",
        ran.err
    );
    // The timing comes after the removal, and before the hints and the cause.
    let lines: Vec<_> = ran.err.lines().collect();
    let at = lines.iter().position(|line| line.starts_with('{')).unwrap();
    let timing: serde_json::Value = serde_json::from_str(lines[at]).unwrap();
    assert_eq!(timing["exitCode"], 1);
    assert_eq!(timing["runStatus"], "failed");
    let hints = &lines[at + 1..lines.len() - 1];
    assert!(
        hints.iter().all(|line| line.starts_with("hint: ")),
        "{}",
        ran.err
    );
    assert!(
        hints.contains(&"hint: crabbox stop --provider docker-sandbox s"),
        "{}",
        ran.err
    );
    let session: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(session["kept"], true);
    assert_eq!(world.claim_names().len(), 1);
    // What the command ended with counts more.
    world.crabbox(&["run", "--", "sh", "-c", "exit 9"]).exits(9);
    let json = world.crabbox(&["run", "--json", "--", "true"]).exits(1);
    let told: serde_json::Value = serde_json::from_str(json.last()).unwrap();
    assert_eq!(told["error"]["exitCode"], 1, "{told}");
}

#[test]
fn a_lease_in_use_is_not_cleaned_up() {
    let world = World::new();
    let lease = world.warm("busy");
    let run = going_on(&world, "busy");
    world.age(&lease);
    let ran = world.crabbox(&["cleanup"]).exits(0);
    ran.says(&format!("skip lease={lease} reason=in use"));
    assert_eq!(world.claim_names(), [lease]);
    end_by(run, Signal::INT).exits(130);
}

#[test]
fn an_engine_that_hangs_is_given_up_when_the_user_says_so() {
    let world = World::new();
    world.warm("a");
    let mut gate = world.gate("ls", "before");
    let child = world.spawn(&["stop", "a"]);
    gate.wait();
    end_by(child, Signal::INT).exits(130);
    assert_eq!(world.claim_names().len(), 1);
}

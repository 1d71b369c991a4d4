//! `run -d`, `logs -f` and `stop --force`.

use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::world::{World, end, signal};

/// Waits for something that comes by itself.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The only run on record.
fn run(world: &World) -> serde_json::Value {
    world.crabbox(&["history", "--json"]).exits(0).json()["runs"][0].clone()
}

#[test]
fn a_detached_run_goes_on_and_releases_its_lease() {
    let world = World::new();
    let go = world.path("go").display().to_string();
    let script =
        format!("echo out; echo err >&2; while [ ! -e {go} ]; do sleep 0.05; done; exit 3");
    let started = world
        .crabbox(&["run", "-d", "--slug", "bg", "--", "sh", "-c", &script])
        .exits(0)
        .says("detached run=run_");
    assert_eq!(started.out, "bg\n");
    assert_eq!(run(&world)["runStatus"], "running");
    assert_eq!(
        world.crabbox(&["list", "--json"]).exits(0).json()[0]["slug"],
        "bg"
    );
    // Others may use it meanwhile.
    world.crabbox(&["run", "--id", "bg", "--", "true"]).exits(0);
    crate::world::write(&world.path("go"), "");
    eventually("the lease is released", || world.claim_names().is_empty());
    eventually("the run is over", || {
        let runs = world.crabbox(&["history", "--json"]).exits(0).json();
        runs["runs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|run| run["runStatus"] != "running")
    });
    let runs = world.crabbox(&["history", "--json"]).exits(0).json();
    let detached = runs["runs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|run| run["exitCode"] == 3);
    let id = detached.unwrap()["runId"].as_str().unwrap().to_owned();
    let log = world.crabbox(&["logs", &id]).exits(0);
    assert_eq!(log.out, "out\n");
    assert!(log.err.starts_with("err\n"), "{}", log.err);
    world.is_clean();
}

#[test]
fn a_detached_run_that_cannot_start_says_why() {
    let world = World::new();
    let ran = world
        .crabbox(&["run", "-d", "--id", "none", "--", "true"])
        .exits(4);
    assert!(ran.cause().contains("not claimed"), "{}", ran.err);
    world.behave("fail-before-create", "1\nERROR: no room");
    let ran = world.crabbox(&["run", "-d", "--", "true"]).exits(1);
    assert!(ran.cause().contains("no room"), "{}", ran.err);
    assert_eq!(ran.out, "");
    world.is_clean();
}

#[test]
fn a_detached_run_is_canceled_while_its_sandbox_is_made() {
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let world = World::new();
        let mut gate = world.gate("create", "before");
        let started = world.spawn(&["run", "-d", "--", "sleep", "1000"]);
        gate.wait();
        signal(&started, sent);
        let ran = end(started).exits(code);
        assert!(ran.cause().starts_with("canceled: "), "{}", ran.err);
        assert_eq!(ran.out, "");
        // Not only soon afterwards: it was waited for.
        assert_eq!(run(&world)["runStatus"], "canceled");
        assert_eq!(world.count("exec"), 0);
        world.is_clean();
    }
}

#[test]
fn a_detached_run_ends_with_the_time_to_live() {
    let world = World::new();
    let args = [
        "run", "-d", "--ttl", "2s", "--slug", "bg", "--", "sleep", "1000",
    ];
    world.crabbox(&args).exits(0);
    eventually("the lease is released", || world.claim_names().is_empty());
    eventually("the end is recorded", || {
        run(&world)["runStatus"] != "running"
    });
    assert_ne!(run(&world)["runStatus"], "succeeded");
    world.is_clean();
}

#[test]
fn a_follower_sees_what_comes_and_the_end() {
    let world = World::new();
    let go = world.path("go").display().to_string();
    let script =
        format!("echo one; while [ ! -e {go} ]; do sleep 0.05; done; echo two; echo three >&2");
    world
        .crabbox(&["run", "-d", "--slug", "bg", "--", "sh", "-c", &script])
        .exits(0);
    eventually("the first line is on record", || {
        world.crabbox(&["logs", "bg"]).exits(0).out == "one\n"
    });
    let mut follower = world.spawn(&["logs", "-f", "--tail", "1", "bg"]);
    // Its last line is `one` only as long as there is no other.
    let mut first = [0; 4];
    follower
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    assert_eq!(first, *b"one\n");
    crate::world::write(&world.path("go"), "");
    let followed = end(follower).exits(0);
    assert_eq!(followed.out, "two\n");
    assert!(followed.err.starts_with("three\n"), "{}", followed.err);
}

#[test]
fn logs_of_a_lease_are_those_of_what_runs_in_it() {
    let world = World::new();
    let script = "echo ready; exec sleep 600";
    world
        .crabbox(&["run", "-d", "--slug", "bg", "--", "sh", "-c", script])
        .exits(0);
    world
        .crabbox(&["run", "--id", "bg", "--", "echo", "beside"])
        .exits(0);
    eventually("the line of what still runs", || {
        world.crabbox(&["logs", "bg"]).exits(0).out == "ready\n"
    });
    world.crabbox(&["stop", "--force", "bg"]).exits(0);
}

#[test]
fn logs_have_both_streams_and_their_last_lines() {
    let world = World::new();
    let script = "echo a; echo b; echo c >&2; echo d >&2";
    world.crabbox(&["run", "--", "sh", "-c", script]).exits(0);
    let both = world.crabbox(&["logs"]).exits(0);
    assert_eq!((both.out.as_str(), both.err.as_str()), ("a\nb\n", "c\nd\n"));
    let tail = world.crabbox(&["logs", "--tail", "1"]).exits(0);
    assert_eq!((tail.out.as_str(), tail.err.as_str()), ("b\n", "d\n"));
    let out = world.crabbox(&["logs", "--stdout"]).exits(0);
    assert_eq!((out.out.as_str(), out.err.as_str()), ("a\nb\n", ""));
    let err = world.crabbox(&["logs", "--stderr"]).exits(0);
    assert_eq!((err.out.as_str(), err.err.as_str()), ("c\nd\n", ""));
}

#[test]
fn stop_with_force_does_not_wait_for_commands() {
    let world = World::new();
    world.warm("a");
    let go = world.path("go").display().to_string();
    let script = format!("echo here; while [ ! -e {go} ]; do sleep 0.05; done");
    let busy = world.spawn(&["run", "--id", "a", "--", "sh", "-c", &script]);
    eventually("the command runs", || world.count("exec") == 1);
    world
        .crabbox(&["stop", "--force", "a"])
        .exits(0)
        .says("released lease=");
    assert_eq!(world.claim_names(), [""; 0]);
    assert_eq!(world.sandboxes(), [""; 0]);
    // The stand-in does not end its commands.
    crate::world::write(&world.path("go"), "");
    end(busy);
}

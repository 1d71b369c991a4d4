//! Where something else happens in between: a terminal, a death, another program's records.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::world::{World, end, signal, write};

/// Both ends of a terminal.
fn terminal() -> (OwnedFd, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    (ours, theirs)
}

#[test]
fn a_terminal_is_handed_over_where_it_is_asked_for() {
    let world = World::new();
    let (ours, theirs) = terminal();
    let script = "test -t 0 && test -t 1 && echo both";
    let mut command = world.command(&["run", "-t", "--", "sh", "-c", script]);
    command
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs);
    let status = command.status().unwrap();
    drop(command);
    let mut said = Vec::new();
    // The end of a terminal is an error.
    drop(File::from(ours).read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(status.success(), "{said}");
    assert!(said.contains("both\r\n"), "{said}");
    assert!(
        world.call("exec").line().starts_with("exec -i -t "),
        "{}",
        world.call("exec").line()
    );
    world.is_clean();
    let log = world.crabbox(&["logs"]).exits(0);
    assert_eq!(log.out, "");
    log.says("used a terminal (`run -t`); its output was not recorded");
}

/// A terminal is not read unless the command is to have it: a background job would be stopped.
#[test]
fn a_terminal_is_left_alone_where_it_is_not_asked_for() {
    let world = World::new();
    let (ours, theirs) = terminal();
    let ran = world
        .command(&["run", "--", "cat"])
        .stdin(theirs.as_fd().try_clone_to_owned().unwrap())
        .output()
        .unwrap();
    assert!(ran.status.success());
    assert!(
        world.call("exec").line().starts_with("exec --workdir "),
        "{}",
        world.call("exec").line()
    );
    drop(ours);
}

#[test]
fn a_stop_that_died_is_finished_by_the_next() {
    let world = World::new();
    let lease = world.warm("a");
    let mut gate = world.gate("rm", "before");
    let child = world.spawn(&["stop", "a"]);
    gate.wait();
    signal(&child, Signal::KILL);
    end(child);
    world.behave_well("gate-rm");
    assert_eq!(world.claim(&lease)["state"], "releasing");
    let ran = world.crabbox(&["run", "--id", "a", "--", "true"]).exits(4);
    assert_eq!(ran.cause(), format!("lease {lease} is being released"));
    assert_eq!(
        world.crabbox(&["list", "--json"]).exits(0).json()[0]["status"],
        "releasing"
    );
    world.crabbox(&["stop", "a"]).exits(0);
    gate.open();
    world.is_clean();
}

#[test]
fn a_stop_that_died_is_finished_by_cleanup() {
    let world = World::new();
    let args = ["warmup", "--slug", "a", "--docker-sandbox-clone", "--json"];
    let made = world.crabbox(&args).exits(0).json();
    let lease = made["leaseId"].as_str().unwrap();
    let mut gate = world.gate("rm", "after");
    let mut stop = world.spawn(&["stop", "a"]);
    gate.wait();
    // As long as a process works on it, no other process does.
    let busy = world.crabbox(&["cleanup"]).exits(0);
    assert!(busy.out.contains("reason=in use"), "{}", busy.out);
    signal(&stop, Signal::KILL);
    stop.wait().unwrap();
    gate.open();
    world.behave_well("gate-rm");
    // Also where the sandbox is gone: the lease is not.
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "releasing", "{list}");
    let cleaned = world.crabbox(&["cleanup"]).exits(0);
    assert_eq!(
        cleaned.out,
        format!(
            "delete lease={lease} reason=release interrupted\ndocker-sandbox cleanup removed=1 checked=1\n"
        )
    );
    world.is_clean();
}

#[test]
fn claims_of_other_providers_are_left_alone() {
    let world = World::new();
    let lease = world.warm("a");
    world.edit_claim(&lease, |claim| {
        claim["provider"] = "agent-sandbox".into();
        claim["lastUsedAt"] = "2020-01-01T00:00:00Z".into();
    });
    assert_eq!(world.crabbox(&["list", "--json"]).ok(), "[]\n");
    let ran = world.crabbox(&["cleanup"]).exits(0);
    assert_eq!(ran.out, "docker-sandbox cleanup removed=0 checked=0\n");
    // Its own provider is asked, which this build may not have; the default one never is.
    world.crabbox(&["stop", "a"]).exits(2);
    world
        .crabbox(&["stop", "--provider", "docker-sandbox", "a"])
        .exits(4);
    assert_eq!(world.count("rm"), 0);
    assert_eq!(world.claim_names(), [lease]);
}

/// The claim knows better than any setting who has the lease.
#[test]
fn the_claims_provider_beats_another_one_that_is_configured() {
    let world = World::new();
    world.warm("a");
    let elsewhere = [("CRABBOX_PROVIDER", "nope")];
    world.with_env(&elsewhere, &["list"]).exits(2);
    for args in [
        &["run", "--id", "a", "--", "true"][..],
        &["status", "a"],
        &["ports", "--id", "a"],
        &["cp", "--id", "a", "README", "SANDBOX:/tmp/x"],
        &["stop", "a"],
    ] {
        world.with_env(&elsewhere, args).exits(0);
    }
    world.is_clean();
    world.user_config("provider: nope\n");
    let args = ["warmup", "--slug", "a", "--provider", "docker-sandbox"];
    world.crabbox(&args).exits(0);
    world.crabbox(&["status", "a"]).exits(0);
    world.crabbox(&["stop", "a"]).exits(0);
    world.is_clean();

    world.user_config("");
    let lease = world.warm("b");
    world.edit_claim(&lease, |claim| claim["provider"] = "agent-sandbox".into());
    world.forget_calls();
    let own = [("CRABBOX_PROVIDER", "docker-sandbox")];
    for args in [
        &["run", "--id", "b", "--", "true"][..],
        &["status", "b"],
        &["stop", "b"],
    ] {
        let ran = world.with_env(&own, args).exits(2);
        let said = "unknown provider \"agent-sandbox\"";
        assert!(ran.cause().ends_with(said), "{args:?}: {}", ran.cause());
    }
    assert_eq!(world.log().len(), 0);
    assert_eq!(world.claim_names(), [lease]);
}

/// What a newer version has written stays in the file.
#[test]
fn unknown_fields_of_a_claim_survive_its_use() {
    let world = World::new();
    let lease = world.warm("a");
    world.edit_claim(&lease, |claim| {
        claim["somethingNew"] = serde_json::json!({"a": 1});
        claim["lastUsedAt"] = "2020-01-01T00:00:00Z".into();
    });
    world.crabbox(&["run", "--id", "a", "--", "true"]).exits(0);
    assert_eq!(world.claim(&lease)["somethingNew"]["a"], 1);
}

#[test]
fn doctor_ends_although_the_engine_hangs() {
    let world = World::new();
    let mut gate = world.gate("ls", "before");
    let started = Instant::now();
    let child = world.spawn(&["doctor"]);
    gate.wait();
    let ran = end(child).exits(1);
    assert!(
        started.elapsed() < Duration::from_secs(50),
        "{:?}",
        started.elapsed()
    );
    for check in [
        "ok      sbx_version",
        "failed  sbx_inventory",
        "ok      sbx_diagnose",
    ] {
        assert!(ran.out.contains(check), "{}", ran.out);
    }
    ran.says("hint: the sandbox control plane did not respond; check it with `sbx diagnose`");
}

#[test]
fn a_plan_of_what_would_be_sent() {
    let world = World::new();
    write(&world.repo().join("node_modules/x"), "no");
    write(&world.repo().join("src/a.rs"), "12345");
    write(&world.repo().join(".crabboxignore"), "*.log\n");
    write(&world.repo().join("big.log"), "no");
    let plan = world.crabbox(&["sync-plan", "--json"]).exits(0).json();
    // README, .crabboxignore, src/a.rs
    assert_eq!(plan["candidate"]["files"], 3);
    assert_eq!(plan["candidate"]["bytes"], 6 + 6 + 5);
    assert_eq!(plan["guardrail"]["status"], "ok");
    let below = world.repo().join("src");
    assert_eq!(
        world
            .within(&below, &["sync-plan", "--json"])
            .exits(0)
            .json(),
        plan
    );
    let ran = world.within(&world.path("home"), &["sync-plan"]).exits(6);
    assert!(
        ran.cause().contains("is not a Git repository"),
        "{}",
        ran.cause()
    );
    assert_eq!(world.calls().len(), 0);
}

/// The second signal does not wait for anything.
#[test]
fn a_second_ctrl_c_ends_us_at_once() {
    let world = World::new();
    let script = "trap '' TERM INT; echo; while :; do read line || exec sleep 5; done";
    let mut child = world.spawn(&["run", "--slug", "a", "--", "sh", "-c", script]);
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let started = Instant::now();
    signal(&child, Signal::INT);
    signal(&child, Signal::TERM);
    child.wait().unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(9),
        "{:?}",
        started.elapsed()
    );
    // What it could not remove has a claim, by which it is found.
    assert_eq!(world.claim_names().len(), world.sandboxes().len());
}

//! Where something else happens in between: a terminal, a death, another program's records.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::pty::ptsname;

use crate::world::{Terminal, World, end, signal, write};

#[test]
fn a_terminal_is_handed_over_where_it_is_asked_for() {
    let world = World::new();
    let Terminal { ours, theirs } = Terminal::open();
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
    let Terminal { ours, theirs } = Terminal::open();
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
    busy.says("reason=in use");
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
    world.edit_claim(&lease, |claim| claim["provider"] = "nowhere-sandbox".into());
    world.forget_calls();
    let own = [("CRABBOX_PROVIDER", "docker-sandbox")];
    for args in [
        &["run", "--id", "b", "--", "true"][..],
        &["status", "b"],
        &["stop", "b"],
    ] {
        let ran = world.with_env(&own, args).exits(2);
        let said = "unknown provider \"nowhere-sandbox\"";
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

/// One signal or ten: the command ends, and what the run made goes. The second one cuts the command's time short.
#[test]
fn a_second_ctrl_c_hurries_and_cleans_up_all_the_same() {
    let world = World::new();
    let script = "trap '' TERM INT; echo; while :; do read line || exec sleep 5; done";
    let mut child = world.spawn(&["run", "--slug", "a", "--", "sh", "-c", script]);
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let started = Instant::now();
    signal(&child, Signal::INT);
    told(
        &mut child,
        "interrupted: ending the command and cleaning up, which takes 30s at most",
    );
    signal(&child, Signal::TERM);
    told(&mut child, "still cleaning up");
    let ran = end(child).exits(130);
    assert!(
        started.elapsed() < Duration::from_secs(9),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(ran.cause(), "canceled: interrupted");
    world.is_clean();
}

/// Reads stderr up to this line.
#[track_caller]
fn told(child: &mut Child, line: &str) {
    let stderr = child.stderr.as_mut().unwrap();
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(format!("{line}\n").as_bytes()) {
        let read = stderr.read(&mut byte).unwrap();
        assert_eq!(
            read,
            1,
            "{line:?} is not in {}",
            String::from_utf8_lossy(&said)
        );
        said.push(byte[0]);
    }
}

/// The kernel and the shell each send a signal when a terminal is closed, and nothing may be left of the run.
#[test]
fn a_terminal_that_is_closed_ends_the_run_however_many_signals_it_sends() {
    for (first, again, count, code) in [
        (Signal::HUP, Signal::HUP, 9, 129),
        (Signal::HUP, Signal::HUP, 0, 129),
        (Signal::TERM, Signal::HUP, 1, 143),
        (Signal::TERM, Signal::TERM, 0, 143),
    ] {
        let world = World::new();
        let script = "echo $$; exec sleep 1000";
        let args = ["run", "--timing-json", "--", "sh", "-c", script];
        let mut child = world.spawn(&args);
        let mut pid = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut pid).unwrap();
        assert_eq!(world.env_dir().len(), 1);
        let mut gate = world.gate("rm", "before");
        signal(&child, first);
        // It is held up where the sandbox is removed.
        gate.wait();
        for _ in 0..count {
            signal(&child, again);
        }
        gate.open();
        let ran = end(child).exits(code);
        assert!(
            ran.err.contains(&format!("\"exitCode\":{code},")),
            "{}",
            ran.err
        );
        assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
        assert_eq!(world.events("removed").len(), 1);
        world.is_clean();
    }
}

/// `nohup` starts a program with SIGHUP ignored.
#[test]
fn a_run_with_hangups_ignored_outlives_its_terminal() {
    let world = World::new();
    let fifo = world.path("go");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let script = format!("echo ready; exec cat '{}'", fifo.display());
    let run = world.command(&["run", "--", "sh", "-c", &script]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    shell.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        shell.env(name, value.unwrap());
    }
    let mut child = shell
        .current_dir(world.repo())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    signal(&child, Signal::HUP);
    write(&fifo, "went on");
    out.read_to_string(&mut line).unwrap();
    assert_eq!(line, "ready\nwent on");
    end(child).exits(0);
    world.is_clean();
}

/// The real thing: a session whose terminal goes away while a command runs in it.
#[test]
fn closing_the_terminal_leaves_nothing() {
    let world = World::new();
    let Terminal {
        ours: master,
        theirs: slave,
    } = Terminal::open();
    let name = ptsname(&master, Vec::new()).unwrap();
    let mut run = world.command(&["run", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    // `setsid` makes the terminal the controlling one, as a terminal emulator does.
    let mut shell = Command::new("setsid");
    shell.arg("sh").arg("-c").arg(format!(
        "exec < {0} > {0} 2>&1; \"$@\"",
        name.to_string_lossy()
    ));
    shell.arg("sh").arg(run.get_program()).args(run.get_args());
    for (name, value) in run.env("LC_ALL", "C").get_envs() {
        shell.env(name, value.unwrap());
    }
    let mut shell = shell.current_dir(world.repo()).spawn().unwrap();
    let mut screen = File::from(master);
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("ready") {
        let mut bytes = [0; 256];
        let read = screen.read(&mut bytes).unwrap();
        said.extend_from_slice(&bytes[..read]);
    }
    assert_eq!(world.claim_names().len(), 1);
    drop((screen, slave));
    shell.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(40);
    while !(world.claim_names().is_empty() && world.env_dir().is_empty()) {
        assert!(Instant::now() < until, "the run goes on without a terminal");
        std::thread::sleep(Duration::from_millis(50));
    }
    world.is_clean();
}

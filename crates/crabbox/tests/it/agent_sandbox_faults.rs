//! agent-sandbox where something goes wrong on the way: lost connections, waits that end, syncs that are cut off.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::agent_sandbox::Cluster;
use crate::world::{Ran, write};

/// No process of this machine has it on its command line, but for the ones of one test.
pub(crate) fn mark(number: u32) -> String {
    format!("{}", number * 1_000_000 + std::process::id())
}

pub(crate) fn runs(mark: &str) -> bool {
    let said = Command::new("sh")
        .args(["-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&said.stdout).contains(&format!("sleep {mark} "))
}

/// The watchdog in the pod is blind as long as the command does not read its stdin, and a child may leave the command's
/// process group: a second exec finds both.
#[test]
fn a_command_whose_connection_was_lost_is_ended() {
    for (number, input) in [(21, 0), (22, 4 << 20)] {
        let cluster = Cluster::new();
        cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
        cluster.behave("fail-exec", "left");
        let mark = mark(number);
        let script = format!("setsid sleep {mark} & echo started; sleep {mark}");
        let mut child = cluster
            .world
            .command(&["run", "--id", "a", "--no-sync", "--", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&vec![b'x'; input])));
        let ran = Ran::from(child.wait_with_output().unwrap()).exits(1);
        writer.join().unwrap();
        let cause = ran.cause();
        assert!(cause.contains("its exit code is not known"), "{cause}");
        ran.never_says("still run");
        assert!(!runs(&mark), "{input}");
    }
}

#[test]
fn a_command_that_cannot_be_looked_for_is_reported() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.behave("fail-exec", "left\nbefore\n1\nerror dialing backend");
    let ran = cluster
        .crabbox(&[
            "run",
            "--id",
            "a",
            "--no-sync",
            "--",
            "sh",
            "-c",
            "echo started; sleep 2",
        ])
        .exits(1);
    ran.says("the command may still run in pod linux-pool-");
}

#[test]
fn a_time_out_says_which_setting_and_ends_the_command() {
    let cluster = Cluster::new();
    let mark = mark(23);
    let ran = cluster
        .crabbox(&[
            "run",
            "--no-sync",
            "--agent-sandbox-exec-timeout-secs",
            "2",
            "--",
            "sleep",
            &mark,
        ])
        .exits(5);
    let cause = ran.cause();
    assert!(cause.contains("did not end within 2s"), "{cause}");
    ran.says("agentSandbox.execTimeoutSecs");
    assert!(!runs(&mark));
    cluster.is_clean();
}

/// Each change ends the watch, not only the one to ready; and no watch outlasts the time of its stage.
#[test]
fn a_watched_claim_is_looked_at_when_it_changes() {
    let cluster = Cluster::new();
    cluster.behave("no-controller", "");
    let log = cluster.world.path("cluster/log.jsonl");
    // How many calls come after the first watch, once there is one.
    let after_watch = || {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let watch = log.lines().position(|call| call.contains("--watch"))?;
        Some(log.lines().skip(watch + 1).count())
    };
    let wait_for = |what: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !what() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // A watch that nothing ends takes 10 s. What comes after the next call is not counted: it is more the slower the
    // machine is.
    let is_asked_again = || {
        let watched = Instant::now();
        wait_for(&|| after_watch().is_some_and(|calls| calls > 0));
        let took = watched.elapsed();
        assert!(took < Duration::from_secs(8), "{took:?}");
    };
    let mut child = cluster.world.spawn(&["warmup"]);
    wait_for(&|| after_watch().is_some());
    cluster.edit("claim", |one| {
        one["metadata"]["resourceVersion"] = json!("2");
        one["status"] = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "TemplateNotFound", "message": "no template"}]});
    });
    is_asked_again();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let said = stderr_of(&mut child);
    assert!(said.contains("TemplateNotFound"), "{said}");
    cluster.is_clean();
    fs::remove_file(&log).unwrap();
    let timeout = ["warmup", "--agent-sandbox-sandbox-ready-timeout", "3s"];
    let mut child = cluster.world.spawn(&timeout);
    // On a slow machine the time may be over before there is a watch.
    wait_for(&|| after_watch().is_some() || child_ended(&child));
    if after_watch().is_some() {
        is_asked_again();
    }
    assert_eq!(child.wait().unwrap().code(), Some(5));
    let said = stderr_of(&mut child);
    assert!(said.contains("class=sandbox_ready_timeout"), "{said}");
    cluster.is_clean();
}

/// All of its stderr.
fn stderr_of(child: &mut std::process::Child) -> String {
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    said
}

/// Without reaping it.
fn child_ended(child: &std::process::Child) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn the_pod_timeout_counts_also_while_requests_fail() {
    let cluster = Cluster::new();
    cluster.behave("no-watch", "");
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.edit("pod", |one| {
        one["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]);
    });
    let timeout = [
        "run",
        "--id",
        "a",
        "--agent-sandbox-pod-ready-timeout",
        "1s",
        "--",
        "true",
    ];
    let ran = cluster.crabbox(&timeout).exits(5);
    assert!(
        ran.cause().contains("class=pod_ready_timeout"),
        "{}",
        ran.cause()
    );
    // Looks that fail are in no stage of their own: the time goes on.
    cluster.behave("fail-get", "before\n1\nnet/http: TLS handshake timeout");
    let ran = cluster
        .crabbox(&["warmup", "--agent-sandbox-sandbox-ready-timeout", "1s"])
        .exits(5);
    let cause = ran.cause();
    assert!(cause.contains("class=sandbox_ready_timeout"), "{cause}");
}

/// An API server that comes back denies what its authorizer has not read yet: that is no reason to give up. Without such a
/// gap a denial ends the wait at once.
#[test]
fn a_denial_after_an_unanswered_request_is_retried() {
    let denied = "before\n1\nError from server (Forbidden): x is forbidden: User \"u\" cannot get resource \"sandboxes\" in API group \"agents.x-k8s.io\" in the namespace \"n\"";
    let cluster = Cluster::new();
    let gap = format!(
        "once\n1\nnet/http: TLS handshake timeout\u{0}{}",
        denied.replacen("before", "once", 1)
    );
    cluster.behave("fail-get", &gap);
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.behave("fail-get", denied);
    let ran = cluster
        .crabbox(&["run", "--no-sync", "--", "true"])
        .exits(5);
    ran.says("RBAC denied: get sandboxes");
    // Nor did a look come before it: only the creation did.
    let cluster = Cluster::new();
    let claims = denied.replace("\"sandboxes\"", "\"sandboxclaims\"");
    cluster.behave("fail-get", &claims.replacen("before", "once", 1));
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    // No request fell into the gap.
    let cluster = Cluster::new();
    cluster.behave("no-controller", "");
    let denied = denied.replacen("before", "skip 1", 1);
    cluster.behave(
        "fail-get",
        &denied.replace("\"sandboxes\"", "\"sandboxclaims\""),
    );
    let timeout = ["warmup", "--agent-sandbox-sandbox-ready-timeout", "3s"];
    let ran = cluster.crabbox(&timeout).exits(5);
    ran.says("class=sandbox_ready_timeout")
        .never_says("RBAC denied");
}

/// A crabbox that was killed leaves its staging directory in the workdir. The next sync removes it.
#[test]
fn the_next_sync_removes_what_a_killed_one_staged() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let stale = cluster.pod_file(".crabbox-sync-0123456789abcdef");
    fs::create_dir_all(stale.join("new")).unwrap();
    write(&stale.join("new/half"), "x");
    cluster
        .crabbox(&["run", "--id", "a", "--", "true"])
        .exits(0);
    assert!(!stale.exists());
    assert!(cluster.pod_file("README").exists());
}

#[test]
fn a_run_that_was_ended_leaves_nothing_in_the_workdir() {
    let cluster = Cluster::new();
    let mark = mark(24);
    let script = format!("echo started; sleep {mark}");
    let mut child = cluster.world.spawn(&["run", "--", "sh", "-c", &script]);
    let mut started = [0; 8];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut started)
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_ne!(child.wait().unwrap().code(), Some(0));
    assert!(!runs(&mark));
    let names: Vec<_> = fs::read_dir(cluster.pod_file("."))
        .unwrap()
        .map(|name| name.unwrap().file_name())
        .collect();
    assert_eq!(names, ["README"]);
    cluster.is_clean();
}

/// What docs/providers/agent-sandbox.md asks of an image is enough: for the first sync, a later one, and an end before time.
#[test]
fn an_image_with_few_programs_is_enough() {
    for more in [&[][..], &["gzip"]] {
        let cluster = Cluster::new();
        let tools = cluster.world.path("cluster/tools");
        fs::create_dir_all(&tools).unwrap();
        let needed = [
            "bash", "tar", "cat", "cp", "dd", "mkdir", "mv", "rm", "sleep",
        ];
        for name in needed.iter().chain(more) {
            let path = ["/bin", "/usr/bin"]
                .iter()
                .map(|dir| std::path::Path::new(dir).join(name))
                .find(|path| path.exists())
                .unwrap();
            std::os::unix::fs::symlink(path, tools.join(name)).unwrap();
        }
        cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
        let run = |script: &str| {
            let args = ["run", "--id", "a", "--shell", "--", script];
            cluster.crabbox(&args).exits(0).out
        };
        assert_eq!(run("cat README; echo x >stale"), "hello\n");
        write(&cluster.world.repo().join("big"), vec![b'x'; 200_000]);
        assert_eq!(run("echo *"), "README big\n");
        let late = [
            "run",
            "--id",
            "a",
            "--no-sync",
            "--agent-sandbox-exec-timeout-secs",
            "1",
            "--",
            "sleep",
            "60",
        ];
        cluster.crabbox(&late).exits(5).never_says("still run");
    }
}

/// Ending kubectl does not end its request. What the server creates afterwards is found, and goes.
#[test]
fn a_claim_that_comes_after_ctrl_c_is_found_and_goes() {
    let cluster = Cluster::new();
    cluster.behave("late-create", "");
    let child = cluster.world.spawn(&["run", "--no-sync", "--", "true"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    // Earlier than that, there would be no request that could be carried out.
    let accepted = cluster.world.path("cluster/accepted");
    while !accepted.exists() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap()).exits(130);
    ran.says("reconciled agent-sandbox claim=crabbox-");
    assert!(cluster.verbs().contains(&"delete".to_owned()));
    cluster.is_clean();
}

/// That the server does not serve sandboxclaims says nothing about one of them: also not where it may be forgotten.
#[test]
fn a_missing_api_does_not_prove_a_claim_gone() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let lease = cluster.world.claim_names().remove(0);
    cluster.behave("api-gone", "");
    for args in [
        &["stop", "a"][..],
        &["stop", "--agent-sandbox-forget-missing", "a"],
        &[
            "run",
            "--id",
            "a",
            "--agent-sandbox-forget-missing",
            "--",
            "true",
        ],
        &["cleanup", "--agent-sandbox-forget-missing"],
        &["list"],
    ] {
        let ran = if args[0] == "run" {
            let soon = ["--agent-sandbox-sandbox-ready-timeout", "1s"];
            cluster.crabbox(&[&args[..3], &soon, &args[3..]].concat())
        } else {
            cluster.crabbox(args)
        };
        assert_ne!(ran.code, 0, "{args:?}");
        ran.says("could not find the requested resource")
            .never_says("forgotten")
            .never_says("missing");
        assert_eq!(cluster.world.claim_names(), [lease.as_str()], "{args:?}");
    }
    cluster.behave_well("api-gone");
    cluster.crabbox(&["stop", "a"]).exits(0);
    cluster.is_clean();
}

/// The answer to the deletion is lost, and then the server does not serve sandboxclaims: nothing shows that the claim is gone.
#[test]
fn a_lost_deletion_is_not_proved_by_an_api_that_is_gone() {
    const FIXED: &str = "cbx_0123456789ab";
    for warmup in [&["warmup"][..], &["warmup", "--lease-id", FIXED]] {
        let cluster = Cluster::new();
        cluster.crabbox(warmup).exits(0);
        let lease = cluster.world.claim_names().remove(0);
        cluster.behave("fail-delete", "before\n1\nunexpected EOF");
        cluster.behave("api-gone", "delete");
        let ran = cluster.crabbox(&["stop", &lease]);
        assert_ne!(ran.code, 0);
        ran.says("unexpected EOF").never_says("released");
        assert_eq!(cluster.world.claim_names(), [lease.as_str()]);
        assert_eq!(cluster.objects("claim").len(), 1);
        cluster.behave_well("fail-delete");
        cluster.behave_well("api-gone");
        cluster.crabbox(&["stop", &lease]).exits(0);
        cluster.is_clean();
    }
}

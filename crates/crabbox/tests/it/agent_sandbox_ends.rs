//! agent-sandbox: how runs and leases end, and that every end is told for what it is.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::agent_sandbox::Cluster;
use crate::agent_sandbox_faults::{mark, runs};

use crate::world::{Ran, blocked, on_terminal, write};

fn left_in_workdir(cluster: &Cluster) -> Vec<String> {
    let names = fs::read_dir(cluster.pod_file(".")).unwrap();
    let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".crabbox")).collect()
}

#[test]
fn sync_and_command_have_separate_timeouts() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    // The sync takes longer than a command may.
    cluster.behave("slow-exec", "4");
    let limit = "--agent-sandbox-exec-timeout-secs";
    let args = ["run", "--id", "a", limit, "3", "--", "cat", "README"];
    assert_eq!(cluster.crabbox(&args).exits(0).out, "hello\n");
    // The upload waits for a pod that does not answer.
    cluster.behave("hang-exec", "");
    write(&cluster.world.repo().join("new"), "x");
    let mut command = cluster.world.command(&["run", "--id", "a", "--", "true"]);
    command.env("CRABBOX_SYNC_TIMEOUT", "1s");
    let ran = Ran::from(command.output().unwrap()).exits(5);
    let cause = ran.cause();
    assert!(cause.contains("sync did not finish within 1s"), "{cause}");
    ran.never_says("execTimeoutSecs");
    let args = [
        "run",
        "--id",
        "a",
        "--no-sync",
        limit,
        "1",
        "--",
        "sleep",
        "60",
    ];
    let ran = cluster.crabbox(&args).exits(5);
    let cause = ran.cause();
    assert!(cause.contains("command did not end within 1s"), "{cause}");
}

#[test]
fn timing_reports_each_phase() {
    let cluster = Cluster::new();
    let ran = cluster
        .crabbox(&["run", "--timing-json", "--", "true"])
        .exits(0);
    let line = ran.err.lines().rfind(|line| line.starts_with('{')).unwrap();
    let timing: Value = serde_json::from_str(line).unwrap();
    let names = |key: &str| -> Vec<String> {
        let phases = timing[key].as_array().unwrap().iter();
        phases
            .map(|phase| phase["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for name in ["lease", "sync", "command", "release"] {
        assert!(names("phases").contains(&name.to_owned()), "{timing}");
    }
    for name in [
        "manifest",
        "archive",
        "upload_extract",
        "agent_sandbox_sync",
    ] {
        assert!(names("syncPhases").contains(&name.to_owned()), "{timing}");
    }
}

/// Neither the script with its values nor a process.
#[test]
fn a_terminals_command_that_is_cut_off_leaves_nothing() {
    for (number, lost) in [(31, false), (32, true)] {
        let cluster = Cluster::new();
        cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
        // The first call brings the script.
        if lost {
            cluster.behave("fail-exec", "skip 1 cut");
        }
        let mark = mark(number);
        let script = format!("echo started; setsid sleep {mark} & sleep {mark}");
        let limit = [
            "--agent-sandbox-exec-timeout-secs",
            if lost { "600" } else { "3" },
        ];
        let args = [
            &["run", "--id", "a", "--no-sync", "-t"],
            &limit[..],
            &["--", "sh", "-c", &script],
        ]
        .concat();
        let mut shown = on_terminal(cluster.world.command(&args));
        shown.expect("started");
        let (code, shown) = shown.end();
        match lost {
            true => assert!(shown.contains("its exit code is not known"), "{shown}"),
            false => assert!(shown.contains("did not end within 3s"), "{shown}"),
        }
        assert_eq!(code, if lost { 1 } else { 5 }, "{shown}");
        assert!(!shown.contains("still run"), "{shown}");
        assert!(!runs(&mark), "{shown}");
        assert_eq!(left_in_workdir(&cluster), Vec::<String>::new());
    }
}

/// The shell that writes down how the command ended is in the same foreground group, and gets the same signals.
#[test]
fn interrupt_keys_end_only_commands_without_a_handler() {
    let handles = "trap 'echo caught; n=1' INT QUIT; echo ready; while [ -z \"$n\" ]; do sleep 0.05; done; echo goes on; exit 7";
    let (interrupt, quit) = (b"\x03", b"\x1c");
    // It is ready when no shell is left in its process: the one of busybox ignores the second key until it has executed.
    let dies = format!(
        "ulimit -c 0; exec {} -ISc 'import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); print(\"ready\", flush=True); time.sleep(1000)'",
        crate::world::python()
    );
    for shell in ["dash", "bash", "busybox sh"] {
        let program = shell.split(' ').next().unwrap();
        if Command::new(program).arg("--help").output().is_err() {
            blocked(format!("{program} is not installed"));
            continue;
        }
        let cluster = Cluster::new();
        cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
        cluster.behave("shell", shell);
        for (keys, script, code) in [
            (interrupt, handles, 7),
            (quit, handles, 7),
            (interrupt, dies.as_str(), 130),
            (quit, dies.as_str(), 131),
        ] {
            let args = ["run", "--id", "a", "--no-sync", "-t", "--"];
            let args = [&args[..], &["sh", "-c", script]].concat();
            let mut shown = on_terminal(cluster.world.command(&args));
            shown.expect("ready");
            shown.press(keys);
            let (ended, shown) = shown.end();
            assert_eq!(ended, code, "{shell}: {shown}");
            assert_eq!(shown.contains("goes on"), code == 7, "{shell}: {shown}");
            for other in ["terminated with exit code", "is not known"] {
                assert!(!shown.contains(other), "{shell}: {shown}");
            }
            // The command's own shell may say it of what it ran.
            assert!(code == 7 || !shown.contains("Quit"), "{shell}: {shown}");
            assert_eq!(left_in_workdir(&cluster), Vec::<String>::new());
        }
    }
}

#[test]
fn a_run_with_incomplete_output_fails() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.behave("fail-exec", "mute");
    let script = "echo first; exec >/dev/null; echo second";
    let args = ["run", "--id", "a", "--no-sync", "--", "sh", "-c", script];
    let ran = cluster.crabbox(&args).exits(1);
    let said = "ended with 0, but the connection was lost before all of its output arrived";
    assert!(ran.cause().contains(said), "{}", ran.cause());
}

#[test]
fn a_container_of_another_pod_gets_nothing() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let line = "620 600 8:1 /kubelet/pods/other/etc-hosts /etc/hosts rw - ext4 /dev/sda rw\n";
    write(&cluster.world.path("cluster/mountinfo"), line);
    for (flags, said) in [
        (&["--no-sync"][..], "was replaced; nothing was run"),
        (&[], "was replaced; nothing was sent to it"),
    ] {
        let args = [&["run", "--id", "a"], flags, &["--", "true"]].concat();
        let ran = cluster.crabbox(&args).exits(4);
        assert!(ran.cause().contains(said), "{}", ran.cause());
    }
    assert!(!cluster.pod_file("README").exists());
}

/// The script's stdin has no end before it has one itself: it must not be waited for.
#[test]
fn a_workdir_that_cannot_be_made_is_told_at_once() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let file = cluster.world.path("pod/file");
    write(&file, "x");
    let below = file.join("dir");
    let args = [
        "run",
        "--id",
        "a",
        "--no-sync",
        "--workdir",
        below.to_str().unwrap(),
        "--",
        "true",
    ];
    let ran = cluster.crabbox(&args).exits(1);
    let cause = ran.cause();
    assert!(cause.contains("the command was not started"), "{cause}");
    assert!(cause.contains("mkdir"), "{cause}");
}

/// What cannot be removed now is not forgotten: its record is how it is removed later.
#[test]
fn a_lease_that_was_never_ready_and_cannot_be_removed_stays_for_a_stop() {
    let cluster = Cluster::new();
    cluster.behave("no-controller", "");
    cluster.behave("fail-delete", "before\n1\nError from server (Forbidden): x is forbidden: User \"u\" cannot delete resource \"sandboxclaims\" in API group \"g\" in the namespace \"n\"");
    let timeout = ["warmup", "--agent-sandbox-sandbox-ready-timeout", "1s"];
    let ran = cluster.crabbox(&timeout).exits(5);
    assert!(
        ran.cause().contains("class=sandbox_ready_timeout"),
        "{}",
        ran.cause()
    );
    let lease = cluster.world.claim_names().remove(0);
    ran.says(&format!("cleanup of lease {lease} failed as well"))
        .says("RBAC denied: delete sandboxclaims")
        .says(&format!("crabbox stop --provider agent-sandbox {lease}"));
    assert_eq!(cluster.objects("claim").len(), 1);
    cluster.behave_well("fail-delete");
    cluster.crabbox(&["stop", &lease]).exits(0);
    cluster.is_clean();
}

#[test]
fn cleanup_forgets_what_is_missing_only_where_it_was_told_to() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let name = cluster.objects("claim").remove(0);
    fs::remove_file(cluster.world.path("cluster").join(name)).unwrap();
    let clean = |more: &[&str]| {
        let args = [&["cleanup"], more].concat();
        cluster.crabbox(&args).exits(0)
    };
    for more in [&[][..], &["--dry-run"]] {
        let said = clean(more).err;
        assert!(said.contains("skip claim=crabbox-a-"), "{said}");
        assert!(said.contains("missing-or-inaccessible"), "{said}");
    }
    let forget = "--agent-sandbox-forget-missing";
    let said = clean(&[forget, "--dry-run"]).out;
    assert!(said.contains("would delete claim=crabbox-a-"), "{said}");
    assert!(said.contains("reason=missing"), "{said}");
    assert_eq!(cluster.world.claim_names().len(), 1);
    cluster.calls();
    let said = clean(&[forget]).out;
    assert!(said.contains("remove claim=crabbox-a-"), "{said}");
    assert!(!cluster.verbs().contains(&"delete".to_owned()));
    cluster.is_clean();
}

#[test]
fn unsupported_flags_are_refused_by_name_before_any_request() {
    let cluster = Cluster::new();
    for flags in [
        &["--class", "large"][..],
        &["--type", "t3"],
        &["--checksum"],
        &["--browser"],
        &["--desktop"],
        &["--tailscale"],
        &["--actions-runner"],
    ] {
        let args = [&["run"], flags, &["--", "true"]].concat();
        let ran = cluster.crabbox(&args).exits(2);
        let plain = |text: &str| {
            text.trim_start_matches('-')
                .replace('-', " ")
                .to_lowercase()
        };
        assert!(
            plain(ran.cause()).contains(&plain(flags[0])),
            "{}",
            ran.cause()
        );
    }
    assert_eq!(cluster.calls(), Vec::<Vec<String>>::new());
    assert_eq!(cluster.world.claim_names(), Vec::<String>::new());
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.calls();
    let ran = cluster.crabbox(&["ports", "a"]).exits(2);
    let said = "provider=agent-sandbox does not support ports";
    assert!(ran.cause().contains(said), "{}", ran.cause());
    assert!(!cluster.verbs().contains(&"exec".to_owned()));
}

#[test]
fn a_lease_is_found_by_the_name_of_its_claim() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.crabbox(&["warmup", "--slug", "b"]).exits(0);
    let listed = cluster.crabbox(&["list", "--json"]).exits(0).json();
    let of = |slug: &str| {
        let all = listed.as_array().unwrap();
        let one = all.iter().find(|one| one["slug"] == json!(slug)).unwrap();
        one["labels"]["claim"].as_str().unwrap().to_owned()
    };
    let args = [
        "run",
        "--id",
        &of("b"),
        "--no-sync",
        "--",
        "printenv",
        "CRABBOX_LEASE_ID",
    ];
    let said = cluster.crabbox(&args).exits(0).out;
    let lease = said.trim();
    cluster
        .crabbox(&["stop", &of("b")])
        .exits(0)
        .says(&format!("released lease={lease}"));
    assert_eq!(cluster.world.claim_names().len(), 1);
    cluster.crabbox(&["stop", &of("a")]).exits(0);
    cluster.is_clean();
}

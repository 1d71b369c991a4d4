//! agent-sandbox: which objects belong to a lease, and what becomes of them when it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent_sandbox::{Cluster, SAMPLES};
use crate::world::{end, signal, write};

const FIXED: &str = "cbx_0123456789ab";

#[test]
fn lines_name_the_claim_the_sandbox_and_the_pod() {
    let cluster = Cluster::new();
    let ran = cluster.crabbox(&["warmup", "--slug", "kept"]).exits(0);
    let leased = format!("{}{}", ran.out, ran.err);
    assert!(
        leased.contains(" slug=kept provider=agent-sandbox claim=crabbox-kept-"),
        "{leased}"
    );
    assert!(
        leased.contains(" sandbox=linux-pool-") && leased.contains(" pod=linux-pool-"),
        "{leased}"
    );
    let preview = cluster.crabbox(&["cleanup", "--dry-run"]).exits(0);
    assert!(
        preview.err.starts_with("skip claim=crabbox-kept-"),
        "{}",
        preview.err
    );
    cluster
        .crabbox(&["stop", "kept"])
        .exits(0)
        .says(" claim=crabbox-kept-");
}

/// A workdir of the command is no place to sync to.
#[test]
fn another_workdir_is_never_replaced() {
    let cluster = Cluster::new();
    let other = cluster.world.path("pod/other");
    write(&other.join("precious"), "x");
    let ran = cluster
        .crabbox(&["run", "--workdir", other.to_str().unwrap(), "--", "ls"])
        .exits(0);
    assert_eq!(ran.out, "precious\n");
    assert!(cluster.pod_file("README").exists());
}

#[test]
fn a_missing_claim_is_forgotten_by_a_run_that_was_told_to() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let name = cluster.objects("claim").remove(0);
    fs::remove_file(cluster.world.path("cluster").join(name)).unwrap();
    let run = |more: &[&str]| {
        let mut args = vec!["run", "--id", "a"];
        args.extend(more);
        args.extend(["--", "true"]);
        cluster.crabbox(&args).exits(4)
    };
    let ran = run(&[]);
    assert!(
        ran.cause().contains("forgetMissing=false"),
        "{}",
        ran.cause()
    );
    ran.says("--agent-sandbox-forget-missing asbx_");
    assert_eq!(cluster.world.claim_names().len(), 1);
    let ran = run(&["--agent-sandbox-forget-missing"]);
    assert!(
        ran.cause()
            .contains("local claim forgotten, command not run"),
        "{}",
        ran.cause()
    );
    cluster.is_clean();
}

#[test]
fn a_forgotten_id_is_never_used_again() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--lease-id", FIXED]).exits(0);
    cluster.crabbox(&["claims", "forget", FIXED]).exits(0);
    cluster
        .crabbox(&["warmup", "--lease-id", FIXED])
        .exits(2)
        .says("never used again");
}

/// The wait for its pods was cut short; the claim is gone now, and was ours.
#[test]
fn a_deletion_that_was_begun_is_finished_when_the_claim_is_gone() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--lease-id", FIXED]).exits(0);
    // The deletion is answered with a time-out while the claim is still there.
    cluster.behave("fail-delete", "before\n1\nnet/http: TLS handshake timeout");
    assert_ne!(cluster.crabbox(&["stop", FIXED]).code, 0);
    cluster.behave_well("fail-delete");
    for kind in ["claim", "sandbox", "pod"] {
        let name = cluster.objects(kind).remove(0);
        fs::remove_file(cluster.world.path("cluster").join(name)).unwrap();
    }
    cluster.crabbox(&["stop", FIXED]).exits(0);
    cluster.is_clean();
    cluster
        .crabbox(&["warmup", "--lease-id", FIXED])
        .exits(2)
        .says("never used again");
}

/// Recorded, and never sent: the same request finishes it, and a stop says what to do.
#[test]
fn an_intent_without_a_claim_is_finished_by_its_request() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--lease-id", FIXED]).exits(0);
    for kind in ["claim", "sandbox", "pod"] {
        let name = cluster.objects(kind).remove(0);
        fs::remove_file(cluster.world.path("cluster").join(name)).unwrap();
    }
    let path = cluster.world.claim_path(FIXED);
    let mut claim: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    claim["state"] = json!("creating");
    for key in [
        "claim",
        "claim_uid",
        "sandbox",
        "sandbox_uid",
        "pod",
        "pod_uid",
        "container_id",
    ] {
        claim["labels"].as_object_mut().unwrap().remove(key);
    }
    write(&path, claim.to_string());
    cluster
        .crabbox(&["stop", FIXED])
        .exits(4)
        .says(&format!("crabbox claims forget {FIXED}"));
    // Another lease does not sweep it.
    cluster
        .crabbox(&["run", "--no-sync", "--", "true"])
        .exits(0);
    cluster.crabbox(&["warmup", "--lease-id", FIXED]).exits(0);
    assert_eq!(cluster.objects("claim").len(), 1);
    cluster.crabbox(&["stop", FIXED]).exits(0);
}

#[test]
fn a_chosen_id_belongs_to_its_workdir_and_pond() {
    let cluster = Cluster::new();
    let warm = |more: &[&str]| {
        let mut args = vec!["warmup", "--lease-id", FIXED];
        args.extend(more);
        cluster.crabbox(&args)
    };
    warm(&["--pond", "p"]).exits(0);
    warm(&["--pond", "p"]).exits(0);
    warm(&[]).exits(2).says("its pond differs");
    warm(&["--pond", "other"]).exits(2).says("its pond differs");
    warm(&["--pond", "p", "--agent-sandbox-workdir", "/workspace/x"])
        .exits(2)
        .says("its workdir differs");
    let pool = json!({"metadata": {"name": "linux-pool", "uid": "pool-2"}});
    write(
        &cluster.world.path("cluster/pool.linux-pool.json"),
        pool.to_string(),
    );
    warm(&["--pond", "p"])
        .exits(2)
        .says("its warm pool differs");
}

/// The pod is found by the annotation, by the Sandbox's name, or by the selector; and always by its owner.
#[test]
fn a_pod_of_another_name_is_found_by_annotation_and_by_selector() {
    for sample in SAMPLES {
        for by_annotation in [true, false] {
            let cluster = Cluster::of(sample);
            cluster.behave(
                "pod-name",
                if by_annotation {
                    "annotated"
                } else {
                    "selected"
                },
            );
            let warm = cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
            assert!(warm.out.contains(" pod=other-pod"), "{}", warm.out);
            let listed = cluster.crabbox(&["list", "--json"]).exits(0).json();
            assert_eq!(listed[0]["status"], "running");
            assert_eq!(listed[0]["labels"]["pod"], "other-pod");
            let status = cluster.crabbox(&["status", "a", "--json"]).exits(0).json();
            assert_eq!(status["ready"], true);
            cluster
                .crabbox(&["run", "--id", "a", "--", "cat", "README"])
                .exits(0);
            // A pod of another owner is not ours, whatever it is called.
            cluster.edit("pod", |one| {
                one["metadata"]["ownerReferences"][0]["uid"] = json!("other");
            });
            cluster.calls();
            let ran = cluster.crabbox(&[
                "run",
                "--id",
                "a",
                "--agent-sandbox-pod-ready-timeout",
                "1s",
                "--no-sync",
                "--",
                "true",
            ]);
            assert_ne!(ran.code, 0);
            assert!(!cluster.verbs().contains(&"exec".to_owned()));
        }
    }
}

#[test]
fn a_container_is_configured_or_the_pods_default_and_stays_the_same() {
    let cluster = Cluster::new();
    cluster.behave("containers", "first second");
    let container = |cluster: &Cluster| {
        let calls = cluster.calls();
        let exec = calls.iter().rfind(|call| call[0] == "exec").unwrap();
        let flag = exec
            .iter()
            .find(|word| word.starts_with("--container="))
            .unwrap();
        flag["--container=".len()..].to_owned()
    };
    cluster
        .crabbox(&["run", "--no-sync", "--", "true"])
        .exits(0);
    assert_eq!(container(&cluster), "first");
    let second = [
        "run",
        "--no-sync",
        "--agent-sandbox-container",
        "second",
        "--",
        "true",
    ];
    cluster.crabbox(&second).exits(0);
    assert_eq!(container(&cluster), "second");
    let none = [
        "run",
        "--no-sync",
        "--agent-sandbox-container",
        "none",
        "--",
        "true",
    ];
    cluster
        .crabbox(&none)
        .exits(4)
        .says("has no container \"none\"");
    // The annotation names another default, once; then it is pinned.
    cluster.behave("default-container", "second");
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.edit("pod", |one| {
        one["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = json!("first");
    });
    cluster.calls();
    cluster
        .crabbox(&["run", "--id", "a", "--no-sync", "--", "true"])
        .exits(0);
    assert_eq!(container(&cluster), "second");
}

#[test]
fn a_lease_stays_where_a_release_does_not_delete() {
    let cluster = Cluster::new();
    let keep = "--agent-sandbox-delete-on-release=false";
    let ran = cluster
        .crabbox(&["run", "--no-sync", keep, "--", "true"])
        .exits(0);
    ran.says("because deleteOnRelease=false");
    assert_eq!(cluster.objects("claim").len(), 1);
    let lease = cluster.world.claim_names().remove(0);
    cluster.crabbox(&["stop", &lease]).exits(0);
    cluster.is_clean();
}

#[test]
fn cleanup_deletes_what_is_idle_or_over_and_nothing_else() {
    let cluster = Cluster::new();
    for slug in ["idle", "over", "used"] {
        cluster.crabbox(&["warmup", "--slug", slug]).exits(0);
    }
    for (slug, key) in [("idle", "lastUsedAt"), ("over", "expiresAt")] {
        let listed = cluster
            .crabbox(&["claims", "list", "--json"])
            .exits(0)
            .json();
        let leases = listed["claims"].as_array().unwrap().clone();
        let id = leases.iter().find(|one| one["slug"] == slug).unwrap()["leaseId"]
            .as_str()
            .unwrap()
            .to_owned();
        let path = cluster.world.claim_path(&id);
        let mut claim: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert!(claim[key].is_string(), "{claim}");
        claim[key] = json!("2020-01-01T00:00:00Z");
        write(&path, claim.to_string());
        if slug == "over" {
            let name = claim["labels"]["claim"].as_str().unwrap();
            let path = cluster
                .world
                .path("cluster")
                .join(format!("claim.{name}.json"));
            let mut one: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            one["spec"]["lifecycle"]["shutdownTime"] = json!("2020-01-01T00:00:00Z");
            write(&path, one.to_string());
        }
    }
    let preview = cluster.crabbox(&["cleanup", "--dry-run"]).exits(0).out;
    assert_eq!(
        preview.matches("would delete claim=crabbox-").count(),
        2,
        "{preview}"
    );
    let done = cluster.crabbox(&["cleanup"]).exits(0).out;
    assert!(
        done.contains("reason=idle timeout") && done.contains("reason=ttl"),
        "{done}"
    );
    assert!(done.contains("cleanup removed=2"), "{done}");
    assert_eq!(cluster.objects("claim").len(), 1);
}

/// It waits for the command, and then looks at the lease again: the command may have renewed it.
#[test]
fn cleanup_waits_for_a_running_command() {
    for (ends_by_itself, said) in [
        (true, "skip claim=crabbox-busy-"),
        (false, "delete claim=crabbox-busy-"),
    ] {
        let cluster = Cluster::new();
        let lease = cluster.world.warm("busy");
        let idle = cluster.world.warm("idle");
        let script = "echo ready; read line; echo $line";
        let run = [
            "run",
            "--id",
            "busy",
            "--no-sync",
            "-i",
            "--",
            "sh",
            "-c",
            script,
        ];
        let mut run = cluster
            .world
            .command(&run)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        run.stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 6])
            .unwrap();
        cluster.world.age(&lease);
        cluster.world.age(&idle);
        // A preview does not wait.
        let preview = cluster.crabbox(&["cleanup", "--dry-run"]).exits(0).out;
        assert_eq!(preview.matches("would delete claim=").count(), 2);
        // Nor does the sweep of another command.
        cluster
            .crabbox(&["run", "--no-sync", "--", "true"])
            .exits(0);
        let mut cleanup = cluster.world.spawn(&["cleanup"]);
        let mut told = BufReader::new(cleanup.stderr.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        let holder = format!("in use by process {} (crabbox run)\n", run.id());
        let waits = format!("waiting for lease {lease}, {holder}");
        assert_eq!(line, waits);
        // The others are done by then.
        assert_eq!(cluster.world.claim_names(), [lease.as_str()]);
        match ends_by_itself {
            true => run.stdin.take().unwrap().write_all(b"done\n").unwrap(),
            false => signal(&run, Signal::KILL),
        }
        run.wait().unwrap();
        told.read_to_string(&mut line).unwrap();
        let ran = end(cleanup).exits(0);
        let all = format!("{line}{}", ran.out);
        assert!(all.contains(said), "{all}");
        let left = match ends_by_itself {
            true => 1,
            false => 0,
        };
        assert_eq!(cluster.world.claim_names().len(), left, "{all}");
        assert_eq!(cluster.objects("claim").len(), left, "{all}");
    }
}

/// What was there, and is gone before its lease was made or released completely, does not come back.
#[test]
fn a_wait_for_an_unfinished_lease_ends_when_its_claim_is_gone() {
    let cluster = Cluster::new();
    let status = |lease: &str| {
        let args = ["status", "--wait", "--wait-timeout", "30s", lease];
        cluster.crabbox(&args).exits(4)
    };
    let lose_claim = || {
        let name = cluster.objects("claim").remove(0);
        fs::remove_file(cluster.world.path("cluster").join(name)).unwrap();
    };
    cluster.behave("no-controller", "");
    let warmup = cluster.world.spawn(&["warmup"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let lease = loop {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
        let names = cluster.world.claim_names();
        let seen = |name: &&String| {
            let claim = cluster.world.claim(name);
            claim["labels"].get("claim_uid").is_some()
        };
        if let Some(name) = names.iter().find(seen) {
            break name.clone();
        }
    };
    signal(&warmup, Signal::KILL);
    end(warmup);
    lose_claim();
    let ran = status(&lease);
    assert!(ran.cause().contains("is missing"), "{}", ran.cause());
    cluster.crabbox(&["claims", "forget", &lease]).exits(0);
    cluster.behave_well("no-controller");
    cluster.crabbox(&["warmup", "--lease-id", FIXED]).exits(0);
    cluster.behave("fail-delete", "before\n1\nnet/http: TLS handshake timeout");
    assert_ne!(cluster.crabbox(&["stop", FIXED]).code, 0);
    cluster.behave_well("fail-delete");
    lose_claim();
    let list = cluster.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "releasing", "{list}");
    status(FIXED).says(&format!(
        "hint: crabbox stop --provider agent-sandbox {FIXED}"
    ));
    cluster.crabbox(&["stop", FIXED]).exits(0);
}

/// The name is taken by a claim that another one made: it is not adopted, and not deleted.
#[test]
fn a_foreign_claim_is_not_adopted() {
    let cluster = Cluster::new();
    cluster
        .crabbox(&["warmup", "--lease-id", FIXED, "--slug", "a"])
        .exits(0);
    cluster.edit("claim", |one| {
        one["metadata"]["annotations"]["crabbox.dev/recovery-nonce"] = json!("other");
    });
    cluster.crabbox(&["claims", "forget", FIXED]).exits(0);
    // The same name follows from the same slug and id: another state directory knows nothing of the first.
    fs::remove_dir_all(cluster.world.state()).unwrap();
    let ran = cluster
        .crabbox(&["warmup", "--lease-id", FIXED, "--slug", "a"])
        .exits(4);
    assert!(ran.cause().contains("its nonce differs"), "{}", ran.cause());
    assert_eq!(cluster.objects("claim").len(), 1);
}

/// A question that the cluster did not answer says nothing about the lease: not that it is another one's, and not that it
/// will never be ready.
#[test]
fn a_lease_is_not_owned_only_where_that_was_seen() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.behave("fail-get", "once\n1\nnet/http: TLS handshake timeout");
    let wait = ["status", "a", "--wait", "--json"];
    let status = cluster.crabbox(&wait).exits(0).json();
    assert_eq!(status["ready"], true);
    cluster.behave("fail-get", "before\n1\nnet/http: TLS handshake timeout");
    let ran = cluster.crabbox(&["status", "a", "--wait", "--wait-timeout", "1s"]);
    let ran = ran.exits(5).says("TLS handshake timeout");
    let cause = ran.cause();
    assert!(cause.contains("timed out waiting for a"), "{cause}");
    let denied = "before\n1\nError from server (Forbidden): x is forbidden: User \"u\" cannot get resource \"sandboxes\" in API group \"agents.x-k8s.io\" in the namespace \"n\"";
    cluster.behave("fail-get", denied);
    cluster.crabbox(&wait).exits(5).says("RBAC denied");
    // The third call of one look: Sandbox and pod were not found by the first two.
    let hidden: Vec<_> = ["sandbox", "pod"]
        .iter()
        .map(|kind| {
            cluster
                .world
                .path("cluster")
                .join(cluster.objects(kind).remove(0))
        })
        .map(|path| (fs::read_to_string(&path).unwrap(), path))
        .collect();
    for (_, path) in &hidden {
        fs::remove_file(path).unwrap();
    }
    for args in [&["list", "--json"][..], &["status", "a"]] {
        cluster.behave("fail-get", "skip 2\n1\nnet/http: TLS handshake timeout");
        let ran = cluster.crabbox(args).exits(1);
        ran.says("TLS handshake timeout").never_says("not-owned");
        assert!(!cluster.world.path("cluster/behave/fail-get").exists());
    }
    for (text, path) in &hidden {
        write(path, text);
    }
    cluster.edit("claim", |one| one["metadata"]["uid"] = json!("other"));
    let listed = cluster.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(listed[0]["status"], "not-owned");
    cluster
        .crabbox(&["status", "a", "--wait"])
        .exits(5)
        .says("terminal state not-owned");
}

/// Its record is all that keeps the id from another request while its sandbox may be there.
#[test]
fn a_fixed_lease_that_is_not_ready_in_time_goes_on_with_its_own_request_only() {
    let cluster = Cluster::new();
    cluster.behave("no-controller", "");
    let warm = |more: &[&str]| {
        let mut args = vec!["warmup", "--lease-id", FIXED];
        args.extend(more);
        cluster.crabbox(&args)
    };
    let soon = ["--agent-sandbox-sandbox-ready-timeout", "1s"];
    let ran = warm(&soon).exits(5);
    assert!(ran.cause().contains("class=sandbox_ready_timeout"));
    ran.says(&format!("crabbox stop --provider agent-sandbox {FIXED}"));
    assert_eq!(cluster.world.claim_names(), [FIXED]);
    let claims = cluster.objects("claim");
    assert_eq!(claims.len(), 1);
    warm(&["--ttl", "5m"]).exits(2).says("its ttl differs");
    // Also where nothing was created this time.
    cluster.behave("fail-create", "before\n1\nError from server (Forbidden): x is forbidden: User \"u\" cannot create resource \"sandboxclaims\" in API group \"g\" in the namespace \"n\"");
    warm(&soon).exits(5).says("RBAC denied");
    assert_eq!(cluster.world.claim_names(), [FIXED]);
    cluster.behave_well("fail-create");
    cluster.behave_well("no-controller");
    warm(&[]).exits(0);
    assert_eq!(cluster.objects("claim"), claims);
    cluster.crabbox(&["stop", FIXED]).exits(0);
    cluster.is_clean();
}

/// A refusal of the first request has created nothing: nothing is kept.
#[test]
fn a_fixed_lease_that_was_refused_leaves_no_record() {
    let cluster = Cluster::new();
    cluster.behave("fail-create", "before\n1\nError from server (Forbidden): x is forbidden: User \"u\" cannot create resource \"sandboxclaims\" in API group \"g\" in the namespace \"n\"");
    cluster.crabbox(&["warmup", "--lease-id", FIXED]).exits(5);
    cluster.is_clean();
    cluster.behave_well("fail-create");
    cluster
        .crabbox(&["warmup", "--lease-id", FIXED, "--ttl", "5m"])
        .exits(0);
}

/// The controller's conditions decide too, not the clock of this machine alone. What is not ours stays.
#[test]
fn a_claim_that_its_controller_calls_expired_goes() {
    for reason in ["ClaimExpired", "SandboxExpired"] {
        let cluster = Cluster::new();
        let expire = || {
            cluster.edit("claim", |one| {
                one["status"]["conditions"] =
                    json!([{"type": "Ready", "status": "False", "reason": reason, "message": "over"}]);
            });
        };
        cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
        expire();
        let preview = cluster.crabbox(&["cleanup", "--dry-run"]).exits(0).out;
        let said = preview.contains("would delete claim=crabbox-a-");
        assert!(said && preview.contains("reason=expired"), "{preview}");
        let run = ["run", "--id", "a", "--", "true"];
        let ran = cluster.crabbox(&run).exits(4);
        let cause = ran.cause();
        assert!(cause.contains("command not run"), "{cause}");
        assert!(!cluster.verbs().contains(&"exec".to_owned()));
        cluster.is_clean();
        cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
        expire();
        cluster.edit("claim", |one| one["metadata"]["uid"] = json!("other"));
        assert_ne!(cluster.crabbox(&run).code, 0);
        drop(cluster.crabbox(&["cleanup"]));
        assert_eq!(cluster.objects("claim").len(), 1);
        assert_eq!(cluster.world.claim_names().len(), 1);
    }
}

/// The request of a chosen id does not go on with what is over; nor does its id begin anew.
#[test]
fn a_fixed_lease_that_its_controller_calls_expired_is_released_by_its_request() {
    for reason in ["ClaimExpired", "SandboxExpired"] {
        let cluster = Cluster::new();
        let warm = || cluster.crabbox(&["warmup", "--lease-id", FIXED]);
        warm().exits(0);
        cluster.edit("claim", |one| {
            one["status"]["conditions"] =
                json!([{"type": "Ready", "status": "False", "reason": reason, "message": "over"}]);
        });
        let ran = warm().exits(4).says("hint: choose another id");
        let cause = ran.cause();
        assert!(cause.contains("its id is never used again"), "{cause}");
        cluster.is_clean();
        warm().exits(2).says("never used again");
    }
    // Not what has taken its place.
    let cluster = Cluster::new();
    let warm = || cluster.crabbox(&["warmup", "--lease-id", FIXED]);
    warm().exits(0);
    cluster.edit("claim", |one| {
        one["metadata"]["uid"] = json!("other");
        one["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "reason": "ClaimExpired", "message": "over"}]);
    });
    assert_ne!(warm().code, 0);
    assert_eq!(cluster.objects("claim").len(), 1);
    assert_eq!(cluster.world.claim_names(), [FIXED]);
}

//! Leases that exist: whose they are, how long they live, and the proof that they are gone.

use serde_json::json;

use crate::world::{World, write};

#[test]
fn stop_is_rm_with_force_and_proves_it_by_the_list() {
    let world = World::new();
    let lease = world.warm("a");
    let sandbox = world.sandboxes().remove(0);
    world.forget_calls();
    let ran = world.crabbox(&["stop", "a"]).exits(0);
    assert_eq!(ran.out, "");
    assert_eq!(
        ran.last(),
        format!("released lease={lease} sandbox={sandbox}")
    );
    let lines: Vec<_> = world.calls().iter().map(|call| call.line()).collect();
    // Our own engine would be believed without the list.
    let rm = format!("rm --force {sandbox}");
    assert_eq!(lines, ["version", "ls --json", &rm, "ls --json"]);
    world.is_clean();
}

/// The other name of the same command, and its flags where they come to mind.
#[test]
fn release_is_stop_and_flags_may_stand_behind_the_lease() {
    let world = World::new();
    let lease = world.warm("a");
    let ran = world.crabbox(&["release", "a", "--provider", "docker-sandbox"]);
    let ran = ran.exits(0);
    assert!(
        ran.last()
            .starts_with(&format!("released lease={lease} sandbox=")),
        "{}",
        ran.last()
    );
    world.is_clean();
    let lease = world.warm("b");
    let status = world.crabbox(&["status", "b", "--json"]).exits(0).json();
    assert_eq!(status["id"], lease);
    let stopped = world.crabbox(&["stop", "b", "--json"]).exits(0).json();
    assert_eq!(stopped["leaseId"], lease);
    world.is_clean();
}

#[test]
fn an_rm_that_removes_nothing_is_a_failure() {
    let world = World::new();
    let lease = world.warm("a");
    let sandbox = world.sandboxes().remove(0);
    let hint = format!("hint: run `sbx rm --force {sandbox}` to retry cleanup\n");
    world.behave("noop-rm", "yes");
    let ran = world.crabbox(&["stop", "a"]).exits(1);
    assert!(
        ran.cause().contains("the sandbox still exists"),
        "{}",
        ran.cause()
    );
    ran.says(&hint);
    world.behave("fail-before-rm", "1\nbusy");
    world.crabbox(&["stop", "a"]).exits(1).says(&hint);
    world.behave_well("fail-before-rm");
    assert_eq!(world.claim_names(), [lease.as_str()]);
    // The next try gets it.
    world.behave_well("noop-rm");
    world.crabbox(&["stop", &lease]).exits(0);
    world.is_clean();
}

#[test]
fn an_rm_that_fails_after_removing_is_a_success() {
    let world = World::new();
    world.warm("a");
    world.behave("fail-after-rm", "1\nERROR: something about a network");
    world.crabbox(&["stop", "a"]).exits(0);
    world.is_clean();
}

#[test]
fn stop_of_a_sandbox_that_is_gone_forgets_it() {
    let world = World::new();
    world.warm("a");
    world.lose_sandbox(&world.sandboxes()[0]);
    world.crabbox(&["stop", "a"]).exits(0);
    // Not every engine lists everything that it has.
    assert_eq!(world.count("rm"), 1);
    world.is_clean();
}

/// A sandbox that `ls` does not show was dropped without `rm`.
#[test]
fn a_sandbox_that_the_list_does_not_show_is_removed_all_the_same() {
    let world = World::new();
    world.behave("ls-raw", "[]");
    world.crabbox(&["run", "--", "true"]).exits(0);
    assert_eq!(world.events("removed").len(), 1);
    world.is_clean();
    // Nor is it taken for gone when it cannot be removed, whatever the list says.
    world.warm("a");
    world.behave("fail-before-rm", "1\nERROR: daemon not found");
    let lease = world.claim_names().remove(0);
    let ran = world.crabbox(&["stop", "a"]).exits(1);
    assert!(
        ran.cause().ends_with("ERROR: daemon not found"),
        "{}",
        ran.err
    );
    ran.says("hint: crabbox claims forget a removes only the record");
    assert_eq!(world.claim_names(), [lease]);
    world.behave_well("fail-before-rm");
    world.crabbox(&["stop", "a"]).exits(0);
    world.is_clean();
}

#[test]
fn only_claimed_sandboxes_are_ours() {
    let world = World::new();
    world.foreign_sandbox("crabbox-my-app-000000");
    assert_eq!(world.crabbox(&["list", "--json"]).ok(), "[]\n");
    let words = "docker-sandbox sandbox \"crabbox-my-app-000000\" is not claimed by Crabbox; use a Crabbox slug or dsbx_<sandbox-name>";
    for args in [
        &["stop", "crabbox-my-app-000000"][..],
        &["status", "crabbox-my-app-000000"],
        &["run", "--id", "crabbox-my-app-000000", "--", "true"],
        &["ports", "--id", "crabbox-my-app-000000"],
        &["cp", "--id", "crabbox-my-app-000000", "SANDBOX:/a", "b"],
    ] {
        let ran = world.crabbox(args).exits(4);
        assert_eq!(ran.cause(), words);
    }
    world.crabbox(&["cleanup"]).exits(0);
    assert_eq!(world.sandboxes(), ["crabbox-my-app-000000"]);
    let verbs: Vec<_> = world
        .calls()
        .iter()
        .map(|call| call.verb().to_owned())
        .collect();
    assert!(verbs.iter().all(|verb| verb == "ls"), "{verbs:?}");
}

#[test]
fn a_lease_belongs_to_a_repository_until_it_is_reclaimed() {
    let world = World::new();
    let lease = world.warm("mine");
    let other = world.path("other");
    std::fs::create_dir_all(other.join(".git")).unwrap();
    let ran = world
        .within(&other, &["run", "--id", "mine", "--", "true"])
        .exits(2);
    assert_eq!(
        ran.cause(),
        format!(
            "lease {lease} is claimed by repo {}; use --reclaim to claim it for {}",
            world.repo().display(),
            other.display()
        )
    );
    assert_eq!(world.count("exec"), 0);
    world
        .within(&other, &["run", "--id", "mine", "--reclaim", "--", "true"])
        .exits(0);
    assert_eq!(world.claim(&lease)["repoRoot"], other.display().to_string());
    world
        .crabbox(&["run", "--id", "mine", "--", "true"])
        .exits(2);
}

#[test]
fn use_renews_the_idle_time_and_not_the_ttl() {
    let world = World::new();
    let lease = world.warm("a");
    world.edit_claim(&lease, |claim| {
        claim["lastUsedAt"] = "2020-01-01T00:00:00Z".into()
    });
    let before = world.claim(&lease);
    world
        .crabbox(&["run", "--id", "a", "--idle-timeout", "5m", "--", "true"])
        .exits(0);
    let after = world.claim(&lease);
    assert_ne!(after["lastUsedAt"], before["lastUsedAt"]);
    assert_ne!(after["revision"], before["revision"]);
    assert_eq!(after["expiresAt"], before["expiresAt"]);
    assert_eq!(after["idleTimeoutSeconds"], 300);
    world.edit_claim(&lease, |claim| {
        claim["expiresAt"] = "2020-01-01T00:00:00Z".into()
    });
    let ran = world.crabbox(&["run", "--id", "a", "--", "true"]).exits(4);
    assert_eq!(
        ran.cause(),
        format!("lease {lease} reached its TTL expiry; command not run")
    );
}

#[test]
fn cleanup_removes_what_is_due_and_nothing_else() {
    let world = World::new();
    let (idle, old, young) = (world.warm("idle"), world.warm("old"), world.warm("young"));
    world.foreign_sandbox("crabbox-my-app-ffffff");
    world.age(&idle);
    world.edit_claim(&old, |claim| {
        claim["expiresAt"] = "2020-01-01T00:00:00Z".into()
    });
    world.forget_calls();
    let skipped = format!("skip lease={young} reason=idle timeout not reached\n");
    let dry = world.crabbox(&["cleanup", "--dry-run"]).exits(0);
    assert_eq!(dry.err, skipped);
    let dry = dry.out;
    for (lease, reason) in [(&idle, "idle"), (&old, "ttl")] {
        let line = dry
            .lines()
            .find(|line| line.contains(lease.as_str()))
            .unwrap();
        assert!(
            line.starts_with("would delete lease=") && line.contains(reason),
            "{line}"
        );
    }
    assert!(
        world.calls().iter().all(|call| call.verb() == "ls"),
        "a dry run only looks"
    );
    let cleaned = world.crabbox(&["cleanup"]).exits(0);
    assert_eq!(cleaned.err, skipped);
    let out = cleaned.out;
    assert_eq!(
        out.lines()
            .filter(|line| line.starts_with("delete lease="))
            .count(),
        2
    );
    assert_eq!(
        out.lines().last().unwrap(),
        "docker-sandbox cleanup removed=2 checked=3"
    );
    assert_eq!(world.claim_names(), [young]);
    assert_eq!(world.sandboxes().len(), 2);
    assert_eq!(
        world.crabbox(&["cleanup", "--json"]).exits(0).json()["checked"],
        1
    );
}

#[test]
fn cleanup_tells_programs_of_each_lease() {
    let world = World::new();
    let (old, young) = (world.warm("old"), world.warm("young"));
    world.age(&old);
    write(&world.claim_path("dsbx_damaged"), "{");
    let entry = |lease: &String, slug: &str, action: &str, reason: &str| {
        let sandbox = lease.strip_prefix("dsbx_").unwrap();
        json!({"leaseId": lease, "slug": slug, "sandbox": sandbox, "action": action, "reason": reason})
    };
    let told = |args: &[&str]| {
        let mut told = world.crabbox(args).exits(0).json();
        let entries = told["entries"].as_array_mut().unwrap();
        let damaged = entries.remove(0);
        assert_eq!(
            (&damaged["file"], &damaged["action"]),
            (&json!("dsbx_damaged.json"), &json!("skip"))
        );
        entries.sort_by_key(|entry| entry["slug"].to_string());
        told
    };
    let not_yet = entry(&young, "young", "skip", "idle timeout not reached");
    assert_eq!(
        told(&["cleanup", "--dry-run", "--json"]),
        json!({
            "provider": "docker-sandbox", "dryRun": true, "removed": 0, "checked": 2, "failed": 0,
            "entries": [entry(&old, "old", "would-delete", "idle timeout"), not_yet],
        })
    );
    assert_eq!(
        told(&["cleanup", "--json"]),
        json!({
            "provider": "docker-sandbox", "dryRun": false, "removed": 1, "checked": 2, "failed": 0,
            "entries": [entry(&old, "old", "delete", "idle timeout"), not_yet],
        })
    );
    world.age(&young);
    world.behave("fail-before-rm", "1\nbusy token=abcd1234secret");
    let ran = world
        .crabbox(&["cleanup", "--json"])
        .exits(1)
        .never_says("abcd1234");
    let json = ran.json();
    assert_eq!(
        (&json["failed"], &json["entries"][1]["action"]),
        (&json!(1), &json!("skip"))
    );
    let reason = json["entries"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("busy"), "{reason}");
}

#[test]
fn status_tells_and_waits() {
    let world = World::new();
    let lease = world.warm("a");
    assert_eq!(
        world
            .crabbox(&["status", "--id", "a", "--json"])
            .exits(0)
            .json()["id"],
        lease
    );
    assert_eq!(
        world
            .crabbox(&["status", "a", "--wait", "--json"])
            .exits(0)
            .json()["ready"],
        true
    );
    let ran = world.crabbox(&["status"]).exits(2);
    assert!(
        ran.cause().starts_with("usage: crabbox status"),
        "{}",
        ran.cause()
    );
    let path = world
        .path("engine/sandboxes")
        .join(format!("{}.json", world.sandboxes()[0]));
    let one = std::fs::read_to_string(&path).unwrap();
    write(&path, one.replace("running", "starting"));
    let ran = world
        .crabbox(&["status", "a", "--wait", "--wait-timeout", "10ms"])
        .exits(5);
    assert_eq!(ran.cause(), "timed out waiting for a to become ready");
    write(&path, one.replace("running", "failed"));
    let ran = world.crabbox(&["status", "a", "--wait"]).exits(5);
    assert_eq!(
        ran.cause(),
        "lease a reached terminal state failed before ready"
    );
    let name = world.sandboxes().remove(0);
    world.lose_sandbox(&name);
    let said = format!("docker-sandbox sandbox {name:?} is not present in sbx inventory");
    for args in [&["status", "a"][..], &["run", "--id", "a", "--", "true"]] {
        assert_eq!(world.crabbox(args).exits(4).cause(), said);
    }
}

/// `run --id` would refuse it, so it is never reported as ready.
#[test]
fn a_lease_past_its_ttl_is_expired_and_not_ready() {
    let world = World::new();
    let lease = world.warm("a");
    let idle = world.warm("b");
    world.age(&idle);
    world.edit_claim(&lease, |claim| {
        claim["expiresAt"] = "2020-01-01T00:00:00Z".into()
    });
    let status = |slug| world.crabbox(&["status", slug, "--json"]).exits(0).json();
    let (old, unused) = (status("a"), status("b"));
    assert_eq!(
        (&old["state"], &old["ready"]),
        (&"expired".into(), &false.into())
    );
    // The next use ends that one's idleness.
    assert_eq!(
        (&unused["state"], &unused["ready"]),
        (&"running".into(), &true.into())
    );
    let line = world.crabbox(&["status", "a"]).exits(0).out;
    assert!(
        line.contains(" state=expired ") && line.contains(" ready=false "),
        "{line}"
    );
    let ran = world.crabbox(&["status", "a", "--wait"]).exits(5);
    assert_eq!(
        ran.cause(),
        "lease a reached terminal state expired before ready"
    );
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    let listed = list
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["slug"] == "a")
        .unwrap();
    assert_eq!(
        (&listed["status"], &listed["labels"]["state"]),
        (&"expired".into(), &"expired".into())
    );
    world.crabbox(&["run", "--id", "a", "--", "true"]).exits(4);
    world.crabbox(&["run", "--id", "b", "--", "true"]).exits(0);
}

#[test]
fn claims_are_private_files() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let lease = world.warm("a");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&world.claim_path(&lease)), 0o600);
    assert_eq!(mode(&world.state().join("claims")), 0o700);
    let claim = world.claim(&lease);
    assert_eq!(claim["leaseID"], lease);
    assert_eq!(claim["revision"].as_str().unwrap().len(), 32);
    assert_eq!(claim["provider"], "docker-sandbox");
    assert_eq!(claim["repoRoot"], world.repo().display().to_string());
    let text = std::fs::read_to_string(world.claim_path(&lease)).unwrap();
    assert!(
        text.ends_with("}\n") && text.contains("\n  \""),
        "pretty: {text}"
    );
}

#[test]
fn every_run_says_the_idle_time_anew() {
    let world = World::new();
    world
        .crabbox(&["warmup", "--slug", "a", "--idle-timeout", "5m"])
        .exits(0);
    let lease = world.claim_names().remove(0);
    assert_eq!(world.claim(&lease)["idleTimeoutSeconds"], 300);
    let run = |flags: &[&str]| {
        let args = [&["run", "--id", "a"], flags, &["--", "true"]].concat();
        world.crabbox(&args).exits(0);
        world.claim(&lease)["idleTimeoutSeconds"].as_u64().unwrap()
    };
    assert_eq!(run(&[]), 1800);
    assert_eq!(run(&["--idle-timeout", "7m"]), 420);
}

#[test]
fn a_list_that_hangs_takes_no_longer_than_the_wait() {
    let world = World::new();
    world.warm("w");
    let _gate = world.gate("ls", "before");
    let started = std::time::Instant::now();
    let late = world
        .crabbox(&["status", "w", "--wait", "--wait-timeout", "1s"])
        .exits(5);
    assert!(started.elapsed() < std::time::Duration::from_secs(30));
    assert!(
        late.cause()
            .starts_with("timed out waiting for w to become ready: `sbx ls"),
        "{}",
        late.err
    );
    late.says("hint: the sandbox control plane did not respond");
}

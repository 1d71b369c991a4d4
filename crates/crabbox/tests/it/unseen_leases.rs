//! Leases that no look at the engine would show, and how each is ended.

use std::fs;

use crate::world::{World, end, write};

fn names(world: &World, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(world.state().join(dir)).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_lease_whose_sandbox_was_removed_is_listed_and_ended_by_stop_and_cleanup() {
    let world = World::new();
    let [lease, _] = ["a", "b"].map(|slug| {
        let lease = world.warm(slug);
        world.lose_sandbox(lease.strip_prefix("dsbx_").unwrap());
        lease
    });
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    let states: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["status"])
        .collect();
    assert_eq!(states, ["missing", "missing"]);
    assert!(world.crabbox(&["list"]).ok().contains(" missing "));
    // It holds its slug, and the hint ends it.
    let taken = world.crabbox(&["warmup", "--slug", "a"]).exits(2);
    let taken = taken.says(&format!("crabbox stop {lease}"));
    assert!(taken.cause().contains("is taken by lease"), "{}", taken.err);
    world
        .crabbox(&["stop", "a"])
        .exits(0)
        .says("released lease=");
    let dry = world.crabbox(&["cleanup", "--dry-run"]).ok();
    assert!(
        dry.contains("would delete lease=") && dry.contains("reason=sandbox is gone"),
        "{dry}"
    );
    let cleaned = world.crabbox(&["cleanup"]).ok();
    assert!(cleaned.contains("removed=1"), "{cleaned}");
    world.is_clean();
}

/// By an engine that is none: it creates nothing, lists nothing and removes nothing.
#[test]
fn a_claim_that_a_wrong_engine_left_is_listed_with_the_command_that_ends_it() {
    let world = World::new();
    for verb in ["create", "ls", "rm"] {
        world.behave(&format!("fail-before-{verb}"), "3\nsbx: not this sbx");
    }
    world
        .crabbox(&["run", "--slug", "stuck", "--", "true"])
        .exits(1);
    let list = world.crabbox(&["list", "--json"]).exits(1);
    assert_eq!(list.json()[0]["status"], "creating", "{}", list.out);
    let list = world.crabbox(&["list"]).exits(1);
    assert!(
        list.out.contains(" creating ") && list.out.contains("slug=stuck"),
        "{}",
        list.out
    );
    assert!(list.cause().contains("not this sbx"), "{}", list.err);
    let forget = "hint: crabbox claims forget stuck removes only the record";
    world.crabbox(&["stop", "stuck"]).exits(1).says(forget);
    world.crabbox(&["cleanup"]).exits(1).says(forget);
    world.crabbox(&["claims", "forget", "stuck"]).exits(0);
    world.is_clean();
}

/// One engine that does not answer hides no lease of another one.
#[test]
fn an_engine_that_fails_hides_no_other_lease() {
    let world = World::new();
    world.warm("good");
    let lease = world.warm("bad");
    let broken = world.path("broken/sbx");
    write(&broken, "#!/bin/sh\necho broken >&2\nexit 1\n");
    fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    world.edit_claim(&lease, |claim| {
        claim["labels"]["engine"] = broken.display().to_string().into();
    });
    let list = world.crabbox(&["list", "--json"]).exits(1).json();
    let state = |slug: &str| {
        let mut all = list.as_array().unwrap().iter();
        all.find(|one| one["slug"] == slug).unwrap()["status"].clone()
    };
    assert_eq!(
        (state("good"), state("bad")),
        ("running".into(), "unknown".into()),
        "{list}"
    );
}

#[test]
fn leases_of_other_providers_are_counted() {
    let world = World::new();
    let lease = world.warm("a");
    world.edit_claim(&lease, |claim| claim["provider"] = "elsewhere".into());
    let listed = world.crabbox(&["list"]).exits(0);
    assert_eq!(
        listed.last(),
        "note: 1 lease of provider=elsewhere: crabbox list --provider elsewhere"
    );
    assert_eq!(world.crabbox(&["list", "--json"]).exits(0).err, "");
}

#[test]
fn lock_files_go_with_their_leases() {
    let world = World::new();
    let left = world
        .state()
        .join("claim-locks/dsbx_crabbox-my-app-000000.operation.lock");
    world.crabbox(&["run", "--", "true"]).exits(0);
    write(&left, "");
    for _ in 0..2 {
        world.crabbox(&["run", "--", "true"]).exits(0);
    }
    world.warm("a");
    world.crabbox(&["run", "--id", "a", "--", "true"]).exits(0);
    world.crabbox(&["stop", "a"]).exits(0);
    assert_eq!(names(&world, "claim-locks"), ["slug-allocation.lock"]);
}

/// The original writes fewer fields, and ends its leases by rules of its own.
#[test]
fn cleanup_leaves_what_another_program_kept() {
    let world = World::new();
    let lease = world.warm("theirs");
    world.age(&lease);
    world.edit_claim(&lease, |claim| {
        let claim = claim.as_object_mut().unwrap();
        for ours in ["state", "keep", "ttlSeconds", "expiresAt", "creator"] {
            claim.remove(ours);
        }
    });
    let reason = "reason=kept by another program; crabbox stop --provider docker-sandbox theirs";
    for args in [&["cleanup", "--dry-run"][..], &["cleanup"]] {
        let cleaned = world.crabbox(args).exits(0);
        cleaned.says(&format!("skip lease={lease} {reason}\n"));
    }
    world.crabbox(&["run", "--", "true"]).exits(0);
    assert_eq!(world.claim_names(), [lease]);
    world.crabbox(&["stop", "theirs"]).exits(0);
    world.is_clean();
}

/// After 30 s of idle time each run writes its use down, and so does the other one.
#[test]
fn two_terminals_use_an_idle_lease_at_once() {
    let world = World::new();
    let lease = world.warm("a");
    for _ in 0..3 {
        world.age(&lease);
        let run = || world.spawn(&["run", "--id", "a", "--", "echo", "x"]);
        let runs: Vec<_> = (0..6).map(|_| run()).collect();
        for run in runs {
            let ran = end(run).exits(0).never_says("claim changed");
            assert_eq!(ran.out, "x\n");
        }
        assert_ne!(world.claim(&lease)["lastUsedAt"], "2020-01-01T00:00:00Z");
    }
}

//! Runs: what happens in which order, and what is left after each failure.

use std::time::Duration;

use crabbox_core::claims::State;
use crabbox_core::lifecycle::Keep;
use crabbox_core::provider::SyncMode;
use crabbox_core::sync::Limits;
use crabbox_core::{Code, Failure};

use crate::fake::{Bench, Ran, Run, When, write};

fn phase_names(ran: &Ran) -> Vec<&str> {
    let phases = ran.outcome.timing.phases.iter();
    phases.map(|phase| phase.name.as_str()).collect()
}

fn sync_phase_names(ran: &Ran) -> Vec<&str> {
    let phases = ran.outcome.timing.sync_phases.iter();
    phases.map(|phase| phase.name.as_str()).collect()
}

#[test]
fn a_fresh_run_is_verified_before_every_use_and_leaves_nothing() {
    let bench = Bench::new();
    let ran = bench.run(Run::default());
    assert_eq!(ran.outcome.ended, Ok(0));
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("0 input\n", "on stderr\n")
    );
    assert_eq!(
        bench.calls(),
        [
            "plan",
            "create",
            "poll_ready",
            "verify upload",
            "upload",
            "verify replace",
            "replace",
            "verify upload",
            "discard",
            "verify exec",
            "exec",
            "verify remove",
            "remove"
        ]
    );
    assert_eq!(
        phase_names(&ran),
        ["prepare", "lease", "sync", "command", "release", "other"]
    );
    assert_eq!(
        sync_phase_names(&ran),
        [
            "manifest",
            "preflight",
            "archive",
            "upload",
            "extract",
            "replace",
            "cleanup",
            "test_archive_sync"
        ]
    );
    let timing = &ran.outcome.timing;
    assert!(!timing.sync_skipped && !timing.sync_delegated);
    assert_eq!(
        timing.phases.iter().map(|phase| phase.ms).sum::<u64>(),
        timing.end_to_end_ms
    );
    // The release is not part of what the original calls the total.
    let release = timing.phases.iter().find(|phase| phase.name == "release");
    assert!(timing.total_ms + release.unwrap().ms <= timing.end_to_end_ms + 1);
    assert!(bench.claims().is_empty() && bench.fake.world().sandboxes.is_empty());
    assert_eq!(bench.temporary_files(), 0);
    let said = bench.said();
    assert!(
        said.contains(&"sync candidate: 1 files, 1 B".to_owned()),
        "{said:?}"
    );
    assert!(
        said.iter()
            .any(|line| line.starts_with("sync complete in ")),
        "{said:?}"
    );
}

/// A call, how it fails, and what is left: claims with their states, and sandboxes.
type Case = (&'static str, When, Code, &'static [State], usize);

#[test]
fn every_failed_call_leaves_what_it_must_and_no_more() {
    use When::{After, Before, Halfway};
    let cases: &[Case] = &[
        ("validate", Before, Code::Config, &[], 0),
        ("plan", Before, Code::Provider, &[], 0),
        ("create", Before, Code::Provider, &[], 0),
        // The answer was lost: the sandbox is found by its name and removed.
        ("create", After, Code::Provider, &[], 0),
        ("poll_ready", Before, Code::Provider, &[], 0),
        ("verify upload", Before, Code::Provider, &[], 0),
        ("upload", Before, Code::Provider, &[], 0),
        ("upload", Halfway, Code::Provider, &[], 0),
        ("upload", After, Code::Provider, &[], 0),
        ("verify replace", Before, Code::Provider, &[], 0),
        ("replace", Before, Code::Provider, &[], 0),
        ("replace", Halfway, Code::Provider, &[], 0),
        ("replace", After, Code::Provider, &[], 0),
        ("verify exec", Before, Code::Provider, &[], 0),
        ("exec", Before, Code::Provider, &[], 0),
        ("exec", After, Code::Provider, &[], 0),
    ];
    for (call, when, code, states, sandboxes) in cases {
        let bench = Bench::new();
        bench.fail(call, *when);
        let ran = bench.run(Run::default());
        let failure = ran.outcome.ended.unwrap_err();
        let context = format!("{call} {when:?}: {failure}");
        assert_eq!(failure.code, *code, "{context}");
        assert!(
            failure.to_string().contains(&format!("{call} failed")),
            "{context}"
        );
        let left: Vec<_> = bench.claims().iter().map(|claim| claim.state).collect();
        assert_eq!(left, *states, "{context}");
        assert_eq!(bench.fake.world().sandboxes.len(), *sandboxes, "{context}");
        assert_eq!(
            ran.outcome.timing.exit_code,
            i32::from(code.exit_code()),
            "{context}"
        );
        let ran_a_command = bench.calls().iter().any(|name| name == "exec");
        assert_eq!(ran_a_command, *call == "exec", "{context}");
        assert_eq!(bench.temporary_files(), 0, "{context}");
    }
}

#[test]
fn a_sandbox_that_cannot_be_removed_keeps_its_claim() {
    // After a lost answer to create, and after a command.
    let bench = Bench::new();
    bench.fail("create", When::After);
    bench.fail("remove", When::Before);
    let ran = bench.run(Run::default());
    let failure = ran.outcome.ended.unwrap_err();
    assert!(
        failure
            .to_string()
            .contains("cleanup of lease t_box-1 failed as well: remove failed"),
        "{failure}"
    );
    assert_eq!(
        failure.hints,
        ["crabbox stop --provider test-archive t_box-1"]
    );
    assert_eq!(bench.claims()[0].state, State::Creating);
    assert!(ran.outcome.session.is_none());

    let bench = Bench::new();
    bench.fail("remove", When::Before);
    let ran = bench.run(Run::default());
    let failure = ran.outcome.ended.unwrap_err();
    assert_eq!(
        failure.message,
        "test-archive rm failed for box-1: remove failed"
    );
    assert_eq!((failure.exit_code(), ran.outcome.timing.exit_code), (1, 1));
    assert_eq!(bench.claims()[0].state, State::Ready);
    assert!(ran.outcome.session.unwrap().kept);
}

#[test]
fn a_failed_replacement_is_rolled_back() {
    for when in [When::Before, When::Halfway, When::After] {
        let bench = Bench::new();
        let lease = bench.warmup();
        let id = lease.lease_id.as_str();
        let old = bench.run(Run {
            id: Some(id),
            ..Run::default()
        });
        assert_eq!(old.outcome.ended, Ok(0));
        let before = bench.sandbox("box-1").unwrap().tree;
        write(bench.repo.path(), "b.txt", "b");
        bench.fail("replace", when);
        let ran = bench.run(Run {
            id: Some(id),
            ..Run::default()
        });
        assert_eq!(
            ran.outcome.ended.unwrap_err().to_string(),
            "replace failed",
            "{when:?}"
        );
        let sandbox = bench.sandbox("box-1").unwrap();
        assert_eq!(sandbox.tree, before, "{when:?}");
        assert!(sandbox.previous.is_none() && sandbox.staged.is_none() && !sandbox.archive);
        assert_eq!(bench.claims()[0].state, State::Ready);
    }
}

#[test]
fn the_old_tree_is_never_discarded_when_it_could_not_be_put_back() {
    let bench = Bench::new();
    let lease = bench.warmup();
    let id = lease.lease_id.as_str();
    bench.run(Run {
        id: Some(id),
        ..Run::default()
    });
    bench.calls();
    bench.fail("replace", When::Halfway);
    bench.fail("roll_back", When::Before);
    let ran = bench.run(Run {
        id: Some(id),
        ..Run::default()
    });
    let failure = ran.outcome.ended.unwrap_err();
    assert_eq!(
        failure.to_string(),
        "replace failed; the workspace of lease t_box-1 may be incomplete, because the old tree could not be put back: \
         roll_back failed"
    );
    assert!(bench.sandbox("box-1").unwrap().previous.is_some());
    assert!(!bench.calls().contains(&"discard".to_owned()));
}

#[test]
fn leftovers_that_stay_are_a_warning_and_the_command_runs() {
    let bench = Bench::new();
    bench.fail("discard", When::Before);
    let ran = bench.run(Run::default());
    assert_eq!(ran.outcome.ended, Ok(0));
    let said = bench.said();
    let warning = "warning: cannot remove temporary sync files in lease t_box-1: discard failed";
    assert!(said.iter().any(|line| line == warning), "{said:?}");
}

#[test]
fn a_sandbox_that_was_replaced_gets_nothing() {
    let bench = Bench::new();
    let lease = bench.warmup();
    bench.fake.world().sandboxes.get_mut("box-1").unwrap().uid = "another".to_owned();
    bench.calls();
    let ran = bench.run(Run {
        id: Some(lease.lease_id.as_str()),
        ..Run::default()
    });
    let failure = ran.outcome.ended.unwrap_err();
    assert_eq!(failure.code, Code::NotOwned, "{failure}");
    assert_eq!(bench.calls(), ["verify reuse"]);
    // Nothing was said about the lease: the claim is as it was.
    assert_eq!(bench.claims(), [lease]);
}

#[test]
fn readiness_has_a_deadline() {
    let bench = Bench::new();
    bench.fake.world().polls = u32::MAX;
    let failure = bench.run(Run::default()).outcome.ended.unwrap_err();
    assert_eq!(failure.code, Code::Timeout);
    let message = failure.to_string();
    assert!(
        message.starts_with("lease t_box-1 was not ready within "),
        "{message}"
    );
    assert!(message.ends_with(" (waiting for the pod)"), "{message}");
    assert!(bench.claims().is_empty() && bench.fake.world().sandboxes.is_empty());
    let bench = Bench::new();
    bench.fake.world().polls = 3;
    assert_eq!(bench.run(Run::default()).outcome.ended, Ok(0));
    let polls = bench
        .calls()
        .iter()
        .filter(|name| *name == "poll_ready")
        .count();
    assert_eq!(polls, 4);
}

#[test]
fn what_is_too_large_costs_no_sandbox() {
    let mut bench = Bench::new();
    bench.options.limits = Limits {
        fail_files: 1,
        ..Limits::default()
    };
    let ran = bench.run(Run::default());
    assert_eq!(ran.outcome.ended.as_ref().unwrap_err().code, Code::Sync);
    assert_eq!(bench.calls(), [""; 0]);
    assert!(bench.claims().is_empty());
    assert_eq!(phase_names(&ran), ["prepare", "other"]);
}

#[test]
fn a_sync_that_takes_too_long_is_cut_short() {
    // Packing counts too: where that alone takes so long, the next try has more time.
    let cut_short = |timeout: Duration| {
        let mut bench = Bench::new();
        bench.options.timeout = Some(timeout);
        bench.fake.world().upload_delay = Duration::from_secs(600);
        let failure = bench.run(Run::default()).outcome.ended.unwrap_err();
        assert_eq!(failure.code, Code::Timeout);
        let told = format!("sync did not finish within {timeout:?}: upload cut short");
        failure.to_string() == told && bench.calls().contains(&"discard".to_owned())
    };
    let timeouts = [50, 900].map(Duration::from_millis);
    assert!(timeouts.into_iter().any(cut_short));
}

#[test]
fn files_that_are_gone_here_stay_only_without_delete() {
    for (mode, stays) in [(SyncMode::Replace, false), (SyncMode::Merge, true)] {
        let mut bench = Bench::new();
        bench.options.mode = mode;
        let lease = bench.warmup();
        let id = lease.lease_id.as_str();
        for _ in 0..2 {
            let run = Run {
                id: Some(id),
                command: None,
                ..Run::default()
            };
            assert_eq!(bench.run(run).outcome.ended, Ok(0));
            std::fs::rename(
                bench.repo.path().join("a.txt"),
                bench.repo.path().join("b.txt"),
            )
            .ok();
        }
        let tree = bench.sandbox("box-1").unwrap().tree;
        assert_eq!(tree.contains_key("a.txt"), stays, "{mode:?}");
        assert!(tree.contains_key("b.txt"));
        let replaced = bench.calls().contains(&"replace".to_owned());
        assert_eq!(replaced, mode == SyncMode::Replace);
    }
}

#[test]
fn sync_only_runs_no_command_and_says_where() {
    let bench = Bench::new();
    let ran = bench.run(Run {
        command: None,
        keep: Keep::Yes,
        ..Run::default()
    });
    assert_eq!(ran.outcome.ended, Ok(0));
    assert_eq!(ran.outcome.synced.as_deref(), Some("/remote/dir"));
    assert!(!bench.calls().contains(&"exec".to_owned()));
    assert_eq!(bench.sandbox("box-1").unwrap().tree["a.txt"], "a");
}

#[test]
fn an_unchanged_tree_is_not_sent_again_until_a_command_ran() {
    let mut bench = Bench::new();
    let lease = bench.warmup();
    let id = lease.lease_id.as_str();
    let sync = || bench_run(&bench, id, None);
    assert!(!sync().outcome.timing.sync_skipped);
    let again = sync();
    assert!(again.outcome.timing.sync_skipped);
    assert_eq!(
        again.outcome.timing.sync_phases[0].reason.as_deref(),
        Some("unchanged")
    );
    let with_command = bench_run(&bench, id, Some("0"));
    assert!(with_command.outcome.timing.sync_skipped);
    // The command may have changed the tree.
    assert!(!sync().outcome.timing.sync_skipped);
    assert!(!bench.sandbox("box-1").unwrap().tree.contains_key("made"));
    write(bench.repo.path(), "a.txt", "other");
    assert!(!bench_run(&bench, id, None).outcome.timing.sync_skipped);
    bench.options.fingerprint = false;
    assert!(!bench_run(&bench, id, None).outcome.timing.sync_skipped);
}

fn bench_run(bench: &Bench, id: &str, command: Option<&str>) -> Ran {
    let ran = bench.run(Run {
        id: Some(id),
        command,
        ..Run::default()
    });
    assert_eq!(ran.outcome.ended, Ok(0));
    ran
}

#[test]
fn no_sync_only_makes_the_directory() {
    let bench = Bench::new();
    let ran = bench.run(Run {
        sync: false,
        ..Run::default()
    });
    assert_eq!(ran.outcome.ended, Ok(0));
    let calls = bench.calls();
    assert!(calls.contains(&"ensure_workdir".to_owned()), "{calls:?}");
    assert!(!calls.contains(&"upload".to_owned()), "{calls:?}");
    let phase = &ran.outcome.timing.sync_phases[0];
    assert_eq!(phase.reason.as_deref(), Some("--no-sync"));
    bench.fail("ensure_workdir", When::Before);
    let failure: Failure = bench
        .run(Run {
            sync: false,
            ..Run::default()
        })
        .outcome
        .ended
        .unwrap_err();
    assert_eq!(failure.to_string(), "ensure_workdir failed");
}

#[test]
fn a_failed_sync_is_a_failure_for_keep_on_failure() {
    let bench = Bench::new();
    bench.fail("upload", When::Halfway);
    let ran = bench.run(Run {
        keep: Keep::OnFailure,
        ..Run::default()
    });
    assert!(ran.outcome.session.unwrap().kept);
    let claims = bench.claims();
    assert_eq!((claims[0].state, claims[0].keep), (State::Ready, true));
    let said = bench.said();
    assert!(
        said.iter()
            .any(|line| line.starts_with("keep-on-failure: kept lease=t_box-1")),
        "{said:?}"
    );
}

#[test]
fn a_commands_exit_code_is_not_a_provider_failure() {
    let bench = Bench::new();
    let ran = bench.run(Run {
        command: Some("7"),
        ..Run::default()
    });
    assert_eq!(ran.outcome.ended, Ok(7));
    assert!(bench.claims().is_empty());
}

/// `--workdir` says where the command runs; what a sync replaces is never the user's choice.
#[test]
fn another_workdir_is_the_commands_and_never_the_syncs() {
    let bench = Bench::new();
    let ran = bench.run(Run {
        workdir: Some("/usr"),
        ..Run::default()
    });
    assert_eq!(ran.outcome.ended, Ok(0));
    let places = std::mem::take(&mut bench.fake.world().places);
    assert_eq!(places, ["upload /remote/dir", "exec /usr"]);
    let ran = bench.run(Run {
        workdir: Some("sub"),
        command: None,
        ..Run::default()
    });
    assert_eq!(ran.outcome.synced.as_deref(), Some("/remote/dir"));
    assert_eq!(bench.fake.world().places, ["upload /remote/dir"]);
}

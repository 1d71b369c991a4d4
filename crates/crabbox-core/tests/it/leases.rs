//! Leases without a run: stop, list, cleanup, expiry, final ids.

use crabbox_core::Code;
use crabbox_core::claims::{LeaseId, State, Wait};
use crabbox_core::lifecycle::{self, Action, DryRun, Keep, Report, Watch};

use crate::fake::{Bench, Run, When};

#[test]
fn the_provider_may_choose_the_id() {
    let bench = Bench::new();
    bench.fake.world().final_id = Some("t_final");
    let claim = bench.warmup();
    assert_eq!(claim.lease_id.as_str(), "t_final");
    assert_eq!(bench.claims(), std::slice::from_ref(&claim));
    assert_eq!(claim.labels["uid"], "uid-1");
    assert_eq!(claim.labels["pod"], "pod-1");
    assert_eq!(claim.state, State::Ready);
    lifecycle::stop(bench.context(), "t_final").unwrap();
    assert!(bench.claims().is_empty());
}

#[test]
fn a_failure_after_the_final_id_leaves_no_claim() {
    let bench = Bench::new();
    bench.fake.world().final_id = Some("t_final");
    bench.fail("poll_ready", When::Before);
    let failed = lifecycle::warmup(bench.context(), &bench.workspace(), &bench.terms(true));
    assert_eq!(failed.unwrap_err().to_string(), "poll_ready failed");
    assert!(bench.claims().is_empty() && bench.fake.world().sandboxes.is_empty());
}

#[test]
fn the_user_may_choose_the_id() {
    let bench = Bench::new();
    let mut terms = bench.terms(true);
    terms.lease_id = Some(LeaseId::parse("t_mine").unwrap());
    let claim = lifecycle::warmup(bench.context(), &bench.workspace(), &terms).unwrap();
    assert_eq!(claim.lease_id.as_str(), "t_mine");
    // The same request again is the same lease; another one is refused.
    let created = || {
        bench
            .calls()
            .iter()
            .filter(|call| *call == "create")
            .count()
    };
    assert_eq!(created(), 1);
    let again = lifecycle::warmup(bench.context(), &bench.workspace(), &terms).unwrap();
    assert_eq!((again.labels, created()), (claim.labels, 0));
    let mut other = bench.terms(true);
    other.lease_id.clone_from(&terms.lease_id);
    other.ttl = std::time::Duration::from_secs(7200);
    let refused = lifecycle::warmup(bench.context(), &bench.workspace(), &other).unwrap_err();
    assert!(refused.message.contains("its ttl differs"), "{refused}");
    // A released id is never used again.
    lifecycle::stop(bench.context(), "t_mine").unwrap();
    assert_eq!(bench.claims(), []);
    let refused = lifecycle::warmup(bench.context(), &bench.workspace(), &terms).unwrap_err();
    assert_eq!(refused.code, Code::State);
    assert_eq!(created(), 0);
}

/// A request that waited for the end of the lease with its id must not begin it anew.
#[test]
fn a_chosen_id_that_is_released_meanwhile_is_not_used_again() {
    let bench = Bench::new();
    let mut terms = bench.terms(true);
    terms.lease_id = Some(LeaseId::parse("t_mine").unwrap());
    let id = terms.lease_id.clone().unwrap();
    let claim = lifecycle::warmup(bench.context(), &bench.workspace(), &terms).unwrap();
    bench.calls();
    let lock = bench.store.operation(&id, "test", Wait::none()).unwrap();
    let release = std::cell::RefCell::new(Some(lock));
    // It says that it waits once it does; then the other process is done.
    let report = OnProgress(&|| {
        if let Some(lock) = release.take() {
            bench.store.retire(&claim).unwrap();
            drop(lock);
        }
    });
    let context = lifecycle::Context {
        report: &report,
        ..bench.context()
    };
    let refused = lifecycle::warmup(context, &bench.workspace(), &terms).unwrap_err();
    assert!(refused.message.contains("never used again"), "{refused}");
    assert!(release.take().is_none());
    assert_eq!(bench.calls(), Vec::<String>::new());
}

struct OnProgress<'a>(&'a dyn Fn());

impl Report for OnProgress<'_> {
    fn line(&self, _line: &str) {}

    fn progress(&self, _line: &str) {
        (self.0)();
    }
}

#[test]
fn a_missing_lease_runs_nothing_and_is_forgotten_only_if_that_was_asked_for() {
    for sync in [true, false] {
        let bench = Bench::new();
        let claim = bench.warmup();
        bench.fake.world().sandboxes.clear();
        let run = || {
            bench.run(Run {
                id: Some(claim.lease_id.as_str()),
                sync,
                ..Run::default()
            })
        };
        let failure = run().outcome.ended.unwrap_err();
        assert_eq!(failure.to_string(), "no sandbox box-1");
        assert_eq!(bench.claims().len(), 1);
        bench.fake.world().forget_missing = true;
        let failure = run().outcome.ended.unwrap_err();
        assert_eq!(
            failure.to_string(),
            "no sandbox box-1; local claim forgotten, command not run"
        );
        assert_eq!(failure.code, Code::NotFound);
        assert_eq!(bench.claims(), []);
    }
}

#[test]
fn a_lease_that_ends_during_its_run_fails_it_and_is_removed() {
    for (id, keep, code) in [
        (true, Keep::No, "0"),
        (false, Keep::Yes, "0"),
        (true, Keep::No, "7"),
    ] {
        let bench = Bench::new();
        bench.fake.world().outlive = true;
        let mut terms = bench.terms(true);
        terms.ttl = std::time::Duration::from_secs(3);
        let known =
            id.then(|| lifecycle::warmup(bench.context(), &bench.workspace(), &terms).unwrap());
        let ran = bench.run_with(
            Run {
                id: known.as_ref().map(|claim| claim.lease_id.as_str()),
                keep,
                command: Some(code),
                ..Run::default()
            },
            terms,
        );
        match code {
            "0" => {
                let failure = ran.outcome.ended.unwrap_err();
                assert_eq!(failure.code, Code::Expired);
                assert_eq!(
                    failure.to_string(),
                    "lease t_box-1 reached its TTL expiry during the run; it was released"
                );
            }
            _ => assert_eq!(ran.outcome.ended, Ok(7)),
        }
        assert!(!ran.outcome.session.unwrap().kept);
        assert_eq!(bench.claims(), []);
        assert!(bench.fake.world().sandboxes.is_empty());
    }
}

/// The time to live is looked at again when the files are there.
#[test]
fn a_lease_that_ends_during_its_sync_runs_nothing() {
    let bench = Bench::new();
    bench.fake.world().upload_outlives = true;
    let mut terms = bench.terms(true);
    terms.ttl = std::time::Duration::from_secs(2);
    let run = Run {
        keep: Keep::No,
        command: Some("0"),
        ..Run::default()
    };
    let failure = bench.run_with(run, terms).outcome.ended.unwrap_err();
    assert_eq!(failure.code, Code::Expired);
    assert_eq!(
        failure.to_string(),
        "lease t_box-1 reached its TTL expiry during the sync; command not run"
    );
    assert!(!bench.calls().contains(&"exec".to_owned()));
    assert_eq!(bench.claims(), []);
}

#[test]
fn a_missing_sandbox_is_shown_and_never_taken_for_gone() {
    let bench = Bench::new();
    let claim = bench.warmup();
    bench.fake.world().sandboxes.clear();
    let listed = lifecycle::list(bench.context()).unwrap().leases;
    assert_eq!(listed[0].observed.state, "missing-or-inaccessible");
    let id = claim.lease_id.as_str();
    let status = lifecycle::status(bench.context(), id, Watch::Once);
    assert_eq!(status.unwrap_err().code, Code::NotFound);
    let stopped = lifecycle::stop(bench.context(), id);
    assert_eq!(stopped.unwrap_err().to_string(), "missing-or-inaccessible");
    assert_eq!(bench.claims(), std::slice::from_ref(&claim));
    bench.fake.world().forget_missing = true;
    bench.said();
    lifecycle::stop(bench.context(), id).unwrap();
    assert_eq!(bench.said(), ["warning: t_box-1 is forgotten"]);
    assert!(bench.claims().is_empty());
}

#[test]
fn a_removal_that_failed_after_it_began_is_recorded() {
    let bench = Bench::new();
    let claim = bench.warmup();
    bench.fail("remove", When::Before);
    let stopped = lifecycle::stop(bench.context(), claim.lease_id.as_str());
    assert_eq!(stopped.unwrap_err().to_string(), "remove failed");
    assert_eq!(bench.claims()[0].state, State::Releasing);
    bench.fake.world().fail.clear();
    let cleaned = lifecycle::cleanup(bench.context(), DryRun::No).unwrap();
    assert_eq!(cleaned.removed, 1);
    assert!(bench.claims().is_empty());
}

#[test]
fn a_preview_skips_a_sandbox_of_another_creator() {
    let bench = Bench::new();
    bench.warmup();
    bench.fake.world().sandboxes.get_mut("box-1").unwrap().uid = "another".to_owned();
    let cleaned = lifecycle::cleanup(bench.context(), DryRun::Yes).unwrap();
    assert_eq!(cleaned.swept[0].action, Action::Skip);
    assert_eq!(cleaned.failures[0].code, Code::NotOwned);
}

#[test]
fn cleanup_skips_what_is_missing() {
    let bench = Bench::new();
    let claim = bench.warmup();
    bench.store.replace(&claim, claim.releasing()).unwrap();
    bench.fake.world().sandboxes.clear();
    let cleaned = lifecycle::cleanup(bench.context(), DryRun::No).unwrap();
    assert_eq!(cleaned.swept[0].action, Action::Skip);
    assert_eq!(cleaned.swept[0].reason, "missing-or-inaccessible");
    assert!(cleaned.failures.is_empty());
    assert_eq!(bench.claims().len(), 1);
}

#[test]
fn an_expired_lease_is_removed_and_runs_nothing() {
    for sync in [true, false] {
        let bench = Bench::new();
        let claim = bench.warmup();
        let mut expired = claim.clone();
        expired.expires_at = Some("2020-01-01T00:00:00Z".parse().unwrap());
        bench.store.replace(&claim, expired).unwrap();
        bench.calls();
        let ran = bench.run(Run {
            id: Some(claim.lease_id.as_str()),
            sync,
            ..Run::default()
        });
        let failure = ran.outcome.ended.unwrap_err();
        assert_eq!(failure.code, Code::Expired);
        assert_eq!(
            failure.to_string(),
            "lease t_box-1 reached its TTL expiry; command not run"
        );
        assert_eq!(bench.calls(), ["verify remove", "remove"]);
        assert!(bench.claims().is_empty());
    }
}

/// Its provider knows better than the clock of this machine.
#[test]
fn a_lease_that_its_provider_calls_expired_is_removed_and_runs_nothing() {
    let bench = Bench::new();
    let claim = bench.warmup();
    bench.fake.world().expired = true;
    bench.calls();
    let ran = bench.run(Run {
        id: Some(claim.lease_id.as_str()),
        ..Run::default()
    });
    let failure = ran.outcome.ended.unwrap_err();
    assert_eq!(failure.code, Code::Expired);
    assert_eq!(failure.to_string(), "its time is over; command not run");
    let calls = ["verify reuse", "poll_ready", "verify remove", "remove"];
    assert_eq!(bench.calls(), calls);
    assert!(bench.claims().is_empty());
}

/// Also when its request is made again, whether the first one came to its end or not.
#[test]
fn a_chosen_id_whose_time_is_over_is_released_by_its_request() {
    for (state, by_clock) in [
        (State::Ready, false),
        (State::Ready, true),
        (State::Creating, false),
        (State::Creating, true),
    ] {
        let bench = Bench::new();
        let mut terms = bench.terms(true);
        terms.lease_id = Some(LeaseId::parse("t_mine").unwrap());
        let claim = lifecycle::warmup(bench.context(), &bench.workspace(), &terms).unwrap();
        let mut over = claim.clone();
        over.state = state;
        if by_clock {
            over.expires_at = Some("2020-01-01T00:00:00Z".parse().unwrap());
        }
        bench.store.replace(&claim, over).unwrap();
        bench.fake.world().expired = !by_clock;
        bench.calls();
        let warm = || lifecycle::warmup(bench.context(), &bench.workspace(), &terms).unwrap_err();
        let failure = warm();
        assert_eq!(failure.code, Code::Expired);
        let said = failure.to_string();
        assert!(said.ends_with("; its id is never used again"), "{said}");
        assert_eq!(failure.hints, ["choose another id"]);
        assert!(
            bench
                .calls()
                .ends_with(&["verify remove".to_owned(), "remove".to_owned()])
        );
        assert!(bench.claims().is_empty() && bench.fake.world().sandboxes.is_empty());
        assert_eq!(warm().code, Code::State);
    }
}

#[test]
fn cleanup_removes_what_its_provider_calls_expired() {
    let bench = Bench::new();
    bench.warmup();
    bench.fake.world().expired = true;
    let cleaned = lifecycle::cleanup(bench.context(), DryRun::Yes).unwrap();
    assert_eq!(cleaned.swept[0].action, Action::WouldDelete);
    assert_eq!(cleaned.swept[0].reason, "expired");
    assert_eq!(bench.claims().len(), 1);
    let cleaned = lifecycle::cleanup(bench.context(), DryRun::No).unwrap();
    assert_eq!(cleaned.swept[0].action, Action::Delete);
    assert!(bench.claims().is_empty());
}

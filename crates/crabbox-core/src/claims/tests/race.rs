//! Many at once. Locks belong to open files and not to processes, so threads compete like processes do.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::Code;

const THREADS: usize = 16;

/// Runs `work` at the same moment in many threads, each with a store of its own.
fn all_at_once<T: Send>(place: &Place, work: impl Fn(usize, &ClaimStore) -> T + Sync) -> Vec<T> {
    let state = place.state();
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (barrier, state, work) = (&barrier, &state, &work);
                scope.spawn(move || {
                    let store = ClaimStore::open(state);
                    barrier.wait();
                    work(number, &store)
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap());
        ended.collect()
    })
}

#[test]
fn of_many_that_want_one_slug_one_gets_it() {
    let place = Place::new();
    let wish = SlugChoice::Requested(Slug::request("blue-crab").unwrap());
    let ends = all_at_once(&place, |number, store| {
        store.create(claim(&format!("x_{number}")), &wish)
    });
    let winners: Vec<_> = ends.iter().filter_map(|end| end.as_ref().ok()).collect();
    assert_eq!(winners.len(), 1);
    let holder = &winners[0].lease_id;
    for failure in ends.iter().filter_map(|end| end.as_ref().err()) {
        assert_eq!(failure.code, Code::Usage);
        assert_eq!(
            failure.message,
            format!("slug `blue-crab` is taken by lease {holder}")
        );
    }
    let scan = place.store.scan().unwrap();
    assert_eq!(scan.claims.iter().collect::<Vec<_>>(), winners);
    assert_eq!(scan.problems, []);
}

#[test]
fn generated_slugs_differ_and_no_claim_is_lost() {
    let place = Place::new();
    // The names that all of these would get are taken.
    let leases: Vec<_> = (0..THREADS)
        .map(|number| lease(&format!("x_{number}")))
        .collect();
    for (number, lease) in leases.iter().enumerate() {
        let taken = Slug::generate(lease);
        place
            .slugged(&format!("y_{number}"), taken.as_str())
            .unwrap();
    }
    let ends = all_at_once(&place, |number, store| {
        let claim = claim(leases[number].as_str());
        store.create(claim, &SlugChoice::Generated).unwrap()
    });
    let slugs: BTreeSet<_> = ends
        .iter()
        .map(|claim| claim.slug.clone().unwrap())
        .collect();
    assert_eq!(slugs.len(), THREADS);
    assert_eq!(place.store.scan().unwrap().claims.len(), 2 * THREADS);
}

#[test]
fn of_many_that_claim_one_lease_one_gets_it() {
    let place = Place::new();
    let ends = all_at_once(&place, |_, store| {
        store.create(claim("x_1"), &SlugChoice::Generated)
    });
    let winners: Vec<_> = ends.into_iter().filter_map(Result::ok).collect();
    assert_eq!(winners.len(), 1);
    assert_eq!(place.store.scan().unwrap().claims, winners);
}

#[test]
fn no_update_is_lost() {
    const ROUNDS: u64 = 5;
    let place = Place::new();
    let mut start = claim("x_1");
    start.idle_timeout_seconds = 0;
    place.store.create(start, &SlugChoice::Generated).unwrap();
    all_at_once(&place, |_, store| {
        for _ in 0..ROUNDS {
            // Counts up by one, however often another thread was faster.
            loop {
                let old = store.read(&lease("x_1")).unwrap().unwrap();
                let mut new = old.clone();
                new.idle_timeout_seconds += 1;
                match store.replace(&old, new) {
                    Ok(_) => break,
                    Err(failure) => assert_eq!(failure.code, Code::ClaimChanged),
                }
            }
        }
    });
    let end = place.store.read(&lease("x_1")).unwrap().unwrap();
    assert_eq!(end.idle_timeout_seconds, ROUNDS * THREADS as u64);
}

#[test]
fn of_many_that_remove_or_change_one_claim_one_succeeds() {
    let place = Place::new();
    let created = place.create("x_1");
    let ends = all_at_once(&place, |number, store| match number % 2 {
        0 => store.remove(&created),
        _ => store.replace(&created, created.ready()).map(drop),
    });
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 1);
    for failure in ends.into_iter().filter_map(Result::err) {
        assert_eq!(failure.code, Code::ClaimChanged);
    }
}

#[test]
fn readers_never_see_half_a_claim() {
    let place = Place::new();
    let created = place.create("x_1");
    all_at_once(&place, |number, store| {
        if number == 0 {
            let mut old = created.clone();
            for round in 0..20_usize {
                let mut new = old.clone();
                new.labels.insert("k".to_owned(), "v".repeat(round * 5000));
                old = store.replace(&old, new).unwrap();
            }
        } else {
            for _ in 0..50 {
                let scan = store.scan().unwrap();
                assert_eq!((scan.claims.len(), scan.problems), (1, Vec::new()));
            }
        }
    });
}

#[test]
fn the_operation_lock_lets_one_in_at_a_time() {
    let place = Place::new();
    let inside = AtomicUsize::new(0);
    all_at_once(&place, |_, store| {
        let wait = Wait::until_canceled(&|| false);
        let lock = store.operation(&lease("x_1"), "crabbox run", wait).unwrap();
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
        thread::yield_now();
        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
        drop(lock);
    });
}

//! Work with a time limit of its own, which a cancellation by the user does not cut short: cleaning up.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{Cancel, Reason};

/// From the signal on, where there was one: ending the command has taken a part of it.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// What cleaning up has in any case.
const MIN_CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// For all that belongs to a fixed lease to be gone.
const FIXED_REMOVAL_TIMEOUT: Duration = Duration::from_secs(120);

/// `user` is the cancellation that does not cut it short.
pub(super) fn cleanup<T>(user: &Cancel, work: impl FnOnce(&Cancel) -> T) -> T {
    let spent = user.since().map_or(Duration::ZERO, |since| since.elapsed());
    within(cleanup_timeout(spent), work)
}

/// The removal of a sandbox. That of a fixed lease waits until all of it is gone; Ctrl-C ends only that wait, as it ends a
/// stop, and after one there is no more time than for any cleanup.
pub(super) fn removal<T>(user: &Cancel, is_fixed: bool, work: impl FnOnce(&Cancel) -> T) -> T {
    match is_fixed && !user.is_set() {
        true => work(&user.until(Instant::now() + FIXED_REMOVAL_TIMEOUT)),
        false => cleanup(user, work),
    }
}

fn cleanup_timeout(spent: Duration) -> Duration {
    CLEANUP_TIMEOUT
        .saturating_sub(spent)
        .max(MIN_CLEANUP_TIMEOUT)
}

/// Runs `work` with a cancellation of its own, which comes when the time for all of it is over.
pub fn within<T>(limit: Duration, work: impl FnOnce(&Cancel) -> T) -> T {
    let cancel = Cancel::new();
    let (done, over) = mpsc::channel::<()>();
    let watched = cancel.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            if over.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                watched.set(Reason::Late);
            }
        });
        let result = work(&cancel);
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test may take.
    const TEST_TIMEOUT: Duration = Duration::from_secs(3600);

    #[test]
    fn work_over_its_limit_is_canceled_for_good() {
        let end = Instant::now() + TEST_TIMEOUT;
        let ended = within(Duration::from_millis(1), |cancel| {
            [cancel.sleep_until(end), cancel.sleep_until(end)]
        });
        assert_eq!(ended, [Some(Reason::Late); 2]);
    }

    #[test]
    fn finished_work_is_not_waited_for() {
        let started = Instant::now();
        let (result, reason) = within(TEST_TIMEOUT, |cancel| (7, cancel.reason()));
        assert_eq!((result, reason), (7, None));
        assert!(started.elapsed() < TEST_TIMEOUT);
    }

    #[test]
    fn cleanup_may_take_half_a_minute() {
        for (spent, left) in [(0, 30), (16, 14), (29, 10), (300, 10)] {
            let spent = Duration::from_secs(spent);
            assert_eq!(cleanup_timeout(spent), Duration::from_secs(left));
        }
        let user = Cancel::new();
        user.set(Reason::Interrupt);
        assert!(!cleanup(&user, Cancel::is_set));
    }

    /// It is a stop: Ctrl-C ends it as it ends one. Any other cleanup is not cut short.
    #[test]
    fn the_removal_of_a_fixed_lease_has_two_minutes_and_can_be_canceled() {
        let canceled_meanwhile = |is_fixed| {
            let user = Cancel::new();
            removal(&user, is_fixed, |cancel| {
                user.set(Reason::Interrupt);
                cancel.is_set()
            })
        };
        assert!(canceled_meanwhile(true) && !canceled_meanwhile(false));
        let user = Cancel::new();
        user.set(Reason::Interrupt);
        assert!(!removal(&user, true, Cancel::is_set));
        assert!(FIXED_REMOVAL_TIMEOUT > CLEANUP_TIMEOUT);
    }
}

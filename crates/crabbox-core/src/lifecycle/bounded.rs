//! Work that goes on whatever the user cancels, but not for ever.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::process::{Cancel, Reason};

/// How long cleaning up may take.
const CLEANUP: Duration = Duration::from_secs(30);

pub(super) fn cleanup<T>(work: impl FnOnce(&Cancel) -> T) -> T {
    within(CLEANUP, work)
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
    use std::time::Instant;

    use super::*;

    /// Longer than any test may take.
    const EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn what_takes_too_long_is_canceled_once_for_all_of_it() {
        let ever = Instant::now() + EVER;
        let ended = within(Duration::from_millis(1), |cancel| {
            [cancel.sleep_until(ever), cancel.sleep_until(ever)]
        });
        assert_eq!(ended, [Some(Reason::Late); 2]);
    }

    #[test]
    fn what_is_done_in_time_is_not_waited_for() {
        let started = Instant::now();
        let (result, reason) = within(EVER, |cancel| (7, cancel.reason()));
        assert_eq!((result, reason), (7, None));
        assert!(started.elapsed() < EVER);
    }

    #[test]
    fn cleaning_up_may_take_half_a_minute() {
        assert_eq!(CLEANUP, Duration::from_secs(30));
        assert!(!cleanup(Cancel::is_set));
    }
}

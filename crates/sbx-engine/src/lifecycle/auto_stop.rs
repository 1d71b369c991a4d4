//! When a sandbox without a command stops by itself. Deadlines are counted on the kernel's monotonic clock, which
//! cannot be set; the record has the same ones in the time of day, for people and for the next daemon. One thread sleeps
//! until the next one, and nothing wakes it otherwise but a new deadline.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// The same time on both clocks. The time of day can jump, by hand or when the machine is synchronised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockTimes {
    pub(crate) of_day: Timestamp,
    pub(crate) steady: Instant,
}

impl ClockTimes {
    pub(crate) fn now() -> Self {
        Self {
            of_day: Timestamp::now(),
            steady: Instant::now(),
        }
    }

    /// None beyond the last moment that a clock can tell.
    pub(crate) fn after(self, time: Duration) -> Option<Self> {
        Some(Self {
            of_day: self.of_day.checked_add(time).ok()?,
            steady: self.steady.checked_add(time)?,
        })
    }

    /// When a deadline of the time of day is due that an earlier daemon has set: at most `grace` from now, since the
    /// time of day may have been set back meanwhile.
    pub(crate) fn until(self, deadline: Timestamp, grace: Duration) -> Option<Instant> {
        let left = Duration::try_from(deadline.duration_since(self.of_day)).unwrap_or_default();
        self.steady.checked_add(left.min(grace))
    }
}

/// Wakes the one thread that waits for deadlines.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    changed: Mutex<bool>,
    wake: Condvar,
}

impl Alarm {
    /// A deadline may be earlier than what the thread sleeps for.
    pub(crate) fn ring(&self) {
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_one();
    }

    /// Sleeps for that long, or until [`Alarm::ring`].
    pub(crate) fn sleep(&self, duration: Option<Duration>) {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = match duration {
            Some(duration) => {
                self.wake
                    .wait_timeout_while(changed, duration, |changed| !*changed)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => self
                .wake
                .wait_while(changed, |changed| !*changed)
                .unwrap_or_else(PoisonError::into_inner),
        };
        *changed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_DELAY: Duration = Duration::from_secs(30);

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_time_beyond_all_clocks_is_none() {
        let (of_day, steady) = (second(1000), Instant::now());
        let now = ClockTimes { of_day, steady };
        let later = now.after(MAX_DELAY).unwrap();
        assert_eq!(
            (later.of_day, later.steady),
            (second(1030), steady + MAX_DELAY)
        );
        assert_eq!(now.after(Duration::MAX), None);
    }

    #[test]
    fn a_deadline_of_the_daemon_before_is_at_most_the_grace_period_away() {
        let (of_day, steady) = (second(1000), Instant::now());
        let left = |deadline| {
            let due = ClockTimes { of_day, steady }.until(second(deadline), MAX_DELAY);
            due.unwrap().duration_since(steady)
        };
        assert_eq!(left(1012), Duration::from_secs(12));
        assert_eq!(left(10), Duration::ZERO);
        assert_eq!(left(1_000_000), MAX_DELAY, "the clock was set back");
    }

    #[test]
    fn ringing_before_sleeping_is_not_lost() {
        let alarm = Alarm::default();
        alarm.ring();
        alarm.sleep(None);
    }
}

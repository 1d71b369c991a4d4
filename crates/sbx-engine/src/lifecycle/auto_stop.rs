//! When a sandbox without a command stops by itself. Deadlines are absolute times in the record; one thread
//! sleeps until the next one, and nothing wakes it otherwise but a new deadline.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// The deadline of a sandbox that was used just now.
pub(crate) fn deadline(
    now: Timestamp,
    grace: Option<Duration>,
    sessions: u32,
    keep_alive: bool,
) -> Option<Timestamp> {
    let grace = grace.filter(|_| sessions == 0 && !keep_alive)?;
    // A grace period beyond the last timestamp means no deadline.
    now.checked_add(grace).ok()
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

/// How long until `deadline`, rounded up so that it has passed afterwards.
pub(crate) fn until(now: Timestamp, deadline: Timestamp) -> Duration {
    let left = deadline.duration_since(now);
    Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines() {
        let now = Timestamp::from_second(1000).unwrap();
        let grace = Some(Duration::from_secs(30));
        let later = Some(Timestamp::from_second(1030).unwrap());
        assert_eq!(deadline(now, grace, 0, false), later);
        assert_eq!(deadline(now, grace, 1, false), None);
        assert_eq!(deadline(now, grace, 0, true), None);
        assert_eq!(deadline(now, None, 0, false), None);
        assert_eq!(deadline(now, Some(Duration::MAX), 0, false), None);
    }

    #[test]
    fn a_deadline_in_the_past_is_now() {
        let second = |s| Timestamp::from_second(s).unwrap();
        assert_eq!(until(second(50), second(10)), Duration::from_millis(1));
        assert_eq!(until(second(10), second(12)), Duration::from_millis(2001));
    }

    #[test]
    fn ringing_before_sleeping_is_not_lost() {
        let alarm = Alarm::default();
        alarm.ring();
        alarm.sleep(None);
    }
}

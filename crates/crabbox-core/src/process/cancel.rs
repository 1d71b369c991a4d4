//! The user's wish to stop, shared by everything that waits.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::{Code, Failure};

/// Why something is canceled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Ctrl-C.
    Interrupt,
    Terminate,
    Hangup,
    /// The time for it is over.
    Late,
}

/// A flag that is set once and wakes all waiting threads. Clones share it.
///
/// Setting it takes a lock: it is for a thread that receives signals, not for a signal handler.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    shared: Arc<Inner>,
    /// From then on this one counts as set, whatever the others do.
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Inner {
    reason: Mutex<Option<Reason>>,
    changed: Condvar,
    /// When it was set.
    since: OnceLock<Instant>,
    hurried: AtomicBool,
    cleanups: AtomicUsize,
}

/// Something that has to be put in order before the process may end, as long as this lives.
#[derive(Debug)]
pub struct CleanupGuard {
    shared: Arc<Inner>,
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        self.shared.cleanups.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    Done,
    Canceled(Reason),
    Late,
}

impl Cancel {
    pub fn new() -> Self {
        Self::default()
    }

    /// The same flag, for work that may go on no longer than until then.
    #[must_use]
    pub fn until(&self, deadline: Instant) -> Self {
        let until = self.until.map_or(deadline, |until| until.min(deadline));
        Self {
            shared: Arc::clone(&self.shared),
            until: Some(until),
        }
    }

    /// The first reason stays.
    pub fn set(&self, reason: Reason) {
        self.lock().get_or_insert(reason);
        self.shared.since.get_or_init(Instant::now);
        self.shared.changed.notify_all();
    }

    /// The user has asked again: what is asked to end is ended.
    pub fn hurry(&self) {
        self.shared.hurried.store(true, Ordering::SeqCst);
        self.nudge();
    }

    pub(super) fn is_hurried(&self) -> bool {
        self.shared.hurried.load(Ordering::SeqCst)
    }

    /// When it was set by the user.
    pub fn since(&self) -> Option<Instant> {
        self.shared.since.get().copied()
    }

    /// From now on no signal ends the process before what was begun is put in order.
    #[must_use]
    pub fn guard_cleanup(&self) -> CleanupGuard {
        self.shared.cleanups.fetch_add(1, Ordering::SeqCst);
        CleanupGuard {
            shared: Arc::clone(&self.shared),
        }
    }

    pub fn has_cleanup(&self) -> bool {
        self.shared.cleanups.load(Ordering::SeqCst) > 0
    }

    pub fn is_set(&self) -> bool {
        self.reason().is_some()
    }

    pub fn reason(&self) -> Option<Reason> {
        let reason = *self.lock();
        let late = || self.until.is_some_and(|until| until <= Instant::now());
        reason.or_else(|| late().then_some(Reason::Late))
    }

    /// Sleeps until then. The reason when it was cut short.
    pub fn sleep_until(&self, deadline: Instant) -> Option<Reason> {
        match self.wait(Some(deadline), || false) {
            Woken::Canceled(reason) => Some(reason),
            Woken::Done | Woken::Late => None,
        }
    }

    /// Waits for `done`, which is asked again after each [`Self::nudge`]. What is done counts before what is canceled.
    pub(super) fn wait(&self, deadline: Option<Instant>, done: impl Fn() -> bool) -> Woken {
        self.wait_where(deadline, done, true)
    }

    /// The same for what has to go on although it is canceled.
    pub(super) fn wait_anyway(&self, deadline: Instant, done: impl Fn() -> bool) -> Woken {
        self.wait_where(Some(deadline), done, false)
    }

    fn wait_where(
        &self,
        deadline: Option<Instant>,
        done: impl Fn() -> bool,
        cancelable: bool,
    ) -> Woken {
        let own = self.until.filter(|_| cancelable);
        let (end, over) = match (deadline, own) {
            (deadline, Some(own)) if deadline.is_none_or(|deadline| own < deadline) => {
                (Some(own), Woken::Canceled(Reason::Late))
            }
            (deadline, _) => (deadline, Woken::Late),
        };
        let mut guard = self.lock();
        loop {
            if done() {
                return Woken::Done;
            }
            if let (Some(reason), true) = (*guard, cancelable) {
                return Woken::Canceled(reason);
            }
            guard = match end {
                None => self
                    .shared
                    .changed
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return over;
                    }
                    self.shared
                        .changed
                        .wait_timeout(guard, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// Makes every waiter look again.
    pub(super) fn nudge(&self) {
        // With the lock, so that no waiter is between its look and its sleep.
        let _guard = self.lock();
        self.shared.changed.notify_all();
    }

    /// Nothing that can panic runs with the lock but a caller's `done`: the flag itself is always whole.
    fn lock(&self) -> MutexGuard<'_, Option<Reason>> {
        self.shared
            .reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reason {
    /// As a shell has it for a command that a signal ended.
    pub fn exit_code(self) -> Option<u8> {
        match self {
            Self::Hangup => Some(129),
            Self::Interrupt => Some(130),
            Self::Terminate => Some(143),
            Self::Late => None,
        }
    }

    /// The failure of what it ended.
    pub fn canceled(self, message: impl Into<String>) -> Failure {
        Failure {
            exit: self.exit_code(),
            ..Failure::new(Code::Canceled, message)
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "interrupted",
            Self::Terminate => "terminated",
            Self::Hangup => "the terminal is gone",
            Self::Late => "timed out",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_has_a_deadline_of_its_own_ends_there_and_with_the_others() {
        let user = Cancel::new();
        let late = user.until(Instant::now());
        assert_eq!(late.reason(), Some(Reason::Late));
        assert_eq!(late.wait(None, || false), Woken::Canceled(Reason::Late));
        assert_eq!(user.reason(), None);
        let hour = Instant::now() + Duration::from_secs(3600);
        assert!(late.until(hour).is_set(), "the earlier one counts");
        let patient = user.until(hour);
        assert!(!patient.is_set());
        assert_eq!(patient.wait(Some(Instant::now()), || false), Woken::Late);
        user.set(Reason::Interrupt);
        assert_eq!(patient.reason(), Some(Reason::Interrupt));
        assert_eq!(
            patient.wait(None, || false),
            Woken::Canceled(Reason::Interrupt)
        );
    }
}

//! The user's wish to stop, shared by everything that waits.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

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

/// A flag that is set once and wakes whoever waits. Clones share it.
///
/// Setting it takes a lock: it is for a thread that receives signals, not for a signal handler.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reason: Mutex<Option<Reason>>,
    changed: Condvar,
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

    /// The first reason stays.
    pub fn set(&self, reason: Reason) {
        self.lock().get_or_insert(reason);
        self.0.changed.notify_all();
    }

    pub fn is_set(&self) -> bool {
        self.reason().is_some()
    }

    pub fn reason(&self) -> Option<Reason> {
        *self.lock()
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
        let mut guard = self.lock();
        loop {
            if done() {
                return Woken::Done;
            }
            if let (Some(reason), true) = (*guard, cancelable) {
                return Woken::Canceled(reason);
            }
            guard = match deadline {
                None => self
                    .0
                    .changed
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Woken::Late;
                    }
                    self.0
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
        self.0.changed.notify_all();
    }

    /// Nothing that can panic runs with the lock but a caller's `done`: the flag itself is always whole.
    fn lock(&self) -> MutexGuard<'_, Option<Reason>> {
        self.0.reason.lock().unwrap_or_else(PoisonError::into_inner)
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

//! Work that must be done after the user has canceled, but not for ever.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::process::{Cancel, Reason};

/// How long cleaning up may take.
const CLEANUP: Duration = Duration::from_secs(30);

/// Runs `work` with a cancellation of its own, which comes when the time is over.
pub(super) fn cleanup<T>(work: impl FnOnce(&Cancel) -> T) -> T {
    let cancel = Cancel::new();
    let (done, over) = mpsc::channel::<()>();
    let watched = cancel.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            if over.recv_timeout(CLEANUP) == Err(mpsc::RecvTimeoutError::Timeout) {
                watched.set(Reason::Late);
            }
        });
        let result = work(&cancel);
        drop(done);
        result
    })
}

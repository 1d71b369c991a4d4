//! Work on threads that may not be there to have: at the limit of the user's processes none can be started.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, scope};

/// A thread that panicked leaves plain values behind, which are as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the work for all of them at once and waits for it. What gets no thread is done on this one.
pub(crate) fn at_once<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    at_once_by(Builder::new, items, work);
}

/// Does the work while others go on. Where there is no thread it is not done, and the log says so.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = Builder::new().name(name.into()).spawn(work) {
        tracing::error!(%error, name, "cannot start a thread");
    }
}

fn at_once_by<T: Sync>(thread: impl Fn() -> Builder, items: &[T], work: impl Fn(&T) + Sync) {
    let work = &work;
    scope(|scope| {
        for item in items {
            if let Err(error) = thread().spawn_scoped(scope, move || work(item)) {
                tracing::warn!(%error, "cannot start a thread");
                work(item);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn everything_is_done_with_threads_and_without() {
        let usual = Builder::new;
        // More stack than there are addresses.
        let none = || Builder::new().stack_size(1 << 60);
        for thread in [usual, none] {
            let done = Mutex::new(Vec::new());
            at_once_by(thread, &[1, 2, 3], |item| done.lock().unwrap().push(*item));
            let mut done = done.into_inner().unwrap();
            done.sort_unstable();
            assert_eq!(done, [1, 2, 3]);
        }
    }
}

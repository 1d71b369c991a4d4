//! How many connections carry bytes, so that an end can wait until all of them are cut.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct ActiveSessions {
    count: AtomicUsize,
    left: Notify,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct ActiveSession<'a>(&'a ActiveSessions);

impl ActiveSessions {
    pub(crate) fn enter(&self) -> ActiveSession<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        ActiveSession(self)
    }

    /// There are none.
    pub(crate) async fn none(&self) {
        while self.count.load(Ordering::Relaxed) > 0 {
            self.left.notified().await;
        }
    }
}

impl Drop for ActiveSession<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.left.notify_one();
    }
}

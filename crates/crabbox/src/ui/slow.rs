//! A line that is said only if the work before it takes long.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// As long as this lives the work goes on. Dropped in time, nothing is said.
#[derive(Debug)]
pub(crate) struct SlowNotice {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SlowNotice {
    /// One that never says anything.
    pub(crate) fn none() -> Self {
        Self {
            done: None,
            thread: None,
        }
    }

    pub(crate) fn after(delay: Duration, say: impl FnOnce() + Send + 'static) -> Self {
        let (done, end) = mpsc::channel();
        let wait = move || {
            if end.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        };
        // Without a thread the line is left out.
        let thread = thread::Builder::new().name("slow".to_owned()).spawn(wait);
        Self {
            done: Some(done),
            thread: thread.ok(),
        }
    }
}

impl Drop for SlowNotice {
    fn drop(&mut self) {
        drop(self.done.take());
        // What it is about to say comes before what follows.
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_work_is_told_of() {
        let (said, hear) = mpsc::channel();
        let say = said.clone();
        let notice = SlowNotice::after(Duration::ZERO, move || say.send("slow").unwrap());
        assert_eq!(hear.recv(), Ok("slow"));
        drop(notice);
        let hour = Duration::from_secs(3600);
        drop(SlowNotice::after(hour, move || said.send("quick").unwrap()));
        assert!(hear.recv().is_err());
    }
}

//! Threads that close descriptors of removed directories.
//!
//! The kernel frees a directory's blocks when its last descriptor is closed. That can be a request to the disk for each
//! (a file system with `discard`), for which the removal would wait, one after the other.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use crate::threads::lock;

const THREADS: usize = 16;
/// Descriptors that wait to be closed.
const QUEUE: usize = 64;

#[derive(Debug)]
pub(super) struct Closers {
    /// Until the end; none where no thread could be started.
    queue: Option<SyncSender<OwnedFd>>,
    threads: Vec<JoinHandle<()>>,
}

impl Closers {
    pub(super) fn start() -> Self {
        let (queue, waiting) = sync_channel(QUEUE);
        let waiting = Arc::new(Mutex::new(waiting));
        let threads: Vec<_> = (0..THREADS)
            .map_while(|_| {
                let waiting = Arc::clone(&waiting);
                let thread = Builder::new().name("remove".into());
                thread.spawn(move || while close_next(&waiting) {}).ok()
            })
            .collect();
        Self {
            queue: (!threads.is_empty()).then_some(queue),
            threads,
        }
    }

    pub(super) fn close(&self, dir: OwnedFd) {
        match &self.queue {
            // An error gives it back, and it is closed here.
            Some(queue) => drop(queue.send(dir)),
            None => drop(dir),
        }
    }
}

/// False at the end.
fn close_next(waiting: &Mutex<Receiver<OwnedFd>>) -> bool {
    let next = lock(waiting).recv();
    // Without the lock: this is what takes time.
    next.map(drop).is_ok()
}

impl Drop for Closers {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn everything_is_closed_at_the_end() {
        let closers = Closers::start();
        let mut readers = Vec::new();
        for _ in 0..2 * QUEUE {
            let (reader, writer) = std::io::pipe().unwrap();
            closers.close(writer.into());
            readers.push(reader);
        }
        drop(closers);
        for mut reader in readers {
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
    }
}

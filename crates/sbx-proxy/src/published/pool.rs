//! Sockets of the sandbox's network that wait for the next connection, so that a burst does not ask init for each.
//!
//! A socket belongs to the network namespace in which it was made (socket(2)), so init makes them and passes them
//! (`SCM_RIGHTS`). In a burst each question asks for twice as many as the one before, up to [`MAX_SOCKETS`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sbx_proto::exec::{MAX_SOCKETS, SocketKind};
use tokio::time::Instant;

use super::Inside;

/// Questions that follow each other more quickly than this are a burst: the next one asks for more.
const BURST_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Pool {
    inside: Arc<dyn Inside>,
    /// One question at a time.
    asking: tokio::sync::Mutex<()>,
    spares: Mutex<BTreeMap<SocketKind, SpareSockets>>,
}

#[derive(Default)]
struct SpareSockets {
    sockets: Vec<OwnedFd>,
    asked: Option<Instant>,
    batch: u8,
}

impl SpareSockets {
    /// How many to ask for now.
    fn next_batch(&mut self, now: Instant) -> u8 {
        let burst = (self.asked).is_some_and(|asked| now.duration_since(asked) < BURST_INTERVAL);
        self.batch = match burst {
            true => self.batch.saturating_mul(2).clamp(1, MAX_SOCKETS),
            false => 1,
        };
        self.asked = Some(now);
        self.batch
    }
}

impl Pool {
    pub(super) fn new(inside: Arc<dyn Inside>) -> Self {
        Self {
            inside,
            asking: tokio::sync::Mutex::default(),
            spares: Mutex::default(),
        }
    }

    /// A new socket, non-blocking.
    pub(super) async fn socket(&self, kind: SocketKind) -> io::Result<OwnedFd> {
        if let Some(socket) = self.take(kind) {
            return Ok(socket);
        }
        let _asking = self.asking.lock().await;
        // Another connection may have asked meanwhile, and has left some.
        if let Some(socket) = self.take(kind) {
            return Ok(socket);
        }
        let count = (self.spares().entry(kind).or_default()).next_batch(Instant::now());
        let inside = Arc::clone(&self.inside);
        // On a thread: an init may take its time.
        let asked = tokio::task::spawn_blocking(move || inside.sockets(kind, count)).await;
        let mut sockets = asked.map_err(io::Error::other)??;
        let first = sockets.pop();
        self.spares()
            .entry(kind)
            .or_default()
            .sockets
            .extend(sockets);
        first.ok_or_else(|| io::Error::other("no socket"))
    }

    fn take(&self, kind: SocketKind) -> Option<OwnedFd> {
        self.spares().get_mut(&kind)?.sockets.pop()
    }

    fn spares(&self) -> MutexGuard<'_, BTreeMap<SocketKind, SpareSockets>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_asks_for_more() {
        let (mut spare, start) = (SpareSockets::default(), Instant::now());
        let mut at = |ms| spare.next_batch(start + Duration::from_millis(ms));
        assert_eq!(
            [at(0), at(10), at(20), at(30), at(40), at(50)],
            [1, 2, 4, 8, 16, 16]
        );
        assert_eq!([at(1000), at(5000), at(5001)], [1, 1, 2]);
    }
}

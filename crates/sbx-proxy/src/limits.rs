//! How many connections a sandbox may have. The one that has waited longest to say what it wants makes room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sbx_sys::heap::give_back;
use tokio::task::AbortHandle;

/// One sandbox may use that part of the connections that the daemon's descriptors allow.
const SHARE: u64 = 4;
/// Descriptors for everything but connections.
const RESERVED: u64 = 512;
const AT_LEAST: u64 = 64;
const AT_MOST: u64 = 4096;
/// After so many at once, what they used is given back when most of them are gone.
const MANY: usize = 512;
const FEW: usize = 16;

/// Connections per sandbox, each of which may need two descriptors.
pub fn per_sandbox(descriptors: u64) -> usize {
    let connections = descriptors.saturating_sub(RESERVED) / 2;
    usize::try_from((connections / SHARE).clamp(AT_LEAST, AT_MOST)).unwrap_or(64)
}

/// The open connections of a sandbox.
#[derive(Debug)]
pub(crate) struct Crowd {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Have not said what they want yet; oldest first.
    waiting: BTreeMap<u64, Option<AbortHandle>>,
    busy: BTreeMap<u64, Option<AbortHandle>>,
    /// The most there were since memory was given back.
    peak: usize,
}

impl State {
    fn count(&self) -> usize {
        self.waiting.len() + self.busy.len()
    }

    /// Whether a crowd is over, once for each.
    fn is_crowd_over(&mut self) -> bool {
        let over = self.peak >= MANY && self.count() <= self.peak / FEW;
        if over {
            self.peak = self.count();
        }
        over
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    id: u64,
}

impl Crowd {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            state: Mutex::default(),
        }
    }

    /// A place for a new connection, for which another may have to go; none when all are busy.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.state();
        if state.count() >= self.max {
            let (_, oldest) = state.waiting.pop_first()?;
            if let Some(task) = oldest {
                task.abort();
            }
        }
        state.next += 1;
        let id = state.next;
        state.waiting.insert(id, None);
        state.peak = state.peak.max(state.count());
        Some(Place {
            crowd: Arc::clone(self),
            id,
        })
    }

    /// Who serves the connection, should it have to make room.
    pub(crate) fn served_by(&self, id: u64, task: AbortHandle) {
        if let Some(waiting) = self.state().waiting.get_mut(&id) {
            *waiting = Some(task);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// It said what it wants: nothing that comes later pushes it out.
    pub(crate) fn set_busy(&mut self) {
        let mut state = self.crowd.state();
        if let Some(task) = state.waiting.remove(&self.id) {
            state.busy.insert(self.id, task);
        }
    }

    /// It has what it wanted and may want more: it waits again, behind those that wait already.
    pub(crate) fn set_waiting(&mut self) {
        let mut state = self.crowd.state();
        if let Some(task) = state.busy.remove(&self.id) {
            state.next += 1;
            self.id = state.next;
            state.waiting.insert(self.id, task);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.crowd.state();
        state.waiting.remove(&self.id);
        state.busy.remove(&self.id);
        let over = state.is_crowd_over();
        drop(state);
        if over {
            give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_ends_once() {
        let crowd = Arc::new(Crowd::new(MANY));
        let mut places: Vec<Place> = (0..MANY).map_while(|_| crowd.admit()).collect();
        assert_eq!(places.len(), MANY);
        assert_eq!(crowd.state().peak, MANY);
        places.truncate(MANY / FEW + 1);
        assert_eq!(crowd.state().peak, MANY);
        places.pop();
        assert_eq!(crowd.state().peak, MANY / FEW);
        places.clear();
        assert!(!crowd.state().is_crowd_over());
    }

    #[test]
    fn a_share_of_the_descriptors() {
        assert_eq!(per_sandbox(256), 64);
        assert_eq!(per_sandbox(1024), 64);
        assert_eq!(per_sandbox(20_000), 2436);
        assert_eq!(per_sandbox(1 << 20), 4096);
    }

    #[tokio::test]
    async fn who_waits_longest_makes_room_and_the_busy_stay() {
        let crowd = Arc::new(Crowd::new(2));
        let mut busy = crowd.admit().unwrap();
        busy.set_busy();
        let waiting = crowd.admit().unwrap();
        let task = tokio::spawn(std::future::pending::<()>());
        crowd.served_by(waiting.id(), task.abort_handle());
        let mut newest = crowd.admit().unwrap();
        assert!(task.await.unwrap_err().is_cancelled());
        drop(waiting);
        newest.set_busy();
        assert!(crowd.admit().is_none());
        // Between two requests it can go, though not before who waits for longer.
        let idle = tokio::spawn(std::future::pending::<()>());
        let mut kept = newest;
        kept.set_waiting();
        crowd.served_by(kept.id(), idle.abort_handle());
        let mut next = crowd.admit().unwrap();
        assert!(idle.await.unwrap_err().is_cancelled());
        drop(kept);
        next.set_busy();
        next.set_waiting();
        next.set_busy();
        assert!(crowd.admit().is_none());
        drop(busy);
        assert!(crowd.admit().is_some());
    }
}

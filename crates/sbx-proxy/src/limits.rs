//! How many connections a sandbox may have, and all of them together. The one that has waited longest to say what it
//! wants makes room.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sbx_sys::heap;
use tokio::task::AbortHandle;

/// One sandbox may use that part of the connections that the daemon's descriptors allow.
const SHARE: u64 = 4;
/// Descriptors for everything but connections: the API, and what a new sandbox needs.
const RESERVED: u64 = 512;
/// Of few descriptors, one out of so many is reserved.
const RESERVED_PART: u64 = 2;
/// So many of each sandbox are not counted with the others': they are for whoever comes when the rest is used up.
const ALWAYS: usize = 4;
const AT_LEAST: u64 = 64;
const AT_MOST: u64 = 4096;
/// After so many at once, what they used is given back when most of them are gone.
const MANY: usize = 512;
const FEW: usize = 16;

/// Connections per sandbox, each of which may need two descriptors.
pub fn per_sandbox(descriptors: u64) -> usize {
    usize::try_from((in_all(descriptors) / SHARE).clamp(AT_LEAST, AT_MOST)).unwrap_or(64)
}

fn in_all(descriptors: u64) -> u64 {
    let reserved = RESERVED.min(descriptors / RESERVED_PART);
    (descriptors - reserved) / 2
}

/// The connections of all sandboxes, which share the daemon's descriptors.
#[derive(Debug)]
pub struct House {
    max: usize,
    count: AtomicUsize,
}

impl House {
    /// `descriptors` is how many the process may have.
    pub fn new(descriptors: u64) -> Self {
        Self::with_room(usize::try_from(in_all(descriptors)).unwrap_or(usize::MAX))
    }

    pub(crate) fn with_room(max: usize) -> Self {
        Self {
            max,
            count: AtomicUsize::new(0),
        }
    }

    fn enter(&self) -> bool {
        let more = |count| (count < self.max).then_some(count + 1);
        let order = Ordering::Relaxed;
        self.count.fetch_update(order, order, more).is_ok()
    }

    fn leave(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The open connections of a sandbox.
#[derive(Debug)]
pub(crate) struct Crowd {
    max: usize,
    house: Arc<House>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Have not said what they want yet; oldest first.
    waiting: BTreeMap<u64, Option<AbortHandle>>,
    busy: BTreeMap<u64, Option<AbortHandle>>,
    /// Of them, those that are counted in the house.
    counted: usize,
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
    pub(crate) fn new(max: usize, house: Arc<House>) -> Self {
        Self {
            max,
            house,
            state: Mutex::default(),
        }
    }

    /// A place for a new connection, for which another may have to go; none when all are busy.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.state();
        if !self.has_room(&mut state) {
            // Its place is the new one's.
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

    /// Whether there is room for one more, which then counts.
    fn has_room(&self, state: &mut State) -> bool {
        let count = state.count();
        if count >= self.max {
            return false;
        }
        if count < state.counted + ALWAYS {
            return true;
        }
        let entered = self.house.enter();
        state.counted += usize::from(entered);
        entered
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
        let waited = state.waiting.remove(&self.id).is_some();
        let was_there = state.busy.remove(&self.id).is_some() || waited;
        // One that had to make room has left its place to another.
        if was_there && state.counted > 0 {
            state.counted -= 1;
            self.crowd.house.leave();
        }
        let over = state.is_crowd_over();
        drop(state);
        if over {
            heap::trim();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(max: usize) -> Arc<Crowd> {
        Arc::new(Crowd::new(max, Arc::new(House::with_room(max))))
    }

    #[test]
    fn a_full_house_keeps_a_few_places_for_each() {
        let house = Arc::new(House::with_room(10));
        let crowd = || Arc::new(Crowd::new(100, Arc::clone(&house)));
        let fill = |crowd: &Arc<Crowd>| -> Vec<Place> {
            let mut busy = crowd.admit();
            std::iter::from_fn(|| {
                let mut place = busy.take()?;
                place.set_busy();
                busy = crowd.admit();
                Some(place)
            })
            .collect()
        };
        let (greedy, modest) = (crowd(), crowd());
        let mut all = fill(&greedy);
        assert_eq!(all.len(), 10 + ALWAYS);
        assert_eq!(fill(&modest).len(), ALWAYS);
        // Who waits makes room for the own sandbox, also in a full house.
        all.pop();
        let waiting = greedy.admit().unwrap();
        let next = greedy.admit().unwrap();
        drop(waiting);
        assert_eq!(house.count.load(Ordering::Relaxed), 10);
        drop((next, all));
        assert_eq!(house.count.load(Ordering::Relaxed), 0);
        assert_eq!(fill(&modest).len(), 10 + ALWAYS);
        assert_eq!(house.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn descriptors_stay_free_for_everything_else() {
        for descriptors in [64, 256, 1024, 4096, 1 << 20] {
            let used = 2 * in_all(descriptors);
            let reserved = RESERVED.min(descriptors / 2);
            assert!(used <= descriptors - reserved, "{descriptors}: {used}");
        }
        assert_eq!(House::new(1024).max, 256);
    }

    #[test]
    fn a_crowd_ends_once() {
        let crowd = crowd(MANY);
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
        let crowd = crowd(2);
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

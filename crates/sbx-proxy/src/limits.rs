//! How many connections a sandbox may have, and all of them together.
//!
//! Every connection takes a [`Slot`] in the [`ConnectionTable`] of its sandbox; all tables draw on one
//! [`ConnectionBudget`], which is what the descriptors of the daemon allow (RLIMIT_NOFILE). In a full table the
//! connection that has waited longest without asking for anything makes room, so that idle ones cannot keep others out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sbx_sys::heap;
use tokio::task::AbortHandle;

/// One sandbox may use one part in so many of the connections that the daemon's descriptors allow.
const SANDBOX_SHARE: u64 = 4;
/// The same for connections to its published ports.
const PUBLISHED_SHARE: u64 = 2;
/// Descriptors for everything but connections: the API, and what a new sandbox needs.
const RESERVED: u64 = 512;
/// Of few descriptors, one part in so many is reserved.
const RESERVED_SHARE: u64 = 2;
/// Of the reserved descriptors, one part in so many may be used by connection attempts that race each other.
const RACE_SHARE: u64 = 8;
/// So many connections of each sandbox are not counted in the budget: a sandbox gets them when the budget is used up.
const GUARANTEED: usize = 4;
const MIN_PER_SANDBOX: u64 = 64;
const MAX_PER_SANDBOX: u64 = 4096;
const MAX_PUBLISHED: u64 = 16_384;
/// After a peak of so many connections, memory is given back to the kernel when most of them are gone.
const PEAK: usize = 512;
const PEAK_SHARE: usize = 16;

/// Connections out of a sandbox, each of which may need two descriptors.
pub fn per_sandbox(descriptors: u64) -> usize {
    share(descriptors, SANDBOX_SHARE, MAX_PER_SANDBOX)
}

/// The same of connections to its published ports. More of them, because clients of the host decide how many there are,
/// and not programs inside.
pub fn published(descriptors: u64) -> usize {
    share(descriptors, PUBLISHED_SHARE, MAX_PUBLISHED)
}

fn share(descriptors: u64, parts: u64, most: u64) -> usize {
    let share = total(descriptors) / parts;
    usize::try_from(share.clamp(MIN_PER_SANDBOX, most)).unwrap_or(64)
}

fn reserved(descriptors: u64) -> u64 {
    RESERVED.min(descriptors / RESERVED_SHARE)
}

fn total(descriptors: u64) -> u64 {
    (descriptors - reserved(descriptors)) / 2
}

/// The connections of all sandboxes, which share the daemon's descriptors.
#[derive(Debug)]
pub struct ConnectionBudget {
    max: usize,
    count: AtomicUsize,
    max_races: usize,
    races: AtomicUsize,
}

/// Permission for one connection attempt beside another one of the same connection.
#[derive(Debug)]
pub(crate) struct RacePermit(Arc<ConnectionBudget>);

impl Drop for RacePermit {
    fn drop(&mut self) {
        self.0.races.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionBudget {
    /// `descriptors` is how many the process may have.
    pub fn new(descriptors: u64) -> Self {
        let fit = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Self::with_races(
            fit(total(descriptors)),
            fit(reserved(descriptors) / RACE_SHARE),
        )
    }

    #[cfg(test)]
    pub(crate) fn with_room(max: usize) -> Self {
        Self::with_races(max, max)
    }

    pub(crate) fn with_races(max: usize, max_races: usize) -> Self {
        Self {
            max,
            count: AtomicUsize::new(0),
            max_races,
            races: AtomicUsize::new(0),
        }
    }

    fn enter(&self) -> bool {
        take_one(&self.count, self.max)
    }

    fn leave(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// None while too many attempts race already: then addresses are tried one after the other.
    pub(crate) fn race(self: &Arc<Self>) -> Option<RacePermit> {
        take_one(&self.races, self.max_races).then(|| RacePermit(Arc::clone(self)))
    }
}

fn take_one(count: &AtomicUsize, max: usize) -> bool {
    let more = |count| (count < max).then_some(count + 1);
    let order = Ordering::Relaxed;
    count.fetch_update(order, order, more).is_ok()
}

/// The open connections of a sandbox.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    max: usize,
    budget: Arc<ConnectionBudget>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Have not said what they want yet; oldest first.
    waiting: BTreeMap<u64, Option<AbortHandle>>,
    busy: BTreeMap<u64, Option<AbortHandle>>,
    /// Of them, those that are counted in the budget.
    counted: usize,
    /// The most there were since memory was given back.
    peak: usize,
}

impl State {
    fn count(&self) -> usize {
        self.waiting.len() + self.busy.len()
    }

    /// Whether a peak is over; true once for each.
    fn is_peak_over(&mut self) -> bool {
        let over = self.peak >= PEAK && self.count() <= self.peak / PEAK_SHARE;
        if over {
            self.peak = self.count();
        }
        over
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct Slot {
    table: Arc<ConnectionTable>,
    id: u64,
}

impl ConnectionTable {
    pub(crate) fn new(max: usize, budget: Arc<ConnectionBudget>) -> Self {
        Self {
            max,
            budget,
            state: Mutex::default(),
        }
    }

    /// A slot for a new connection, for which another may have to go; none when all are busy.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Slot> {
        let mut state = self.state();
        if !self.has_room(&mut state) {
            // The new one takes its slot.
            let (_, oldest) = state.waiting.pop_first()?;
            if let Some(task) = oldest {
                task.abort();
            }
        }
        state.next += 1;
        let id = state.next;
        state.waiting.insert(id, None);
        state.peak = state.peak.max(state.count());
        Some(Slot {
            table: Arc::clone(self),
            id,
        })
    }

    /// Whether there is room for one more, which then counts.
    fn has_room(&self, state: &mut State) -> bool {
        let count = state.count();
        if count >= self.max {
            return false;
        }
        if count < state.counted + GUARANTEED {
            return true;
        }
        let entered = self.budget.enter();
        state.counted += usize::from(entered);
        entered
    }

    /// The task that serves the connection, should it have to make room.
    pub(crate) fn set_task(&self, id: u64, task: AbortHandle) {
        if let Some(waiting) = self.state().waiting.get_mut(&id) {
            *waiting = Some(task);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// It said what it wants: nothing that comes later pushes it out.
    pub(crate) fn set_busy(&mut self) {
        let mut state = self.table.state();
        if let Some(task) = state.waiting.remove(&self.id) {
            state.busy.insert(self.id, task);
        }
    }

    /// It has what it wanted and may want more: it waits again, behind those that wait already.
    pub(crate) fn set_waiting(&mut self) {
        let mut state = self.table.state();
        if let Some(task) = state.busy.remove(&self.id) {
            state.next += 1;
            self.id = state.next;
            state.waiting.insert(self.id, task);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.table.state();
        let waited = state.waiting.remove(&self.id).is_some();
        let was_there = state.busy.remove(&self.id).is_some() || waited;
        // One that had to make room has left its slot to another.
        if was_there && state.counted > 0 {
            state.counted -= 1;
            self.table.budget.leave();
        }
        let over = state.is_peak_over();
        drop(state);
        if over {
            heap::trim();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(max: usize) -> Arc<ConnectionTable> {
        Arc::new(ConnectionTable::new(
            max,
            Arc::new(ConnectionBudget::with_room(max)),
        ))
    }

    #[test]
    fn a_used_up_budget_leaves_a_few_connections_to_each_sandbox() {
        let budget = Arc::new(ConnectionBudget::with_room(10));
        let table = || Arc::new(ConnectionTable::new(100, Arc::clone(&budget)));
        let fill = |table: &Arc<ConnectionTable>| -> Vec<Slot> {
            let mut busy = table.admit();
            std::iter::from_fn(|| {
                let mut slot = busy.take()?;
                slot.set_busy();
                busy = table.admit();
                Some(slot)
            })
            .collect()
        };
        let (greedy, modest) = (table(), table());
        let mut all = fill(&greedy);
        assert_eq!(all.len(), 10 + GUARANTEED);
        assert_eq!(fill(&modest).len(), GUARANTEED);
        // An idle connection makes room for another of its sandbox, also when the budget is used up.
        all.pop();
        let waiting = greedy.admit().unwrap();
        let next = greedy.admit().unwrap();
        drop(waiting);
        assert_eq!(budget.count.load(Ordering::Relaxed), 10);
        drop((next, all));
        assert_eq!(budget.count.load(Ordering::Relaxed), 0);
        assert_eq!(fill(&modest).len(), 10 + GUARANTEED);
        assert_eq!(budget.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn descriptors_stay_free_for_everything_else() {
        for descriptors in [64, 256, 1024, 4096, 1 << 20] {
            let used = 2 * total(descriptors);
            let races = ConnectionBudget::new(descriptors).max_races as u64;
            assert!(used + races < descriptors, "{descriptors}: {used}");
            assert!(races * RACE_SHARE <= reserved(descriptors));
        }
        assert_eq!(ConnectionBudget::new(1024).max, 256);
    }

    #[test]
    fn a_peak_ends_once() {
        let table = table(PEAK);
        let mut places: Vec<Slot> = (0..PEAK).map_while(|_| table.admit()).collect();
        assert_eq!(places.len(), PEAK);
        assert_eq!(table.state().peak, PEAK);
        places.truncate(PEAK / PEAK_SHARE + 1);
        assert_eq!(table.state().peak, PEAK);
        places.pop();
        assert_eq!(table.state().peak, PEAK / PEAK_SHARE);
        places.clear();
        assert!(!table.state().is_peak_over());
    }

    #[test]
    fn a_share_of_the_descriptors() {
        assert_eq!(per_sandbox(256), 64);
        assert_eq!(per_sandbox(1024), 64);
        assert_eq!(per_sandbox(20_000), 2436);
        assert_eq!(per_sandbox(1 << 20), 4096);
        assert_eq!(published(20_000), 4872);
        assert_eq!(published(1 << 20), 16_384);
    }

    #[tokio::test]
    async fn the_longest_idle_makes_room_and_the_busy_stay() {
        let table = table(2);
        let mut busy = table.admit().unwrap();
        busy.set_busy();
        let waiting = table.admit().unwrap();
        let task = tokio::spawn(std::future::pending::<()>());
        table.set_task(waiting.id(), task.abort_handle());
        let mut newest = table.admit().unwrap();
        assert!(task.await.unwrap_err().is_cancelled());
        drop(waiting);
        newest.set_busy();
        assert!(table.admit().is_none());
        // Between two requests it can go, though not before one that waits for longer.
        let idle = tokio::spawn(std::future::pending::<()>());
        let mut kept = newest;
        kept.set_waiting();
        table.set_task(kept.id(), idle.abort_handle());
        let mut next = table.admit().unwrap();
        assert!(idle.await.unwrap_err().is_cancelled());
        drop(kept);
        next.set_busy();
        next.set_waiting();
        next.set_busy();
        assert!(table.admit().is_none());
        drop(busy);
        assert!(table.admit().is_some());
    }
}

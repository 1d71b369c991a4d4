//! One sandbox in the daemon's memory: its record, its live connection, and the locks around both.
//!
//! Three locks, always taken in this order and the last one only for moments: `operation` (create, start,
//! stop and remove, one at a time and possibly slow), `disk` (writes of the record in their order), `state`.
//! Readers take `state` alone, so they never wait for anything slow.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sbx_api::Status;

use crate::lifecycle::auto_stop::ClockTimes;
use crate::machine::control::Sender;
use crate::machine::process::Process;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{Record, RecordError};
use crate::state::settings::DEFAULT_AUTO_STOP_DELAY;
use crate::state::{Durability, SandboxDir};
use crate::threads::lock;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: SandboxName,
    pub(crate) dir: SandboxDir,
    operation: Mutex<()>,
    disk: Mutex<()>,
    state: Mutex<State>,
    /// `live` has gone, or a stop was given up.
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) record: Record,
    /// Commands that run now.
    pub(crate) sessions: u32,
    /// `stop_at` of the record, on the clock that does not jump.
    due: Option<Instant>,
    pub(crate) live: Option<Live>,
    /// Why it is being stopped.
    pub(crate) stopping: Option<String>,
    /// Nothing is left of it; who waited for the operation lock finds out here.
    pub(crate) removed: bool,
}

/// The handles of a running machine.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) sender: Sender,
    pub(crate) process: Process,
}

impl Entry {
    pub(crate) fn new(record: Record, dir: SandboxDir) -> Self {
        Self {
            name: record.name.clone(),
            dir,
            operation: Mutex::default(),
            disk: Mutex::default(),
            state: Mutex::new(State {
                record,
                sessions: 0,
                due: None,
                live: None,
                stopping: None,
                removed: false,
            }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn operate(&self) -> MutexGuard<'_, ()> {
        lock(&self.operation)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn record(&self) -> Record {
        self.state().record.clone()
    }

    /// Changes the state and writes the record.
    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) -> Result<(), RecordError> {
        self.write(change, Durability::Soon)
    }

    /// Writes the record so that a power cut cannot take it back.
    pub(crate) fn flush(&self) -> Result<(), RecordError> {
        self.write(|_| {}, Durability::Now)
    }

    fn write(
        &self,
        change: impl FnOnce(&mut State),
        durability: Durability,
    ) -> Result<(), RecordError> {
        let _disk = lock(&self.disk);
        let record = {
            let mut state = self.state();
            change(&mut state);
            // What lies in its place by now is not its own.
            if state.removed {
                return Ok(());
            }
            state.record.clone()
        };
        record.write(&self.dir, durability)
    }

    /// True when it runs and stays: the deadline moves away, so that a command can be started in peace.
    pub(crate) fn use_now(&self, grace: Option<Duration>) -> bool {
        let mut state = self.state();
        let usable = state.live.is_some() && state.stopping.is_none();
        if usable {
            state.touch(ClockTimes::now(), grace);
        }
        usable
    }

    /// Waits until nothing is live; false when that takes too long.
    pub(crate) fn wait_gone(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| state.live.is_none())
    }

    /// The same, or until the stop that is under way was given up.
    pub(crate) fn wait_settled(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| {
            state.live.is_none() || state.stopping.is_none()
        })
    }

    fn wait_until(&self, limit: Duration, done: impl Fn(&State) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state();
        while !done(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// It is not idle after all: the stop is given up.
    pub(crate) fn go_on(&self, grace: Option<Duration>) {
        let mut state = self.state();
        state.stopping = None;
        state.touch(ClockTimes::now(), grace);
        drop(state);
        self.changed.notify_all();
    }

    /// The init is ending or dead, and nothing can be started in it any more. `reason` counts if no stop was requested.
    pub(crate) fn set_ending(&self, reason: &str) {
        self.state().end(reason);
    }

    /// The init has ended, and nothing of it is left to do.
    pub(crate) fn set_gone(&self) -> Result<(), RecordError> {
        let written = self.update(|state| {
            let reason = state.stopping.clone().unwrap_or_default();
            state.record.set_stopped(reason, Timestamp::now());
        });
        // Only now: a request that waits for it goes on to change the record.
        let mut state = self.state();
        state.stopping = None;
        state.sessions = 0;
        state.live = None;
        drop(state);
        self.changed.notify_all();
        written
    }
}

impl State {
    /// Nothing can be started in it any more.
    pub(crate) fn end(&mut self, reason: &str) {
        self.stopping.get_or_insert_with(|| reason.to_owned());
    }

    /// The number of commands changed.
    pub(crate) fn set_sessions(&mut self, sessions: u32, now: ClockTimes, grace: Option<Duration>) {
        let waiting = self.record.stop_at.is_some();
        if self.sessions == sessions && waiting == (sessions == 0) {
            self.take_over_deadline(now, grace);
            return;
        }
        self.sessions = sessions;
        self.touch(now, grace);
    }

    pub(crate) fn touch(&mut self, now: ClockTimes, grace: Option<Duration>) {
        self.record.last_used_at = Some(now.of_day);
        self.set_deadline(now, grace);
    }

    pub(crate) fn set_deadline(&mut self, now: ClockTimes, grace: Option<Duration>) {
        let deadline = self.grace(grace).and_then(|grace| now.after(grace));
        self.record.stop_at = deadline.map(|at| at.of_day);
        self.due = deadline.map(|at| at.steady);
    }

    /// The one that an earlier daemon has left in the record.
    fn take_over_deadline(&mut self, now: ClockTimes, grace: Option<Duration>) {
        if let (None, Some(stop_at)) = (self.due, self.record.stop_at) {
            self.due = now.until(stop_at, self.grace(grace).unwrap_or(Duration::MAX));
        }
    }

    /// How long it stays up from now on; none is for as long as it likes. `grace` is of the settings.
    fn grace(&self, grace: Option<Duration>) -> Option<Duration> {
        let grace = match self.record.idle_seconds {
            None => grace,
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
        };
        // A temporary one ends also where the others stay up: the client that would end it may have been killed.
        let grace = grace.or(self.record.temporary.then_some(DEFAULT_AUTO_STOP_DELAY));
        grace.filter(|_| self.sessions == 0 && !self.record.keep_alive)
    }

    /// When it is to be stopped by itself.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let idle = self.record.status == Status::Running
            && self.live.is_some()
            && self.stopping.is_none()
            && self.sessions == 0;
        // Without one in the record it stays up: that is what is shown.
        self.due.filter(|_| idle && self.record.stop_at.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sbx_proto::plan::Mode;

    use super::*;
    use crate::sandbox::record::tests::example;
    use crate::state::StateDir;

    fn second(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// Both clocks, which can disagree.
    fn moment(of_day: i64, steady: Instant) -> ClockTimes {
        let of_day = second(of_day);
        ClockTimes { of_day, steady }
    }

    fn at(of_day: i64) -> ClockTimes {
        moment(of_day, Instant::now())
    }

    fn state() -> State {
        State {
            record: example("ab", Mode::Root),
            sessions: 0,
            due: None,
            live: None,
            stopping: None,
            removed: false,
        }
    }

    #[test]
    fn the_deadline_follows_the_commands() {
        let grace = Some(Duration::from_secs(30));
        let mut state = state();
        state.set_sessions(0, at(0), grace);
        assert_eq!(state.record.stop_at, Some(second(30)));
        state.set_sessions(0, at(10), grace);
        assert_eq!(state.record.stop_at, Some(second(30)), "nothing happened");
        state.set_sessions(1, at(20), grace);
        assert_eq!(state.record.stop_at, None);
        state.set_sessions(0, at(40), grace);
        assert_eq!(state.record.stop_at, Some(second(70)));
        assert_eq!(state.record.last_used_at, Some(second(40)));
        state.record.keep_alive = true;
        state.touch(at(50), grace);
        assert_eq!(state.record.stop_at, None);
    }

    #[test]
    fn a_time_of_its_own_counts_more_than_the_settings() {
        let mut state = state();
        let after = |state: &mut State, own, grace: Option<u64>| {
            state.record.idle_seconds = own;
            state.touch(at(0), grace.map(Duration::from_secs));
            state.record.stop_at
        };
        assert_eq!(after(&mut state, Some(90), Some(30)), Some(second(90)));
        assert_eq!(after(&mut state, Some(90), None), Some(second(90)));
        assert_eq!(after(&mut state, Some(0), Some(30)), None);
        assert_eq!(after(&mut state, None, Some(30)), Some(second(30)));
        assert_eq!(after(&mut state, Some(u64::MAX), Some(30)), None);
    }

    #[test]
    fn a_temporary_one_ends_where_the_others_stay_up() {
        let mut state = state();
        state.touch(at(0), None);
        assert_eq!(state.record.stop_at, None);
        state.record.temporary = true;
        state.touch(at(0), None);
        assert_eq!(state.record.stop_at, Some(second(30)));
        state.touch(at(0), Some(Duration::from_secs(5)));
        assert_eq!(state.record.stop_at, Some(second(5)));
    }

    #[test]
    fn a_clock_that_jumps_neither_stops_a_sandbox_nor_keeps_it_up() {
        let (grace, began) = (Duration::from_secs(30), Instant::now());
        for of_day in [1000, 1_000_000, 10] {
            let mut state = state();
            state.set_sessions(0, moment(1000, began), Some(grace));
            // Nothing happened but the jump.
            let later = began + Duration::from_secs(10);
            state.set_sessions(0, moment(of_day, later), Some(grace));
            assert_eq!(state.due, Some(began + grace), "{of_day}");
            state.touch(moment(of_day, later), Some(grace));
            assert_eq!(state.due, Some(later + grace), "{of_day}");
            assert_eq!(state.record.stop_at, Some(second(of_day + 30)));
        }
    }

    #[test]
    fn the_next_daemon_takes_a_deadline_over() {
        let (grace, began) = (Some(Duration::from_secs(30)), Instant::now());
        let due = |of_day, own, grace| {
            let mut state = state();
            state.record.stop_at = Some(second(1000));
            state.record.idle_seconds = own;
            state.set_sessions(0, moment(of_day, began), grace);
            assert_eq!(state.record.stop_at, Some(second(1000)));
            state.due.map(|due| due.duration_since(began).as_secs())
        };
        assert_eq!(due(990, None, grace), Some(10));
        assert_eq!(due(2000, None, grace), Some(0));
        // Set back meanwhile.
        assert_eq!(due(10, None, grace), Some(30));
        assert_eq!(due(10, Some(90), grace), Some(90));
        // As it was set, where there is no time by now.
        assert_eq!(due(10, None, None), Some(990));
    }

    fn entry_in(root: &Path) -> Entry {
        let dirs = StateDir::locate(root, Some(root)).unwrap();
        let record = example("ab", Mode::Root);
        let dir = dirs.sandbox(&record.name);
        std::fs::create_dir_all(dir.path()).unwrap();
        Entry::new(record, dir)
    }

    #[test]
    fn the_reason_of_a_stop_is_its_cause() {
        let temp = tempfile::tempdir().unwrap();
        let entry = entry_in(temp.path());
        entry.set_ending("crashed");
        entry.set_gone().unwrap();
        assert_eq!(entry.record().stop_reason.as_deref(), Some("crashed"));
        entry.state().stopping = Some("idle".into());
        entry.set_ending("crashed");
        entry.set_gone().unwrap();
        let record = Record::read(&entry.dir).unwrap();
        assert_eq!(record.stop_reason.as_deref(), Some("idle"));
        assert_eq!(record.status, Status::Stopped);
        assert_eq!(entry.state().stopping, None);
    }

    #[test]
    fn nothing_is_written_where_another_one_lies_by_now() {
        let temp = tempfile::tempdir().unwrap();
        let entry = entry_in(temp.path());
        entry.state().removed = true;
        entry.set_ending("abandoned");
        entry.set_gone().unwrap();
        assert_eq!(entry.record().stop_reason.as_deref(), Some("abandoned"));
        assert!(!entry.dir.record().exists());
    }
}

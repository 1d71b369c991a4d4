//! How a machine is stopped, on request or because it is idle. The caller holds the operation lock of the sandbox.
//!
//! Init is asked first: it sends SIGTERM to all processes, SIGKILL after `TERM_TIMEOUT`, hands files over and ends. An
//! init that does not end in time is killed through its pidfd, and its pid namespace with it. Whether a command runs is
//! known to init alone, since clients connect to it without the daemon: an idle stop is a request that it may refuse.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::INIT_EXIT_TIMEOUT;
use super::auto_stop::ClockTimes;
use super::entry::Entry;
use super::hand_over::HAND_OVER_TIMEOUT;
use crate::engine::Shared;
use crate::error::{EngineError, chain};
use crate::machine::control::{ControlError, Sender};
use crate::machine::process::Process;

/// Stop reason of a sandbox that had no command for long enough.
const IDLE: &str = "idle";
/// How long processes inside have between SIGTERM and SIGKILL.
pub(crate) const TERM_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a killed process may take to end: one in an unresponsive file system takes long.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

impl Shared {
    /// Stops it if it runs. `reason` is what `inspect` says afterwards.
    pub(crate) fn halt(&self, entry: &Entry, reason: &str) -> Result<(), EngineError> {
        self.halt_within(entry, reason, TERM_TIMEOUT)
    }

    /// The same, with this much time for processes inside between SIGTERM and SIGKILL.
    pub(crate) fn halt_within(
        &self,
        entry: &Entry,
        reason: &str,
        term_timeout: Duration,
    ) -> Result<(), EngineError> {
        {
            let mut state = entry.state();
            if state.live.is_none() {
                return Ok(());
            }
            state.end(reason);
        }
        let Some(process) = ask(entry, |sender| sender.shutdown(term_timeout)) else {
            return Ok(());
        };
        if entry.wait_gone(term_timeout + INIT_EXIT_TIMEOUT) {
            return Ok(());
        }
        self.kill(entry, &process)
    }

    /// Stops it unless a command runs in it, which its init knows; false when it goes on because of one.
    pub(crate) fn halt_if_idle(&self, entry: &Entry, reason: &str) -> Result<bool, EngineError> {
        let ends_anyway = {
            let mut state = entry.state();
            if state.live.is_none() {
                return Ok(true);
            }
            let ends_anyway = state.stopping.is_some();
            state.end(reason);
            ends_anyway
        };
        let Some(process) = ask(entry, |sender| sender.shutdown_if_idle(TERM_TIMEOUT)) else {
            return Ok(true);
        };
        if !entry.wait_settled(TERM_TIMEOUT + INIT_EXIT_TIMEOUT) {
            // Its init may be slow, or stopped (SIGSTOP): commands that are known to run are not killed on suspicion.
            let mut state = entry.state();
            if state.sessions > 0 && !ends_anyway && !process.has_ended() {
                state.stopping = None;
                return Ok(false);
            }
            drop(state);
            self.kill(entry, &process)?;
        }
        Ok(entry.state().live.is_none())
    }

    fn kill(&self, entry: &Entry, process: &Process) -> Result<(), EngineError> {
        // Of one that has ended, files may still be being handed over.
        if !process.has_ended() {
            tracing::warn!(sandbox = %entry.name, "init does not stop; killing it");
            if let Err(error) = process.kill() {
                tracing::error!(sandbox = %entry.name, %error, "cannot kill init");
            }
        }
        if entry.wait_gone(KILL_TIMEOUT + HAND_OVER_TIMEOUT) {
            return Ok(());
        }
        entry.state().stopping = None;
        Err(EngineError::Unstoppable(entry.name.clone()))
    }

    /// Stops sandboxes that have been idle for long enough, for ever.
    pub(crate) fn run_timer(self: &Arc<Self>) {
        loop {
            let now = Instant::now();
            let mut next: Option<Instant> = None;
            for entry in self.entries() {
                let mut state = entry.state();
                match state.due_at() {
                    Some(at) if at <= now => {
                        state.stopping = Some(IDLE.into());
                        drop(state);
                        self.stop_idle(&entry);
                    }
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {}
                }
            }
            self.alarm
                .sleep(next.map(|next| next.saturating_duration_since(now)));
        }
    }

    fn stop_idle(self: &Arc<Self>, entry: &Arc<Entry>) {
        let (shared, stopped) = (Arc::clone(self), Arc::clone(entry));
        let spawned = std::thread::Builder::new()
            .name("auto-stop".into())
            .spawn(move || {
                let _operation = stopped.operate();
                // Another stop may have been first, and a new machine may run by now.
                if stopped.state().stopping.as_deref() != Some(IDLE) {
                    return;
                }
                if let Err(error) = shared.halt_if_idle(&stopped, IDLE) {
                    tracing::error!(sandbox = %stopped.name, error = chain(&error), "cannot stop");
                    shared.put_off(&stopped);
                }
            });
        if let Err(error) = spawned {
            tracing::error!(sandbox = %entry.name, %error, "cannot stop");
            self.put_off(entry);
        }
    }

    fn put_off(&self, entry: &Entry) {
        let mut state = entry.state();
        state.stopping = None;
        state.touch(ClockTimes::now(), self.settings().auto_stop);
        drop(state);
        self.alarm.ring();
    }
}

/// Asks the init of a machine that is to end; `None` when none runs.
fn ask(
    entry: &Entry,
    request: impl FnOnce(&mut Sender) -> Result<(), ControlError>,
) -> Option<Process> {
    let (sender, process) = {
        let state = entry.state();
        let live = state.live.as_ref()?;
        (live.sender.try_clone(), live.process.clone())
    };
    let sent = sender
        .map_err(ControlError::Io)
        .and_then(|mut sender| request(&mut sender));
    if let Err(error) = sent {
        tracing::warn!(sandbox = %entry.name, error = chain(&error), "cannot ask init to stop");
    }
    Some(process)
}

//! The commands that this daemon has started, by id.
//!
//! Finished commands stay known, so that their status and logs can be read; the oldest are dropped when there are many.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use execd_proto::command::CommandStatus;
use execd_proto::event::Ending;
use rustix::process::Signal;

use crate::process::Group;

/// How many finished commands are kept.
const MAX_FINISHED: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    commands: BTreeMap<String, Entry>,
    finished: VecDeque<String>,
}

#[derive(Debug)]
struct Entry {
    status: CommandStatus,
    group: Option<Group>,
    log: Option<PathBuf>,
}

impl Registry {
    pub(crate) fn started(&self, id: &str, content: String, log: Option<PathBuf>) {
        let status = CommandStatus {
            id: id.to_owned(),
            content,
            running: true,
            exit_code: None,
            error: String::new(),
            started_at: jiff::Timestamp::now().to_string(),
            finished_at: None,
        };
        let entry = Entry {
            status,
            group: None,
            log,
        };
        self.lock().commands.insert(id.to_owned(), entry);
    }

    pub(crate) fn running(&self, id: &str, group: Group) {
        if let Some(entry) = self.lock().commands.get_mut(id) {
            entry.group = Some(group);
        }
    }

    /// Right after `wait`: the kernel may give the group's number to another process from now on, while the command's
    /// output is still being read.
    pub(crate) fn reaped(&self, id: &str) {
        if let Some(entry) = self.lock().commands.get_mut(id) {
            entry.group = None;
        }
    }

    pub(crate) fn ended(&self, id: &str, ending: &Ending) {
        let mut inner = self.lock();
        let Some(entry) = inner.commands.get_mut(id) else {
            return;
        };
        entry.group = None;
        entry.status.running = false;
        entry.status.finished_at = Some(jiff::Timestamp::now().to_string());
        match ending {
            Ending::Exited(code) => entry.status.exit_code = Some(*code),
            Ending::Killed(signal) => {
                entry.status.exit_code = Some(-1);
                entry.status.error = format!("signal: {signal}");
            }
            Ending::NotStarted(reason) => {
                entry.status.exit_code = Some(-1);
                entry.status.error.clone_from(reason);
            }
        }
        inner.finished.push_back(id.to_owned());
        inner.drop_oldest();
    }

    pub(crate) fn status(&self, id: &str) -> Option<CommandStatus> {
        self.lock()
            .commands
            .get(id)
            .map(|entry| entry.status.clone())
    }

    pub(crate) fn log(&self, id: &str) -> Option<PathBuf> {
        self.lock().commands.get(id)?.log.clone()
    }

    /// Whether the command is known. One that has ended is not signalled: its number may be another group's by now.
    pub(crate) fn signal(&self, id: &str, signal: Signal) -> bool {
        // The lock is held while signalling: `reaped` clears the group under the same lock.
        let inner = self.lock();
        let entry = inner.commands.get(id);
        if let Some(group) = entry.and_then(|entry| entry.group) {
            group.signal(signal);
        }
        entry.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every update leaves the maps whole, so a panic elsewhere does not make them invalid.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn drop_oldest(&mut self) {
        while self.finished.len() > MAX_FINISHED {
            let Some(id) = self.finished.pop_front() else {
                return;
            };
            let log = self.commands.remove(&id).and_then(|entry| entry.log);
            if let Some(log) = log {
                // The log of a forgotten command cannot be asked for any more; one that stays only takes space.
                let _ = std::fs::remove_file(log);
            }
        }
    }
}

//! What a daemon does first: it finds the sandboxes of the one before it, takes the running ones over and
//! finishes what was interrupted.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sbx_api::Status;
use sbx_proto::exec::Role;
use sbx_sys::process::pidfd_open;

use crate::engine::{Engine, Registry, Shared};
use crate::error::{EngineError, chain};
use crate::lifecycle::entry::Entry;
use crate::lifecycle::hand_over::PATIENT;
use crate::lifecycle::{boot_id, end, identify, remove_socket};
use crate::machine::control::{ControlError, Event, Link};
use crate::sandbox::record::{InitProcess, Record, RecordError};
use crate::state::socket::nobody_listens;
use crate::state::{EXEC_SOCKET, SandboxDir, is_temporary};
use crate::threads::lock;
use crate::threads::{at_once, spawn};

const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long an init has that nobody has use for, whatever it says until then.
const END_LIMIT: Duration = Duration::from_secs(10);

impl Engine {
    /// Reads all records and reconciles them with what runs. Removals that were interrupted go on in the
    /// background; then deadlines are watched.
    pub fn recover(&self) -> Result<(), EngineError> {
        let shared = &self.shared;
        let mut found = Registry::default();
        for name in shared.config.state.names()? {
            let dir = shared.config.state.sandbox(&name);
            match Record::read(&dir) {
                Ok(record) => {
                    found
                        .entries
                        .insert(name, Arc::new(Entry::new(record, dir)));
                }
                Err(RecordError::Missing { .. }) if sweep_unborn(&dir) => {}
                Err(error) => {
                    tracing::error!(sandbox = %name, error = chain(&error), "unreadable record");
                    found.damaged.insert(name, error);
                }
            }
        }
        let entries: Vec<_> = found.entries.values().cloned().collect();
        *lock(&shared.registry) = found;
        at_once(&entries, |entry| shared.reconcile(entry));
        let timer = Arc::clone(shared);
        spawn("auto-stop", move || timer.run_timer());
        Ok(())
    }
}

impl Shared {
    fn reconcile(self: &Arc<Self>, entry: &Arc<Entry>) {
        let record = entry.record();
        match record.status {
            Status::Running => self.reconcile_running(entry, &record),
            Status::Stopped if record.temporary => self.remove_temporary(entry),
            Status::Stopped => {
                silence(&entry.dir, &record);
                self.hand_over_later(entry);
            }
            Status::Creating | Status::Removing => {
                entry.state().record.status = Status::Removing;
                let (shared, entry) = (Arc::clone(self), Arc::clone(entry));
                spawn("sweep", move || {
                    if let Err(error) = shared.finish_removal(&entry) {
                        tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot remove");
                    }
                });
            }
        }
    }

    /// Waits for the removal that is under way, or does what is left of one that was interrupted.
    pub(crate) fn finish_removal(&self, entry: &Entry) -> Result<(), EngineError> {
        let _operation = entry.operate();
        // Somebody else was first, and the name may be another sandbox's by now.
        if entry.state().removed {
            return Ok(());
        }
        silence(&entry.dir, &entry.record());
        self.delete(entry, PATIENT)
    }

    fn reconcile_running(self: &Arc<Self>, entry: &Arc<Entry>, record: &Record) {
        // Records of earlier versions do not say so.
        entry.state().record.hand_over_due = true;
        let error = match self.adopt(entry, record) {
            Ok(()) => return,
            Err(error) => error,
        };
        silence(&entry.dir, record);
        let rebooted = record
            .init
            .as_ref()
            .zip(boot_id().ok())
            .is_some_and(|(init, boot_id)| init.boot_id != boot_id);
        let reason = match &error {
            _ if rebooted => "host restarted",
            EngineError::Control(ControlError::Protocol(_)) => "started by another version of sbx",
            _ => "crashed",
        };
        tracing::warn!(sandbox = %entry.name, error = chain(&error), reason, "is not running any more");
        if let Err(error) = entry.update(|state| {
            state.record.set_stopped(reason.into(), Timestamp::now());
        }) {
            tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
        }
        if record.temporary {
            self.remove_temporary(entry);
        } else {
            self.hand_over_later(entry);
        }
    }

    /// Removes one that has stopped, unless somebody starts or removes it first.
    pub(crate) fn remove_temporary(self: &Arc<Self>, entry: &Arc<Entry>) {
        let (shared, entry) = (Arc::clone(self), Arc::clone(entry));
        spawn("clean-up", move || {
            let _operation = entry.operate();
            let (is_left, record) = {
                let state = entry.state();
                (state.live.is_none() && !state.removed, state.record.clone())
            };
            // What lies in the place of a removed one is another's.
            if !is_left || !record.temporary {
                return;
            }
            silence(&entry.dir, &record);
            if let Err(error) = shared.delete(&entry, PATIENT) {
                tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot remove");
            }
        });
    }

    /// Walks through a sandbox's workspaces, if that is due, while the daemon serves already.
    fn hand_over_later(self: &Arc<Self>, entry: &Arc<Entry>) {
        if !entry.state().record.hand_over_due {
            return;
        }
        let (shared, entry) = (Arc::clone(self), Arc::clone(entry));
        spawn("hand-over", move || {
            let _operation = entry.operate();
            let state = entry.state();
            let idle = state.live.is_none() && !state.removed;
            drop(state);
            if idle {
                shared.hand_over(&entry, PATIENT);
                if let Err(error) = entry.update(|_| {}) {
                    tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
                }
            }
        });
    }

    /// Takes a running init over from the daemon before.
    fn adopt(self: &Arc<Self>, entry: &Arc<Entry>, record: &Record) -> Result<(), EngineError> {
        let mut link = Link::connect(entry.dir.path(), &record.id, Role::Daemon)?;
        // Known before the deadline is looked at: it counts only when no command runs.
        let running = match link.next(Some(ANSWER_LIMIT))? {
            Event::Commands { running } => running,
            Event::Quiet => return Err(ControlError::TimedOut.into()),
            Event::Busy | Event::MountLost | Event::HandedOver | Event::Gone => {
                return Err(ControlError::Ended.into());
            }
        };
        let pidfd = record
            .init
            .as_ref()
            .and_then(open_process)
            .ok_or(ControlError::Ended)?;
        self.serve_network(entry, &mut link)?;
        self.watch(entry, link, pidfd, running)?;
        tracing::info!(sandbox = %entry.name, running, "taken over");
        Ok(())
    }
}

/// The recorded process, if it is still that one.
fn open_process(init: &InitProcess) -> Option<OwnedFd> {
    let pidfd = pidfd_open(init.pid).ok()?;
    // Compared after the descriptor is open: from now on the pid cannot become another process.
    (identify(init.pid).ok()? == *init).then_some(pidfd)
}

/// Ends an init that nobody has use for, if there is one.
pub(crate) fn silence(dir: &SandboxDir, record: &Record) {
    if let Some(pidfd) = record.init.as_ref().and_then(open_process) {
        end(&pidfd);
    }
    if !dir.path().join(EXEC_SOCKET).exists() {
        return;
    }
    // One that was started by a daemon that died before it wrote the pid down.
    if let Ok(link) = Link::connect(dir.path(), &record.id, Role::Daemon) {
        see_to_its_end(link, END_LIMIT);
    }
    remove_socket(dir);
}

/// Ends the init of a sandbox whose record cannot be read, if there is one. False when it may still run.
pub(crate) fn silence_unknown(dir: &SandboxDir) -> bool {
    let ended = match Link::connect_any(dir.path(), None, Role::Daemon) {
        Ok(link) => see_to_its_end(link, END_LIMIT),
        Err(ControlError::Io(error)) => nobody_listens(&error),
        Err(_) => false,
    };
    if ended {
        remove_socket(dir);
    }
    ended
}

/// False when it has not ended as far as can be seen.
fn see_to_its_end(mut link: Link, limit: Duration) -> bool {
    let asked = link
        .sender()
        .map_err(ControlError::Io)
        .and_then(|mut sender| sender.shutdown(Duration::ZERO));
    if asked.is_err() {
        return false;
    }
    let until = Instant::now() + limit;
    loop {
        match link.next(Some(until.saturating_duration_since(Instant::now()))) {
            Ok(Event::Commands { .. } | Event::MountLost | Event::HandedOver) => {}
            Ok(Event::Gone) => return true,
            Ok(Event::Busy | Event::Quiet) | Err(_) => return false,
        }
    }
}

/// A directory without a record holds nothing but an interrupted first write, or nothing at all. False of one of ours
/// that holds more: what a removal left, and whoever wants the name has to get rid of it.
fn sweep_unborn(dir: &SandboxDir) -> bool {
    let Ok(files) = fs::read_dir(dir.path()) else {
        return true;
    };
    for file in files.flatten() {
        if is_temporary(&file.file_name().to_string_lossy()) {
            drop(fs::remove_file(file.path()));
        }
    }
    let Err(error) = fs::remove_dir(dir.path()) else {
        return true;
    };
    let ours = fs::symlink_metadata(dir.path())
        .is_ok_and(|it| it.is_dir() && it.uid() == rustix::process::geteuid().as_raw());
    if !ours {
        tracing::warn!(%error, dir = %dir.path().display(), "a directory without a record is left alone");
    }
    !ours
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use sbx_proto::exec::Reply;
    use sbx_proto::{PROTOCOL, frame};

    use super::*;
    use crate::state::socket::bind_unix;

    #[test]
    fn an_init_that_only_talks_does_not_hold_anybody_up() {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind_unix(dir.path(), EXEC_SOCKET).unwrap();
        let init = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let hello = Reply::Hello {
                protocol: PROTOCOL,
                sandbox: "id".into(),
            };
            stream.write_all(&frame::encode(&hello).unwrap()).unwrap();
            let news = frame::encode(&Reply::Commands { running: 1 }).unwrap();
            // Slower than what counts as a flood, and for as long as somebody listens.
            while stream.write_all(&news).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let link = Link::connect_any(dir.path(), None, Role::Daemon).unwrap();
        assert!(!see_to_its_end(link, Duration::from_millis(50)));
        init.join().unwrap();
    }
}

//! What a daemon does first: it finds the sandboxes of the one before it, takes the running ones over and
//! finishes what was interrupted.
//!
//! The record on disk says what was intended, the machine says what is: `Running` is believed only if init answers on
//! its socket with the sandbox's id, and its process is the recorded one. `Creating` and `Removing` can only be interrupted operations, since the daemon lock
//! excludes another daemon, so both end in a removal. Whatever else may still run of a sandbox that is not adopted is
//! killed before anything of it is touched ([`leftover::end`]).
//!
//! Reconciling happens before the first request is served; removals and hand-overs, which can take long, go on in the
//! background under the operation lock of their sandbox, and look again once they have that lock.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use jiff::Timestamp;
use sbx_api::Status;

use super::entry::Entry;
use super::hand_over::HAND_OVER_TIMEOUT;
use crate::engine::{Engine, Registry, Shared};
use crate::error::{EngineError, chain};
use crate::machine::control::ControlError;
use crate::machine::process::boot_id;
use crate::machine::{Machine, leftover};
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{Record, RecordError};
use crate::state::{SandboxDir, is_temporary};
use crate::threads::{at_once, lock, spawn};

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
        shared.forget_rules_of_removed(&found);
        let entries: Vec<_> = found.entries.values().cloned().collect();
        *lock(&shared.registry) = found;
        shared.find_trash()?;
        let sandboxes = shared.config.state.sandboxes();
        shared.config.machines.release_unused(&sandboxes);
        shared.claim_again(&entries);
        shared.retire_unfinished_templates();
        let trash = Arc::clone(shared);
        spawn("trash", move || {
            trash.sweep_saved();
            trash.empty_trash();
        });
        at_once(&entries, |entry| shared.reconcile(entry));
        let timer = Arc::clone(shared);
        spawn("auto-stop", move || timer.run_timer());
        Ok(())
    }
}

impl Shared {
    /// A daemon was killed after it had removed a sandbox, and before it had removed the rules.
    fn forget_rules_of_removed(&self, found: &Registry) {
        let kept = self.config.book.keep_sandboxes(|name| {
            SandboxName::parse(name)
                .is_ok_and(|it| found.entries.contains_key(&it) || found.damaged.contains_key(&it))
        });
        if let Err(error) = kept {
            tracing::warn!(
                error = chain(&error),
                "rules of removed sandboxes stay for now"
            );
        }
    }

    /// For those whose state directory is in another place than before.
    fn claim_again(&self, entries: &[Arc<Entry>]) {
        for entry in entries {
            if !self
                .config
                .machines
                .claim_again(&entry.record(), &entry.dir)
            {
                tracing::warn!(sandbox = %entry.name, "another sandbox of root has the same ids by now, as after the copy of a state directory");
            }
        }
    }

    fn reconcile(self: &Arc<Self>, entry: &Arc<Entry>) {
        let record = entry.record();
        match record.status {
            Status::Running => self.reconcile_running(entry, &record),
            Status::Stopped if record.temporary => self.finish_removal_later(entry),
            Status::Stopped => {
                leftover::end(&entry.dir, &record);
                self.hand_over_later(entry);
            }
            Status::Creating | Status::Removing => self.finish_removal_later(entry),
        }
    }

    /// Of a temporary one too, which must not be started again: its files are not synced, and if the host has crashed any of
    /// them may be torn.
    fn finish_removal_later(self: &Arc<Self>, entry: &Arc<Entry>) {
        // In memory only: if this daemon dies as well, the next one sees the same record and does the same.
        entry.state().record.status = Status::Removing;
        let (shared, entry) = (Arc::clone(self), Arc::clone(entry));
        spawn("sweep", move || {
            if let Err(error) = shared.finish_removal(&entry) {
                tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot remove");
            }
        });
    }

    /// Waits for the removal that is under way, or does what is left of one that was interrupted.
    pub(crate) fn finish_removal(&self, entry: &Entry) -> Result<(), EngineError> {
        // The lock is taken before the state is read: whoever held it may have finished this removal.
        let _operation = entry.operate();
        // Another thread was first, and the name may be another sandbox's by now.
        if entry.state().removed {
            return Ok(());
        }
        leftover::end(&entry.dir, &entry.record());
        self.delete(entry, HAND_OVER_TIMEOUT)
    }

    fn reconcile_running(self: &Arc<Self>, entry: &Arc<Entry>, record: &Record) {
        // Until this init confirms its hand-over, files may be due. Records of earlier versions do not say so.
        entry.state().record.hand_over_due = true;
        let error = match self.adopt(entry, record) {
            Ok(()) => return,
            Err(error) => error,
        };
        leftover::end(&entry.dir, record);
        // A pid means nothing after a reboot: the kernel's boot id tells a crash from a restart of the host.
        let rebooted = record
            .init
            .as_ref()
            .zip(boot_id().ok())
            .is_some_and(|(init, boot_id)| init.boot_id != boot_id);
        let reason = match &error {
            _ if rebooted => "host restarted",
            EngineError::Control(ControlError::OtherVersion(_)) => {
                "started by another version of sbx"
            }
            _ => "crashed",
        };
        tracing::warn!(sandbox = %entry.name, error = chain(&error), reason, "is not running any more");
        if let Err(error) = entry.update(|state| {
            state.record.set_stopped(reason.into(), Timestamp::now());
        }) {
            tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
        }
        if record.temporary {
            self.finish_removal_later(entry);
        } else {
            self.hand_over_later(entry);
        }
    }

    /// Removes one that has stopped, unless another request starts or removes it first.
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
            leftover::end(&entry.dir, &record);
            if let Err(error) = shared.delete(&entry, HAND_OVER_TIMEOUT) {
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
                shared.hand_over(&entry, HAND_OVER_TIMEOUT);
                if let Err(error) = entry.update(|_| {}) {
                    tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
                }
            }
        });
    }

    /// Takes a running machine over from the daemon before.
    fn adopt(self: &Arc<Self>, entry: &Arc<Entry>, record: &Record) -> Result<(), EngineError> {
        let (mut machine, running) = Machine::adopt(record, &entry.dir)?;
        self.serve_network(entry, &mut machine.link)?;
        self.watch(entry, machine, running)?;
        self.restore_ports(entry);
        tracing::info!(sandbox = %entry.name, running, "taken over");
        Ok(())
    }
}

/// A directory without a record holds nothing but an interrupted first write, or nothing at all. False of one of ours
/// that holds more: what a removal left, which the user has to remove before the name can be used again.
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

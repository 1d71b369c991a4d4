//! How everything of a sandbox is removed. The caller holds the operation lock of the sandbox.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sbx_api::Status;

use super::entry::Entry;
use super::hand_over::SHORT_HAND_OVER_TIMEOUT;
use crate::engine::Shared;
use crate::error::{EngineError, chain, prepare_error};
use crate::machine::leftover;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::Record;
use crate::state::remove_tree::remove_tree;
use crate::state::{RECORD, SandboxDir};
use crate::threads::lock;

/// Seconds between attempts to remove what a failed create left.
const REMOVAL_RETRY_DELAYS: &[u64] = &[1, 2, 5, 10, 30, 60, 300, 900];

impl Shared {
    /// Removes a sandbox that does not run: when this returns, it can neither be reached nor come back, and its name is
    /// free. Its files are deleted in the background ([`super::trash`]). `limit` is for handing over what is left in the
    /// workspaces.
    pub(crate) fn delete(&self, entry: &Entry, limit: Duration) -> Result<(), EngineError> {
        if entry.state().removed {
            return Ok(());
        }
        if let Err(error) = entry.update(|state| state.record.status = Status::Removing) {
            // A full disk must not prevent the removal of what fills it.
            tracing::warn!(sandbox = %entry.name, error = chain(&error), "cannot record the removal");
        }
        self.hand_over(entry, limit);
        let record = entry.record();
        if let Err(error) = self.discard(&record, &entry.dir) {
            // A full disk has no room for another directory.
            tracing::warn!(sandbox = %entry.name, error = chain(&error), "deleting it in its place");
            self.delete_storage(&record, &entry.dir, &entry.dir)?;
        }
        self.forget(entry);
        Ok(())
    }

    /// Deletes the files of a sandbox, wherever they lie by now.
    pub(crate) fn delete_storage(
        &self,
        record: &Record,
        dir: &SandboxDir,
        origin: &SandboxDir,
    ) -> Result<(), EngineError> {
        self.config.machines.remove_storage(record, dir, origin)?;
        delete_files(dir)
    }

    /// After a create that failed where removing failed too, for example for lack of file descriptors.
    pub(crate) fn delete_later(self: &Arc<Self>, entry: Arc<Entry>) {
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new()
            .name("clean-up".into())
            .spawn(move || {
                for seconds in REMOVAL_RETRY_DELAYS {
                    std::thread::sleep(Duration::from_secs(*seconds));
                    let _operation = entry.operate();
                    if entry.state().removed || shared.delete(&entry, SHORT_HAND_OVER_TIMEOUT).is_ok() {
                        return;
                    }
                }
                tracing::error!(sandbox = %entry.name, "what a failed create left cannot be removed");
            });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread");
        }
    }

    pub(crate) fn remove_damaged(&self, name: &SandboxName) -> Result<(), EngineError> {
        // One at a time, and looked for again: the name may be another sandbox's by now.
        let _one = lock(&self.damaged);
        if !lock(&self.registry).damaged.contains_key(name) {
            return Err(EngineError::NotFound(name.to_string()));
        }
        let dir = self.config.state.sandbox(name);
        if !leftover::end_unknown(&dir) {
            return Err(EngineError::Unstoppable(name.clone()));
        }
        self.config.machines.remove_unknown_storage(&dir)?;
        delete_files(&dir)?;
        self.forget_rules(name);
        lock(&self.registry).damaged.remove(name);
        Ok(())
    }
}

/// The rest of a sandbox's directory. The record goes last: after a crash it says what is left to remove.
pub(super) fn delete_files(dir: &SandboxDir) -> Result<(), EngineError> {
    let failed = |e| prepare_error(dir.path(), e);
    let files = match fs::read_dir(dir.path()) {
        // Another process removed it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        files => files.map_err(failed)?,
    };
    for file in files {
        let file = file.map_err(failed)?;
        if file.file_name() != RECORD {
            remove_tree(&file.path())?;
        }
    }
    Ok(remove_tree(dir.path())?)
}

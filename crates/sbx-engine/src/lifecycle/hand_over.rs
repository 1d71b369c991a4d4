//! When files that root inside created in the workspaces are handed over to the caller.
//!
//! Init does it before it exits, with chown(2) from inside its user namespace. If init was killed first, the record says
//! that the hand-over is due (`hand_over_due`), and a helper does it here: at the next start, by the next daemon, or before
//! the removal. What fails stays due, and the sandbox has a warning until it succeeds.

use std::time::Duration;

use super::entry::Entry;
use crate::engine::Shared;
use crate::error::{EngineError, chain};
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::Record;

/// For a walk through every file of the workspaces. A second sandbox that shares one of them can make it a long one.
pub(crate) const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Where the caller waits for something else.
pub(crate) const SHORT_HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const LEFT: &str = "files that root inside made in its workspaces may not be yours";

impl Shared {
    /// Does what is due, when no machine runs. What fails or takes longer stays due: for the next start, the next
    /// daemon, or the removal.
    pub(crate) fn hand_over(&self, entry: &Entry, limit: Duration) {
        let state = self.config.state.root();
        let done = self
            .config
            .machines
            .hand_over(&entry.record(), state, limit);
        let record = &mut entry.state().record;
        record.warnings.retain(|warning| warning != LEFT);
        match done {
            Ok(()) => record.hand_over_due = false,
            Err(error) => {
                record.warnings.push(LEFT.into());
                log_failure(&entry.name, &error);
            }
        }
    }
}

/// What a removal has to tell of the workspaces.
pub(crate) fn left_behind(record: &Record) -> Vec<String> {
    let warnings = record.warnings.iter();
    warnings
        .filter(|warning| *warning == LEFT)
        .cloned()
        .collect()
}

/// Always logged: nothing else shows it.
pub(crate) fn log_failure(sandbox: &SandboxName, error: &EngineError) {
    tracing::warn!(%sandbox, error = chain(error), "{LEFT}");
}

//! Files of root inside that an init did not live to hand over to the caller. A helper does it with the power and
//! through the mounts that the init had, never as the host's root.

use std::path::Path;
use std::time::Duration;

use sbx_proto::plan::Mode;

use crate::engine::Shared;
use crate::error::{EngineError, chain};
use crate::lifecycle::entry::Entry;
use crate::machine::namespace::helper::Helper;
use crate::machine::namespace::plan::hand_over_plan;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::Record;
use crate::workspace::still_shared;

/// For a walk through every file of the workspaces. A second sandbox that has one of them can make it a long one.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);
/// Where somebody waits who has not asked for it.
pub(crate) const BRIEF: Duration = Duration::from_secs(5);

const LEFT: &str = "files that root inside made in its workspaces may not be yours";

impl Shared {
    /// Does what is due, when no init runs. What fails or takes longer stays due: for the next start, the next daemon,
    /// the removal.
    pub(crate) fn hand_over(&self, entry: &Entry, limit: Duration) {
        let (helper, state) = (&self.config.helper, self.config.state.root());
        let done = hand_over(helper, state, &entry.record(), limit);
        let record = &mut entry.state().record;
        record.warnings.retain(|warning| warning != LEFT);
        match done {
            Ok(()) => record.hand_over_due = false,
            Err(error) => {
                record.warnings.push(LEFT.into());
                tell(&entry.name, &error);
            }
        }
    }
}

/// An error when a workspace is gone or another one by now; the others are done all the same.
pub(crate) fn hand_over(
    helper: &Helper,
    state: &Path,
    record: &Record,
    limit: Duration,
) -> Result<(), EngineError> {
    // With one id everything is the caller's.
    if !record.hand_over_due || record.ids.mode == Mode::Single {
        return Ok(());
    }
    let found = still_shared(&record.workspaces, state)?;
    if !found.writable.is_empty() {
        helper.hand_over(&hand_over_plan(record, &found, limit), limit)?;
    }
    found.lost.map_or(Ok(()), |error| Err(error.into()))
}

/// What a removal has to tell of the workspaces.
pub(crate) fn left_behind(record: &Record) -> Vec<String> {
    let warnings = record.warnings.iter();
    warnings
        .filter(|warning| *warning == LEFT)
        .cloned()
        .collect()
}

/// Never silent: nobody else would look.
pub(crate) fn tell(sandbox: &SandboxName, error: &EngineError) {
    tracing::warn!(%sandbox, error = chain(error), "{LEFT}");
}

//! Files of root inside that an init did not live to hand over to the caller. A helper does it with the power and
//! through the mounts that the init had, never as the host's root.

use std::path::Path;

use sbx_proto::plan::Mode;

use crate::engine::Shared;
use crate::entry::Entry;
use crate::error::{EngineError, chain};
use crate::plan::hand_over_plan;
use crate::record::Record;
use crate::setup::Helper;
use crate::workspace::still_shared;

impl Shared {
    /// Does what is due, when no init runs. What fails stays due: for the next start, the next daemon, the removal.
    pub(crate) fn hand_over(&self, entry: &Entry) {
        let (helper, state) = (&self.config.helper, self.config.state.root());
        match hand_over(helper, state, &entry.record()) {
            Ok(()) => entry.state().record.hand_over_due = false,
            Err(error) => {
                tracing::warn!(sandbox = %entry.name, error = chain(&error), "files of root in its workspaces may not be the caller's");
            }
        }
    }
}

/// An error when a workspace is gone or another one by now; the others are done all the same.
pub(crate) fn hand_over(helper: &Helper, state: &Path, record: &Record) -> Result<(), EngineError> {
    // With one id everything is the caller's.
    if !record.hand_over_due || record.ids.mode == Mode::Single {
        return Ok(());
    }
    let found = still_shared(&record.workspaces, state)?;
    if !found.writable.is_empty() {
        helper.hand_over(&hand_over_plan(record, &found))?;
    }
    found.lost.map_or(Ok(()), |error| Err(error.into()))
}

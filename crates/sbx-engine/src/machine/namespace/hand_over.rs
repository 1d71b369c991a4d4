//! Hand-over of files that an init did not live to do: root inside created them in a workspace, and the caller is to own
//! them. A helper does it with the privileges and through the mounts that init had, never as the host's root: a program
//! in the sandbox could have made the workspace point elsewhere.

use std::path::Path;
use std::time::Duration;

use sbx_proto::plan::Mode;

use super::Namespace;
use super::plan::hand_over_plan;
use crate::error::EngineError;
use crate::sandbox::record::Record;
use crate::workspace::still_shared;

impl Namespace {
    pub(in crate::machine) fn hand_over(
        &self,
        record: &Record,
        state: &Path,
        limit: Duration,
    ) -> Result<(), EngineError> {
        // With one id every file is the caller's.
        if record.ids.mode == Mode::Single {
            return Ok(());
        }
        let found = still_shared(&record.shared_directories(), state)?;
        if !found.writable.is_empty() {
            self.helper
                .hand_over(&hand_over_plan(record, &found, limit), limit)?;
        }
        found.lost.map_or(Ok(()), |error| Err(error.into()))
    }
}

//! The namespace backend: a sandbox is a set of Linux namespaces on the host's own kernel.
//!
//! The engine computes a plan ([`plan`]), which the setup helper ([`helper`]) applies: it creates user, mount and pid
//! namespaces, mounts what the host template ([`template`]) consists of, and leaves init behind. How ids inside relate
//! to ids of the host, and with it what is possible at all, depends on the privilege mode ([`ids`]): root, a user with
//! subordinate ids, or a user with one id. Modes are known in this folder only.

mod boot;
mod hand_over;
pub mod helper;
pub mod ids;
mod isolation;
pub mod limits;
pub mod plan;
pub mod template;

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;

use sbx_proto::plan::{Ids, Mode};

use crate::error::EngineError;
use crate::sandbox::record::WorkspaceRecord;
use crate::state::SandboxDir;
use helper::Helper;
use ids::{Facts, IdsError, OTHER_GROUP_REMEDY, Used};

pub use ids::ModeOverride;
pub(crate) use isolation::describe;

#[derive(Debug)]
pub struct Namespace {
    facts: Facts,
    helper: Helper,
    /// Of new sandboxes.
    mode: Mode,
    /// Held while a template is looked for or built.
    template: Mutex<()>,
    /// Held while templates that are not in use are removed.
    template_removal: Mutex<()>,
}

impl Namespace {
    /// `wanted` is the mode that the settings ask for.
    pub fn new(facts: Facts, helper: Helper, wanted: Option<ModeOverride>) -> Self {
        Self {
            mode: ids::pick_mode(&facts, wanted),
            helper: helper.mapping_with(facts.map_tools.clone()),
            facts,
            template: Mutex::default(),
            template_removal: Mutex::default(),
        }
    }

    pub(super) fn assign_ids(&self, used: &[u32]) -> Result<Ids, EngineError> {
        let used = Used {
            bases: used,
            start: uuid::Uuid::new_v4().as_fields().0,
        };
        Ok(ids::maps(&self.facts, self.mode, used)?)
    }

    pub(super) fn no_ids(&self) -> Ids {
        Ids {
            mode: self.mode,
            uid: Vec::new(),
            gid: Vec::new(),
        }
    }

    /// Maps for removing what a sandbox with unknown ids left: in the modes in which that needs a helper, all sandboxes
    /// have the same ids.
    fn any_ids(&self) -> Result<Ids, IdsError> {
        ids::maps(&self.facts, self.mode, Used::default())
    }

    pub(super) fn remove_storage(&self, dir: &SandboxDir, ids: &Ids) -> Result<(), EngineError> {
        self.helper.remove_tree(&dir.layers(), || Ok(ids.clone()))
    }

    pub(super) fn remove_unknown_storage(&self, dir: &SandboxDir) -> Result<(), EngineError> {
        let ids = self.any_ids()?;
        self.remove_storage(dir, &ids)
    }

    pub(super) fn remove_tree(&self, path: &Path) -> Result<(), EngineError> {
        self.helper.remove_tree(path, || Ok(self.any_ids()?))
    }

    pub(super) fn close(&self) {
        self.helper.discard_prestarted();
    }

    /// Why the caller's subordinate ids cannot be used, although there are some.
    pub(super) fn group_warning(&self) -> Option<String> {
        (self.mode == Mode::Single && self.facts.lacks_group()).then(|| {
            format!(
                "sbx runs with a group that is not the primary group of your account, and cannot use your subordinate ids: {OTHER_GROUP_REMEDY}"
            )
        })
    }

    pub(super) fn workspace_warnings(&self, workspace: &WorkspaceRecord) -> Vec<String> {
        let path = workspace.path.as_path();
        let shown = path.display();
        let mut warnings = Vec::new();
        if self.mode != Mode::Root && workspace.uid != self.facts.uid {
            warnings.push(format!(
                "`{shown}` belongs to user {}: inside, its files appear to belong to `nobody`",
                workspace.uid
            ));
        }
        if self.mode == Mode::Subordinate
            && fs::metadata(path).is_ok_and(|meta| is_closed_to_root(&meta, &self.facts))
        {
            warnings.push(format!(
                "`{shown}` is closed to others, and its owner or group has no id inside: root there (`-u root`, `sudo`) cannot enter it"
            ));
        }
        warnings
    }
}

/// With subordinate ids, root inside is one of "others" on the host, except for files whose owner and group are both
/// mapped into the sandbox (CAP_DAC_OVERRIDE of a user namespace needs both).
fn is_closed_to_root(meta: &Metadata, facts: &Facts) -> bool {
    const OTHERS_SEARCH: u32 = 0o001;
    let mapped = meta.uid() == facts.uid && meta.gid() == facts.gid;
    meta.is_dir() && meta.mode() & OTHERS_SEARCH == 0 && !mapped
}

#[cfg(test)]
mod tests;

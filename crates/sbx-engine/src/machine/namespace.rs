//! The namespace backend: a sandbox is a set of Linux namespaces on the host's own kernel.
//!
//! The engine computes a plan ([`plan`]), which the setup helper ([`helper`]) applies: it creates user, mount and pid
//! namespaces, mounts what the host template ([`template`]) consists of, and leaves init behind. How ids inside relate
//! to ids of the host, and with it what is possible at all, depends on the privilege mode ([`ids`]): root, a user with
//! subordinate ids, or a user with one id. Modes are known in this folder only.

mod accounts;
mod boot;
pub mod cgroup;
mod hand_over;
pub mod helper;
mod id_claims;
pub mod ids;
mod isolation;
pub mod limits;
pub mod plan;
pub mod template;

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use sbx_api::Limits;
use sbx_proto::plan::{Ids, Mode};

use crate::error::{EngineError, prepare_error};
use crate::sandbox::record::WorkspaceRecord;
use crate::state::SandboxDir;
use crate::threads::lock;
use helper::Helper;
use id_claims::IdClaims;
use ids::{Facts, IdsError, OTHER_GROUP_REMEDY, Span, Used};

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
    /// Ids of accounts, and when they were looked up.
    accounts: Mutex<Option<(Instant, Vec<Span>)>>,
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
            accounts: Mutex::default(),
        }
    }

    /// In root mode the range is claimed for the sandbox of that directory, until its storage is removed.
    pub(super) fn assign_ids(&self, used: &[u32], dir: &SandboxDir) -> Result<Ids, EngineError> {
        let accounts = self.accounts();
        let claims = self.facts.claims.as_ref();
        let failed = |source| {
            let path = claims.map(IdClaims::place).unwrap_or_default();
            prepare_error(&path, source)
        };
        let locked = match (self.mode, claims) {
            (Mode::Root, Some(claims)) if !self.facts.confined => {
                Some(claims.lock().map_err(failed)?)
            }
            (Mode::Root | Mode::Subordinate | Mode::Single, _) => None,
        };
        let mut bases = used.to_vec();
        loop {
            let used = Used {
                bases: &bases,
                accounts: &accounts,
                start: uuid::Uuid::new_v4().as_fields().0,
            };
            let ids = ids::maps(&self.facts, self.mode, used)?;
            let (Some(locked), Some(base)) = (&locked, ids::base(&ids)) else {
                return Ok(ids);
            };
            if locked.claim(base, dir.path()).map_err(failed)? {
                return Ok(ids);
            }
            bases.push(base);
        }
    }

    /// Ids of accounts, which matter in root mode alone. The name service is asked once in a while.
    fn accounts(&self) -> Vec<Span> {
        if self.facts.claims.is_none() || self.mode != Mode::Root {
            return Vec::new();
        }
        let mut known = lock(&self.accounts);
        match &*known {
            Some((at, spans)) if at.elapsed() < accounts::REFRESH_INTERVAL => spans.clone(),
            Some(_) | None => {
                let spans = accounts::in_use();
                *known = Some((Instant::now(), spans.clone()));
                spans
            }
        }
    }

    /// Looks up what [`Self::assign_ids`] needs, which may take a while.
    pub(super) fn prepare_ids(&self) {
        drop(self.accounts());
    }

    fn release_ids(&self, ids: &Ids, dir: &SandboxDir) {
        if let Some(base) = ids::base(ids)
            && let Err(error) = self.facts.controllers.remove(base)
        {
            tracing::warn!(%error, base, "cannot remove the control groups of a sandbox");
        }
        if let (Some(claims), Some(base)) = (&self.facts.claims, ids::base(ids)) {
            let released = claims.lock().and_then(|it| it.release(base, dir.path()));
            if let Err(error) = released {
                tracing::warn!(%error, base, "a range of ids stays claimed until its sandbox's directory is gone");
            }
        }
    }

    pub(super) fn limits(&self, asked: &Limits) -> Result<Limits, EngineError> {
        let host = limits::Host::read();
        Ok(limits::effective(asked, &self.facts.controllers, &host)?)
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
        self.helper.remove_tree(&dir.layers(), || Ok(ids.clone()))?;
        self.release_ids(ids, dir);
        Ok(())
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

//! The namespace backend: a sandbox is a set of Linux namespaces on the host's own kernel.
//!
//! The engine computes a plan ([`plan`]), which the setup helper ([`helper`]) applies: it creates user, mount and pid
//! namespaces, mounts what the host template ([`template`]) consists of, and leaves init behind. How ids inside relate
//! to ids of the host, and with it what is possible at all, depends on the privilege mode ([`ids`]): root, a user with
//! subordinate ids, or a user with one id. Modes are known in this folder only.

mod accounts;
mod boot;
pub mod cgroup;
pub mod devices;
mod disk;
mod hand_over;
pub mod helper;
mod id_claims;
pub mod ids;
mod isolation;
pub mod limits;
mod mounts;
pub mod plan;
mod saved;
pub mod template;

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use sbx_api::{LimitKind, Limits, Usage};
use sbx_proto::plan::{Ids, Mode, Task};

use crate::error::{EngineError, prepare_error};
use crate::sandbox::record::{Record, WorkspaceRecord};
use crate::state::SandboxDir;
use crate::threads::lock;
use cgroup::Controllers;
use helper::Helper;
use id_claims::IdClaims;
use ids::{Facts, IdsError, OTHER_GROUP_REMEDY, Span, Used};
use limits::{Decided, Support};

pub use ids::ModeOverride;
pub(crate) use isolation::{describe, mode_name};

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
    /// Those that work, found out when the first sandbox is made or started.
    controllers: OnceLock<Controllers>,
    /// The user knows that a usual limit is not enforced.
    warned: AtomicBool,
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
            controllers: OnceLock::new(),
            warned: AtomicBool::new(false),
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

    /// Sandboxes of a state directory that was moved still have the ranges that they had. False when another sandbox has
    /// this one's by now.
    pub(super) fn claim_again(&self, ids: &Ids, dir: &SandboxDir) -> bool {
        let (Some(claims), Some(base)) = (&self.facts.claims, ids::base(ids)) else {
            return true;
        };
        let claimed = claims
            .lock()
            .and_then(|it| it.claim_again(base, dir.path()));
        claimed.unwrap_or_else(|error| {
            tracing::warn!(%error, base, "cannot claim the range of ids of a sandbox");
            true
        })
    }

    fn release_ids(&self, ids: &Ids, dir: &SandboxDir) {
        if let (Some(claims), Some(base)) = (&self.facts.claims, ids::base(ids)) {
            let released = claims.lock().and_then(|it| it.release(base, dir.path()));
            if let Err(error) = released {
                tracing::warn!(%error, base, "a range of ids stays claimed until its sandbox's directory is gone");
            }
        }
    }

    /// The same for one whose record cannot be read.
    fn release_any_ids(&self, dir: &SandboxDir) {
        if let Some(claims) = &self.facts.claims {
            let released = claims.lock().and_then(|it| it.release_all(dir.path()));
            if let Err(error) = released {
                tracing::warn!(%error, dir = %dir.path().display(), "a range of ids stays claimed until its sandbox's directory is gone");
            }
        }
    }

    /// Gives up ids of sandboxes below a directory that are not there. No sandbox may be under way.
    pub(super) fn release_unused(&self, sandboxes: &Path) {
        if let (Mode::Root, Some(claims)) = (self.mode, &self.facts.claims) {
            let released = claims.lock().and_then(|it| it.release_unused(sandboxes));
            if let Err(error) = released {
                tracing::warn!(%error, "ranges of ids of sandboxes that are gone stay claimed");
            }
        }
    }

    fn remove_groups(dir: &SandboxDir) {
        if let Err(error) = cgroup::remove(&groups_of(dir)) {
            tracing::warn!(%error, "cannot remove the control groups of a sandbox");
        }
    }

    fn controllers(&self) -> &Controllers {
        self.controllers.get_or_init(|| {
            let found = self.facts.controllers.clone();
            found.usable_in(self.mode).that_work()
        })
    }

    fn support(&self) -> Support {
        Support::new(self.controllers(), disk::possible(self.mode))
    }

    pub(super) fn limits(
        &self,
        asked: &Limits,
        preferred: &[LimitKind],
    ) -> Result<Decided, EngineError> {
        let (support, host) = (self.support(), limits::Host::read());
        let mut decided = limits::effective(asked, preferred, &support, &host)?;
        // What was not asked for is told once.
        if asked.memory_bytes.is_none()
            && let Some(warning) = limits::default_memory_warning(&support)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            decided.warnings.push(warning);
        }
        Ok(decided)
    }

    /// What the processes of a sandbox use, if it runs.
    pub(super) fn usage(record: &Record, dir: &SandboxDir) -> Usage {
        let Some(init) = &record.init else {
            return Usage::default();
        };
        let used = cgroup::used(&groups_of(dir), init.pid);
        Usage {
            cpu_micros: used.cpu_micros,
            memory_bytes: used.memory_bytes,
            processes: used.processes,
            disk_bytes: None,
        }
    }

    /// What the own files of a sandbox take on disk.
    pub(super) fn disk_usage(&self, record: &Record, dir: &SandboxDir) -> Result<u64, EngineError> {
        match disk::size(dir) {
            Some(bytes) => Ok(bytes),
            None => {
                let path = dir.layers().as_path().into();
                Ok(self.helper.measure(&record.ids, Task::Measure { path })?)
            }
        }
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

    pub(super) fn remove_storage(
        &self,
        dir: &SandboxDir,
        origin: &SandboxDir,
        ids: &Ids,
    ) -> Result<(), EngineError> {
        self.helper.remove_tree(&dir.layers(), || Ok(ids.clone()))?;
        Self::remove_groups(dir);
        self.release_ids(ids, origin);
        Ok(())
    }

    pub(super) fn remove_unknown_storage(&self, dir: &SandboxDir) -> Result<(), EngineError> {
        self.helper
            .remove_tree(&dir.layers(), || Ok(self.any_ids()?))?;
        self.release(dir);
        Ok(())
    }

    /// Gives up what a sandbox has beside its files, without its record.
    pub(super) fn release(&self, dir: &SandboxDir) {
        Self::remove_groups(dir);
        self.release_any_ids(dir);
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

/// The control groups that the sandbox was given.
fn groups_of(dir: &SandboxDir) -> Vec<PathBuf> {
    let listed = fs::read_to_string(dir.groups()).unwrap_or_default();
    let paths = listed.lines().map(PathBuf::from);
    paths.filter(|path| cgroup::is_group(path)).collect()
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

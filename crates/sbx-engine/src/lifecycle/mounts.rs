//! Workspaces that are mounted into a sandbox after it was made, and unmounted.
//!
//! The record is written first, with what is [`Pending`]: whatever ends the daemon in between, the next start does it. Then
//! the running sandbox is changed, if that is possible; and then the record says that it was.

mod error;

use std::path::{Path, PathBuf};

use sbx_api::{MountChange, WorkspaceRequest};

use super::entry::Entry;
use super::hand_over::{LEFT, SHORT_HAND_OVER_TIMEOUT, log_failure};
use crate::engine::{Engine, Shared};
use crate::error::{EngineError, chain};
use crate::machine::{Changed, workspace_mount};
use crate::sandbox::record::{GitShare, Pending, Record, WorkspaceRecord};
use crate::sandbox::view;
use crate::state::{StateDir, is_state};
use crate::workspace::{self, WorkspaceError, hints, worktree};

pub(crate) use error::MountError;

/// What was pending is what the next start does.
pub(super) fn settle(record: &mut Record) {
    let is_gone = |it: &WorkspaceRecord| it.pending == Some(Pending::Unmount);
    let mut workspaces = std::mem::take(&mut record.workspaces).into_iter();
    let (gone, kept): (Vec<_>, Vec<_>) = workspaces.by_ref().partition(is_gone);
    record
        .git
        .retain(|share| gone.iter().all(|gone| gone.path != share.workspace));
    record.workspaces = kept.into_iter().map(settled).collect();
}

impl Engine {
    /// Mounts a workspace, at once if the sandbox runs and that is possible, else from its next start on.
    pub fn mount(
        &self,
        name: &str,
        request: &WorkspaceRequest,
    ) -> Result<MountChange, EngineError> {
        let shared = &self.shared;
        let entry = shared.entry(name)?;
        let _operation = entry.operate();
        shared.still_there(&entry)?;
        let runs = entry.use_now(shared.settings().auto_stop);
        if let Some(known) = due_to_go(&entry.record(), request) {
            return shared.take_back(&entry, &known, runs);
        }
        let draft = shared.draft_mount(&entry, request)?;
        if runs {
            return shared.mount_now(&entry, draft);
        }
        let added = entry.update(|state| add(&mut state.record, &draft.workspace, draft.git));
        added.inspect_err(|_| forget(&mut entry.state().record, &draft.workspace))?;
        Ok(answer(&draft.workspace, false, None, draft.warnings))
    }

    /// Takes a workspace away, at once if that is possible, else from the next start on.
    pub fn unmount(&self, name: &str, path: &str) -> Result<MountChange, EngineError> {
        let shared = &self.shared;
        let entry = shared.entry(name)?;
        let _operation = entry.operate();
        shared.still_there(&entry)?;
        let runs = entry.use_now(shared.settings().auto_stop);
        let record = entry.record();
        let workspace = find(&record, path)?;
        let mut primary = record.primary().into_iter();
        if primary.any(|it| it.path == workspace.path) {
            let (sandbox, path) = (record.name, workspace.path.to_path_buf());
            return Err(MountError::Primary { sandbox, path }.into());
        }
        let pending = Some(Pending::Unmount);
        let marked = entry.update(|state| set_pending(&mut state.record, &workspace, pending));
        marked.inspect_err(|_| {
            set_pending(&mut entry.state().record, &workspace, workspace.pending);
        })?;
        if runs {
            shared.unmount_now(&entry, workspace)
        } else {
            shared.unmount_stopped(&entry, workspace)
        }
    }
}

/// A workspace that passed all checks.
struct Draft {
    workspace: WorkspaceRecord,
    git: Vec<GitShare>,
    warnings: Vec<String>,
}

impl Shared {
    fn draft_mount(&self, entry: &Entry, request: &WorkspaceRequest) -> Result<Draft, EngineError> {
        let (record, state) = (entry.record(), self.config.state.root());
        let others = self.writable();
        let workspace = workspace::resolve_added(&record.workspaces, request, state, &others);
        let workspace = workspace.map_err(|error| match error {
            WorkspaceError::Twice(path) => {
                let sandbox = entry.name.clone();
                EngineError::from(MountError::Already { sandbox, path })
            }
            other => other.into(),
        })?;
        let alone = std::slice::from_ref(&workspace);
        if let Ok(usual) = StateDir::locate(Path::new(&record.caller.home), None)
            && is_state(usual.root())
        {
            workspace::keep_clear_of(alone, usual.root())?;
        }
        let mut git = worktree::find(alone, state, false)?;
        for share in &mut git.shares {
            // The next start shares it.
            share.shared = false;
        }
        let machines = &self.config.machines;
        let of_backend = |it: &WorkspaceRecord| machines.workspace_warnings(record.backend, it);
        let mut warnings = hints::warnings(alone, &of_backend);
        warnings.extend(git.warnings);
        Ok(Draft {
            workspace,
            git: git.shares,
            warnings,
        })
    }

    /// One that was to be unmounted with the next start stays. It may be gone by now: the daemon was killed right after it had
    /// unmounted it, or root inside did that.
    fn take_back(
        &self,
        entry: &Entry,
        known: &WorkspaceRecord,
        runs: bool,
    ) -> Result<MountChange, EngineError> {
        let record = entry.record();
        // What is in another one, or masks, was mounted by a start, and is locked.
        let mut others = record.clone();
        forget(&mut others, known);
        let is_locked = not_now(&others, known, &shares_of(&record, known)).is_some();
        let mut changed = Changed::Now;
        if runs && known.added && !is_locked {
            changed = self.config.machines.attach(&record, &entry.dir, known)?;
        }
        let (pending, why) = match changed {
            Changed::Now => (None, None),
            Changed::NotNow(why) => (Some(Pending::Mount), Some(why)),
        };
        entry.update(|state| set_pending(&mut state.record, known, pending))?;
        let kept = WorkspaceRecord {
            pending,
            ..known.clone()
        };
        Ok(answer(&kept, runs, why, Vec::new()))
    }

    fn mount_now(&self, entry: &Entry, draft: Draft) -> Result<MountChange, EngineError> {
        let Draft {
            workspace,
            git,
            warnings,
        } = draft;
        let not_now = not_now(&entry.record(), &workspace, &git);
        let pending = WorkspaceRecord {
            pending: Some(Pending::Mount),
            ..workspace.clone()
        };
        let added = entry.update(|state| add(&mut state.record, &pending, git));
        added.inspect_err(|_| forget(&mut entry.state().record, &workspace))?;
        let machines = &self.config.machines;
        let changed = match not_now {
            Some(why) => Ok(Changed::NotNow(why)),
            None => machines.attach(&entry.record(), &entry.dir, &workspace),
        };
        match changed {
            Ok(Changed::Now) => {
                entry.update(|state| {
                    set_pending(&mut state.record, &workspace, None);
                    let shown = workspace_mount(state.record.backend, &workspace);
                    state.record.mounts.push(shown);
                })?;
                Ok(answer(&workspace, true, None, warnings))
            }
            Ok(Changed::NotNow(why)) => Ok(answer(&pending, true, Some(why), warnings)),
            Err(error) => {
                undo(entry, |record| forget(record, &workspace));
                Err(error)
            }
        }
    }

    fn unmount_now(
        &self,
        entry: &Entry,
        workspace: WorkspaceRecord,
    ) -> Result<MountChange, EngineError> {
        let record = entry.record();
        let machines = &self.config.machines;
        match machines.detach(&record, &entry.dir, &workspace) {
            Ok(Changed::Now) => {
                let warnings = self.hand_over_of(entry);
                entry.update(|state| forget(&mut state.record, &workspace))?;
                Ok(answer(&settled(workspace), true, None, warnings))
            }
            // It had not been mounted.
            Ok(Changed::NotNow(_)) if workspace.pending == Some(Pending::Mount) => {
                entry.update(|state| forget(&mut state.record, &workspace))?;
                Ok(answer(&settled(workspace), true, None, Vec::new()))
            }
            Ok(Changed::NotNow(why)) => {
                let pending = WorkspaceRecord {
                    pending: Some(Pending::Unmount),
                    ..workspace
                };
                Ok(answer(&pending, true, Some(why), Vec::new()))
            }
            Err(error) => {
                undo(entry, |record| {
                    set_pending(record, &workspace, workspace.pending);
                });
                Err(busy(error, &record, &workspace))
            }
        }
    }

    /// What is due in it is handed over before the record forgets where it was.
    fn unmount_stopped(
        &self,
        entry: &Entry,
        workspace: WorkspaceRecord,
    ) -> Result<MountChange, EngineError> {
        // One that is ending does that by itself.
        if entry.state().live.is_none() {
            self.hand_over(entry, SHORT_HAND_OVER_TIMEOUT);
            if !entry.record().hand_over_due {
                entry.update(|state| forget(&mut state.record, &workspace))?;
            }
        }
        Ok(answer(&settled(workspace), false, None, Vec::new()))
    }

    /// Files that root inside made in a workspace that programs inside have no more, and init neither.
    fn hand_over_of(&self, entry: &Entry) -> Vec<String> {
        let record = Record {
            hand_over_due: true,
            ..entry.record()
        };
        let state = self.config.state.root();
        let machines = &self.config.machines;
        match machines.hand_over(&record, state, SHORT_HAND_OVER_TIMEOUT) {
            Ok(()) => Vec::new(),
            Err(error) => {
                log_failure(&entry.name, &error);
                vec![LEFT.into()]
            }
        }
    }
}

/// The same workspace, if it is to be unmounted with the next start.
fn due_to_go(record: &Record, request: &WorkspaceRequest) -> Option<WorkspaceRecord> {
    let place = request.target.as_deref().unwrap_or(&request.path);
    let mut workspaces = record.workspaces.iter();
    let known = workspaces.find(|it| {
        it.pending == Some(Pending::Unmount)
            && it.path.as_path() == Path::new(&request.path)
            && it.place() == Path::new(place)
            && it.readonly == request.readonly
    });
    known.cloned()
}

fn shares_of(record: &Record, workspace: &WorkspaceRecord) -> Vec<GitShare> {
    let shares = record.git.iter();
    let own = shares.filter(|share| share.workspace == workspace.path);
    own.cloned().collect()
}

/// Why it has to wait for the next start. Mounts in one another, and masks, are held in place by mounts and by rules that
/// commands get when they start.
fn not_now(record: &Record, new: &WorkspaceRecord, git: &[GitShare]) -> Option<String> {
    if !new.masked.is_empty() {
        return Some("its `.sbxignore` masks files, which takes a start".into());
    }
    if !git.is_empty() {
        return Some("it is a linked git worktree, whose repository is shared at a start".into());
    }
    let place = new.place();
    let shared = record.shared_directories();
    let mut others = shared.iter().map(WorkspaceRecord::place);
    let other = others.find(|other| other.starts_with(place) || place.starts_with(other))?;
    Some(format!("it lies in or around `{}`", other.display()))
}

/// By its place inside, or by its path as it is or was given.
fn find(record: &Record, path: &str) -> Result<WorkspaceRecord, MountError> {
    let asked: PathBuf = Path::new(path).components().collect();
    let real = std::fs::canonicalize(&asked).ok();
    let all = || record.workspaces.iter();
    let named = |it: &&WorkspaceRecord| {
        let given = it.given.as_ref().map(|given| given.as_path());
        it.path.as_path() == asked || given == Some(&asked)
    };
    let found = all()
        .find(|it| it.place() == asked)
        .or_else(|| all().find(named))
        .or_else(|| all().find(|it| Some(it.path.as_path()) == real.as_deref()));
    found.cloned().ok_or_else(|| MountError::NotMounted {
        sandbox: record.name.clone(),
        path: path.to_owned(),
    })
}

fn busy(error: EngineError, record: &Record, workspace: &WorkspaceRecord) -> EngineError {
    if error.failed_setup() != Some(rustix::io::Errno::BUSY) {
        return error;
    }
    let (sandbox, place) = (record.name.clone(), workspace.place().to_path_buf());
    MountError::Busy { sandbox, place }.into()
}

fn add(record: &mut Record, workspace: &WorkspaceRecord, git: Vec<GitShare>) {
    record.workspaces.push(workspace.clone());
    record.git.extend(git);
}

fn set_pending(record: &mut Record, workspace: &WorkspaceRecord, pending: Option<Pending>) {
    for known in &mut record.workspaces {
        if known.path == workspace.path {
            known.pending = pending;
        }
    }
}

fn forget(record: &mut Record, workspace: &WorkspaceRecord) {
    record.workspaces.retain(|it| it.path != workspace.path);
    record.git.retain(|it| it.workspace != workspace.path);
    let shown = workspace_mount(record.backend, workspace);
    record.mounts.retain(|mount| *mount != shown);
}

/// After a failure, which is the one to be told.
fn undo(entry: &Entry, change: impl FnOnce(&mut Record)) {
    if let Err(error) = entry.update(|state| change(&mut state.record)) {
        tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
    }
}

fn settled(workspace: WorkspaceRecord) -> WorkspaceRecord {
    WorkspaceRecord {
        pending: None,
        ..workspace
    }
}

fn answer(
    workspace: &WorkspaceRecord,
    running: bool,
    reason: Option<String>,
    warnings: Vec<String>,
) -> MountChange {
    MountChange {
        workspace: view::workspace(workspace),
        reason,
        running,
        warnings,
    }
}

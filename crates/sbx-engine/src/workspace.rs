//! Which directories of the host a sandbox may see, and what is recorded about them.
//!
//! A workspace that shows the daemon's socket is an escape, so the state directory, everything in it and
//! everything that contains it are refused, by canonical path, by identity of the directories and by what is mounted.

pub(crate) mod aliases;
mod error;
mod given_path;
mod guard;
pub(crate) mod hints;
mod identity;
pub(crate) mod ignore;
mod kernel;
pub(crate) mod private_dirs;
mod target;
pub(crate) mod untrusted;
pub(crate) mod worktree;

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use sbx_api::WorkspaceRequest;
use sbx_proto::OsBytes;

use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{WorkspaceKind, WorkspaceRecord};
use crate::workspace::hints::find_state;
use crate::workspace::untrusted::UntrustedRoot;

pub use error::WorkspaceError;
pub(crate) use error::word;
pub(crate) use identity::{StillShared, still_shared};

use error::look_error;
use given_path::{check_ways, given_path, other_name};
use guard::Guard;
use identity::{gains_by_swap, identity_of, is_another, node_of};
use private_dirs::is_private;

/// Directories of the sandbox's own that a workspace would hide. Directories below them are fine.
const OWN: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/home/agent",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/run",
    "/sbin",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/sbin",
    "/var",
];
/// Views of the kernel: nothing below them can be shared either.
const KERNEL: &[&str] = &["/dev", "/proc", "/sys"];

/// A writable workspace of some sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writable {
    pub sandbox: SandboxName,
    pub path: PathBuf,
    /// Device and inode at its last start, if that was since the machine started.
    pub node: Option<(u64, u64)>,
}

impl From<&Writable> for UntrustedRoot {
    fn from(writable: &Writable) -> Self {
        Self {
            path: writable.path.clone(),
            node: writable.node,
        }
    }
}

/// Checks the request against the file system; `state` is the root of the state directory, `others` is what programs in
/// sandboxes can write.
pub fn resolve(
    requests: &[WorkspaceRequest],
    state: &Path,
    others: &[Writable],
) -> Result<Vec<WorkspaceRecord>, WorkspaceError> {
    let guard = Guard::new(state)?;
    let mut workspaces: Vec<WorkspaceRecord> = Vec::with_capacity(requests.len());
    for request in requests {
        let mut workspace = resolve_one(request, &guard)?;
        workspace.given = other_name(given_path(request), workspace.path.as_path());
        if workspaces.is_empty() && workspace.kind == WorkspaceKind::File {
            return Err(WorkspaceError::PrimaryNotDirectory(
                workspace.path.to_path_buf(),
            ));
        }
        add_masks(&mut workspace, None)?;
        if let Some(target) = &request.target {
            workspace.target = target::check(target, workspace.path.as_path())?;
        }
        if workspaces.iter().any(|other| other.path == workspace.path) {
            return Err(WorkspaceError::Twice(workspace.path.to_path_buf()));
        }
        workspaces.push(workspace);
    }
    target::check_apart(&workspaces)?;
    check_masks(&workspaces)?;
    check_ways(requests, &workspaces, others)?;
    Ok(workspaces)
}

/// The same for one workspace more; `known` are those that the sandbox has.
pub(crate) fn resolve_added(
    known: &[WorkspaceRecord],
    request: &WorkspaceRequest,
    state: &Path,
    others: &[Writable],
) -> Result<WorkspaceRecord, WorkspaceError> {
    let guard = Guard::new(state)?;
    let mut added = resolve_one(request, &guard)?;
    added.added = true;
    added.given = other_name(given_path(request), added.path.as_path());
    add_masks(&mut added, None)?;
    if let Some(target) = &request.target {
        added.target = target::check(target, added.path.as_path())?;
    }
    if known.iter().any(|known| known.path == added.path) {
        return Err(WorkspaceError::Twice(added.path.to_path_buf()));
    }
    let mut all = known.to_vec();
    all.push(added.clone());
    target::check_apart(&all)?;
    check_masks(&all)?;
    // Those of the sandbox itself are among the others.
    check_ways(
        std::slice::from_ref(request),
        std::slice::from_ref(&added),
        others,
    )?;
    Ok(added)
}

/// What a start finds where the workspaces were.
#[derive(Debug)]
pub struct Found {
    pub workspaces: Vec<WorkspaceRecord>,
    pub warnings: Vec<String>,
}

/// That none of them shows another state directory, such as the usual one where `SBX_HOME` names this one: what serves
/// there trusts every process with the caller's id.
pub fn keep_clear_of(workspaces: &[WorkspaceRecord], state: &Path) -> Result<(), WorkspaceError> {
    let guard = Guard::new(state)?;
    workspaces
        .iter()
        .try_for_each(|workspace| guard.check(workspace.path.as_path()))
}

/// Checks again what was recorded, before a start: a path can be something else by now.
pub fn resolve_again(
    workspaces: &[WorkspaceRecord],
    state: &Path,
) -> Result<Found, WorkspaceError> {
    let guard = Guard::new(state)?;
    let mut found = Found {
        workspaces: Vec::with_capacity(workspaces.len()),
        warnings: Vec::new(),
    };
    for workspace in workspaces {
        let path = workspace.path.to_path_buf();
        let canonical = fs::canonicalize(&path).map_err(|e| match look_error(&path, e) {
            WorkspaceError::Missing(path) if workspace.kind == WorkspaceKind::File => {
                WorkspaceError::FileGone(path)
            }
            other => other,
        })?;
        if canonical != path {
            return Err(WorkspaceError::Moved(path));
        }
        let mut now = inspect(&path, workspace.readonly, &guard)?;
        now.given.clone_from(&workspace.given);
        now.target.clone_from(&workspace.target);
        now.added = workspace.added;
        add_masks(&mut now, Some(workspace))?;
        // The owner decides how ids look through the mount: what is inside must not choose another one.
        if (now.uid, now.gid) != (workspace.uid, workspace.gid) {
            return Err(WorkspaceError::OtherOwner(path));
        }
        if is_another(workspace, &now) {
            if gains_by_swap(&now, workspaces, guard.mounts()) {
                return Err(WorkspaceError::Replaced(path));
            }
            found.warnings.push(format!(
                "workspace `{}` was replaced since the last start; what is there now is shared",
                path.display()
            ));
        }
        found.workspaces.push(now);
    }
    check_masks(&found.workspaces)?;
    Ok(found)
}

/// Adds what its `.sbxignore` masks now, and what was masked `before`.
fn add_masks(
    workspace: &mut WorkspaceRecord,
    before: Option<&WorkspaceRecord>,
) -> Result<(), WorkspaceError> {
    let known = before.into_iter();
    let known = known.flat_map(|before| before.masked.iter().chain(&before.masked_absent));
    let known = known.map(OsBytes::to_path_buf).collect();
    if workspace.kind == WorkspaceKind::Directory {
        let masks = ignore::masks(workspace.path.as_path(), known)?;
        let list = |paths: Vec<PathBuf>| paths.iter().map(|it| it.as_path().into()).collect();
        workspace.masked = list(masks.present);
        workspace.masked_absent = list(masks.absent);
    }
    Ok(())
}

/// That no mask would cover another workspace: what was asked for by name would not be there. And that no other workspace
/// shows what is masked, at another place inside.
fn check_masks(workspaces: &[WorkspaceRecord]) -> Result<(), WorkspaceError> {
    for workspace in workspaces {
        let path = || workspace.path.to_path_buf();
        for below in workspace.masked.iter().map(OsBytes::as_path) {
            let place = workspace.place().join(below);
            let mask = workspace.path.as_path().join(below);
            for other in workspaces {
                if other.place().starts_with(&place) || other.path.as_path().starts_with(&mask) {
                    return Err(WorkspaceError::MasksShared {
                        path: path(),
                        shared: other.path.to_path_buf(),
                    });
                }
                let Ok(below) = mask.strip_prefix(other.path.as_path()) else {
                    continue;
                };
                let is_masked = other.place().join(below) == place
                    || other.masked.iter().any(|it| it.as_path() == below);
                if !is_masked {
                    return Err(WorkspaceError::MaskedElsewhere {
                        path: path(),
                        mask,
                        other: other.path.to_path_buf(),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Mount order: what contains another comes first.
pub fn in_mount_order(workspaces: &[WorkspaceRecord]) -> Vec<&WorkspaceRecord> {
    let mut ordered: Vec<_> = workspaces.iter().collect();
    ordered.sort_by_key(|workspace| workspace.place().components().count());
    ordered
}

fn resolve_one(
    request: &WorkspaceRequest,
    guard: &Guard,
) -> Result<WorkspaceRecord, WorkspaceError> {
    let given = Path::new(&request.path);
    if !given.is_absolute() {
        return Err(WorkspaceError::Relative(given.to_path_buf()));
    }
    let path = fs::canonicalize(given).map_err(|e| look_error(given, e))?;
    let workspace = inspect(&path, request.readonly, guard)?;
    check_open(&workspace)?;
    match find_state(&path) {
        Some(state) => Err(WorkspaceError::OtherState { path, state }),
        None => Ok(workspace),
    }
}

/// What the caller may not enter or read, no program inside may either: every command would fail.
fn check_open(workspace: &WorkspaceRecord) -> Result<(), WorkspaceError> {
    let (access, what) = match workspace.kind {
        WorkspaceKind::Directory => (Access::EXEC_OK, "enter"),
        WorkspaceKind::File => (Access::READ_OK, "read"),
    };
    let path = workspace.path.as_path();
    match accessat(CWD, path, access, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => Err(WorkspaceError::Closed {
            path: path.to_path_buf(),
            what,
            own: workspace.uid == rustix::process::geteuid().as_raw(),
        }),
        // Whatever else is wrong with it has been seen, or will be when it is mounted.
        Ok(()) | Err(_) => Ok(()),
    }
}

fn inspect(path: &Path, readonly: bool, guard: &Guard) -> Result<WorkspaceRecord, WorkspaceError> {
    check_place(path)?;
    guard.check(path)?;
    let meta = fs::metadata(path).map_err(|e| look_error(path, e))?;
    let kind = kind_of(path, &meta)?;
    if kind == WorkspaceKind::File && !readonly {
        return Err(WorkspaceError::WritableFile(path.to_path_buf()));
    }
    Ok(WorkspaceRecord {
        path: path.into(),
        given: None,
        target: None,
        masked: Vec::new(),
        masked_absent: Vec::new(),
        readonly,
        added: false,
        pending: None,
        kind,
        uid: meta.uid(),
        gid: meta.gid(),
        identity: identity_of(&meta),
    })
}

/// The rules about a canonical path that need no file system.
fn check_place(path: &Path) -> Result<(), WorkspaceError> {
    if path == Path::new("/") {
        return Err(WorkspaceError::Root);
    }
    if OWN.iter().any(|own| path == Path::new(own)) {
        return Err(WorkspaceError::System(path.to_path_buf()));
    }
    if KERNEL.iter().any(|kernel| path.starts_with(kernel)) {
        return Err(WorkspaceError::Kernel(path.to_path_buf()));
    }
    Ok(())
}

fn kind_of(path: &Path, meta: &Metadata) -> Result<WorkspaceKind, WorkspaceError> {
    if meta.is_dir() {
        Ok(WorkspaceKind::Directory)
    } else if meta.is_file() {
        Ok(WorkspaceKind::File)
    } else {
        Err(WorkspaceError::Special(path.to_path_buf()))
    }
}

#[cfg(test)]
mod tests;

//! Which directories of the host a sandbox may see, and what is recorded about them.
//!
//! A workspace that shows the daemon's socket is an escape, so the state directory, everything in it and
//! everything that contains it are refused, by canonical path, by identity of the directories and by what is mounted.

pub(crate) mod aliases;
mod guard;
pub(crate) mod hints;
pub(crate) mod ignore;
mod kernel;
pub(crate) mod private_dirs;
mod target;
pub(crate) mod untrusted;
pub(crate) mod worktree;

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use sbx_api::WorkspaceRequest;
use sbx_proto::OsBytes;
use sbx_proto::plan::Node;
use sbx_proto::shell::quoted;
use sbx_sys::mountinfo::Entry;
use thiserror::Error;

use crate::machine::process::boot_id;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{Identity, WorkspaceKind, WorkspaceRecord};
use crate::state::marker;
use crate::workspace::hints::find_state;
use crate::workspace::untrusted::{UntrustedPaths, UntrustedRoot};

use guard::Guard;
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

#[derive(Debug, Error)]
pub enum WorkspaceError {
    #[error("workspace `{}` is not an absolute path", .0.display())]
    Relative(PathBuf),
    #[error("workspace `{}` does not exist", .0.display())]
    Missing(PathBuf),
    #[error("the file `{}`, which is shared read-only, is not there any more", .0.display())]
    FileGone(PathBuf),
    #[error("workspace `{}` now resolves to another directory or file", .0.display())]
    Moved(PathBuf),
    #[error("workspace `{}` has changed its owner since the sandbox was created", .0.display())]
    OtherOwner(PathBuf),
    #[error(
        "workspace `{}`, which lies in a writable one, is another directory or file than when the sandbox last started",
        .0.display()
    )]
    Replaced(PathBuf),
    #[error(
        "workspace `{}` leads through the link `{}`, which sandbox `{sandbox}` can make and change, to `{}`",
        .path.display(), .link.display(), .to.display()
    )]
    Planted {
        path: PathBuf,
        link: PathBuf,
        /// The one that has the link in a writable workspace.
        sandbox: SandboxName,
        to: PathBuf,
    },
    #[error(
        "read-only workspace `{}` leads through the link `{}`, which can be changed from inside the writable workspace \
         `{}`: only `{}` would be read-only",
        .path.display(), .link.display(), .writable.display(), .to.display()
    )]
    ReadOnlyLink {
        path: PathBuf,
        link: PathBuf,
        writable: PathBuf,
        to: PathBuf,
    },
    #[error("workspace `{}` holds secrets or settings", .0.display())]
    Private(PathBuf),
    #[error("cannot look at workspace `{}`", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Ignore(#[from] ignore::IgnoreError),
    #[error("`{}` of workspace `{}` masks `{}`, which is shared", ignore::NAME, .path.display(), .shared.display())]
    MasksShared { path: PathBuf, shared: PathBuf },
    #[error("`{}` of workspace `{}` masks `{}`, which workspace `{}` shows too", ignore::NAME, .path.display(), .mask.display(), .other.display())]
    MaskedElsewhere {
        path: PathBuf,
        mask: PathBuf,
        other: PathBuf,
    },
    #[error("invalid mount target `{}`: {why}", .target.display())]
    Target { target: PathBuf, why: &'static str },
    #[error("mount target `{}` of workspace `{}` overlaps with workspace `{}`", .target.display(), .path.display(), .other.display())]
    TargetOverlap {
        path: PathBuf,
        target: PathBuf,
        other: PathBuf,
    },
    #[error(
        "read-only workspace `{}` lies in the writable workspace `{}`, through which it could be written",
        .path.display(), .writable.display()
    )]
    WritableElsewhere { path: PathBuf, writable: PathBuf },
    #[error("primary workspace `{}` is not a directory", .0.display())]
    PrimaryNotDirectory(PathBuf),
    #[error("workspace `{}` is a file, which can only be shared read-only", .0.display())]
    WritableFile(PathBuf),
    #[error("workspace `{}` is neither a directory nor a file", .0.display())]
    Special(PathBuf),
    #[error("you have no permission to {what} workspace `{}`", .path.display())]
    Closed {
        path: PathBuf,
        what: &'static str,
        /// It is the caller's, who can open it.
        own: bool,
    },
    #[error("workspace `{}` is given twice", .0.display())]
    Twice(PathBuf),
    #[error("workspace `/` would hand the whole machine to the sandbox")]
    Root,
    #[error("workspace `{}` would hide the sandbox's own {}", .0.display(), .0.display())]
    System(PathBuf),
    #[error("workspace `{}` shows the host's kernel", .0.display())]
    Kernel(PathBuf),
    #[error(
        "workspace `{}` shows the state directory `{}`, and with it the daemon's socket",
        .path.display(), .state.display()
    )]
    State { path: PathBuf, state: PathBuf },
    #[error(
        "workspace `{}` shows the state directory `{}`, and with it the daemon's socket: by a mount it can be seen at `{}` too",
        .path.display(), .state.display(), .name.display()
    )]
    StateMount {
        path: PathBuf,
        state: PathBuf,
        /// Where the workspace shows it, or a part of it.
        name: PathBuf,
    },
    #[error(
        "workspace `{}` shows another state directory of sbx, `{}`, and with it the sockets of its sandboxes",
        .path.display(), .state.display()
    )]
    OtherState { path: PathBuf, state: PathBuf },
    #[error(
        "`{}` is mounted in workspace `{}` and shows the host's kernel ({kind})",
        .point.display(), .path.display()
    )]
    KernelMount {
        path: PathBuf,
        point: PathBuf,
        kind: String,
    },
}

impl WorkspaceError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Ignore(_) => Some(format!(
                "correct or remove the {}; `*`, `?`, `**`, `!` and `/` are understood",
                ignore::NAME
            )),
            Self::MasksShared { .. } => Some(format!(
                "change the {}, or leave that workspace out",
                ignore::NAME
            )),
            Self::MaskedElsewhere { other, .. } => Some(format!(
                "mask it in `{}` too, or leave that workspace out",
                other.join(ignore::NAME).display()
            )),
            Self::Io { .. }
            | Self::Special(_)
            | Self::Twice(_)
            | Self::Moved(_)
            | Self::OtherOwner(_) => None,
            Self::Replaced(_) => Some(
                "a program inside may have put it there: look for the one that was shared; if you replaced it yourself, \
                 `sbx rm` the sandbox and create it again"
                    .into(),
            ),
            Self::Planted { to, .. } | Self::ReadOnlyLink { to, .. } | Self::Private(to) => {
                Some(format!("if you mean it, give the real path: {}", word(to)))
            }
            Self::Relative(_) => Some("give the absolute path".into()),
            Self::FileGone(_) => {
                Some("put it back, or `sbx rm` the sandbox and create it again without the file".into())
            }
            Self::Missing(path) => Some(format!("mkdir -p {}", word(path))),
            Self::Target { .. } => {
                Some("choose an absolute path such as /mnt/NAME or /home/agent/NAME".into())
            }
            Self::TargetOverlap { .. } => Some("choose a place outside of other workspaces".into()),
            Self::WritableElsewhere { path, .. } => Some(format!(
                "leave out its place: {} is then read-only where it is",
                quoted(&format!("{}:ro", path.display()))
            )),
            Self::PrimaryNotDirectory(_) => {
                Some("put a directory first; a file can follow it as `FILE:ro`".into())
            }
            Self::WritableFile(path) => Some(quoted(&format!("{}:ro", path.display()))),
            Self::Root | Self::System(_) => Some("share a directory below it instead".into()),
            Self::Kernel(_) | Self::Closed { own: false, .. } => {
                Some("share a directory of your own instead".into())
            }
            Self::Closed { path, .. } => Some(format!("chmod u+rwX {}", word(path))),
            Self::State { .. } | Self::StateMount { .. } => {
                Some("share a project directory instead, or move the state with SBX_HOME".into())
            }
            Self::OtherState { state, .. } => Some(format!(
                "share a directory beside it instead; if it only looks like one: rm {}",
                word(&marker(state))
            )),
            Self::KernelMount { point, .. } => Some(format!(
                "sudo umount {}; or share another directory",
                word(point)
            )),
        }
    }
}

pub(crate) fn word(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

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

/// The workspaces of the last start, as far as they are still the same directories and files.
#[derive(Debug)]
pub(crate) struct StillShared {
    pub(crate) writable: Vec<(WorkspaceRecord, Node)>,
    pub(crate) readonly: Vec<Node>,
    /// Those that are not where they were, of either kind.
    pub(crate) moved: Vec<Node>,
    /// Why a writable one is not there.
    pub(crate) lost: Option<WorkspaceError>,
}

impl StillShared {
    /// What a walk through one of them leaves to others.
    pub(crate) fn excluded(&self) -> Vec<Node> {
        let writable = self.writable.iter().map(|(_, node)| *node);
        let others = self.readonly.iter().chain(&self.moved).copied();
        others.chain(writable).collect()
    }
}

pub(crate) fn still_shared(
    workspaces: &[WorkspaceRecord],
    state: &Path,
) -> Result<StillShared, WorkspaceError> {
    let guard = Guard::new(state)?;
    let mut shared = StillShared {
        writable: Vec::new(),
        readonly: Vec::new(),
        moved: Vec::new(),
        lost: None,
    };
    for workspace in workspaces {
        match same_node(workspace, &guard) {
            Ok(node) if workspace.readonly => shared.readonly.push(node),
            Ok(node) => shared.writable.push((workspace.clone(), node)),
            Err(error) => {
                // Wherever it was moved.
                shared.moved.extend(known_node(workspace));
                if !workspace.readonly {
                    shared.lost = Some(error);
                }
            }
        }
    }
    Ok(shared)
}

fn same_node(workspace: &WorkspaceRecord, guard: &Guard) -> Result<Node, WorkspaceError> {
    let path = workspace.path.as_path();
    guard.check_state(path)?;
    let meta = fs::symlink_metadata(path).map_err(|e| look_error(path, e))?;
    match (&workspace.identity, identity_of(&meta)) {
        (Some(before), Some(now)) if before.is(&now) => Ok(node_of(&meta)),
        _ => Err(WorkspaceError::Moved(path.to_path_buf())),
    }
}

/// Of this boot: devices are numbered anew at every one.
fn known_node(workspace: &WorkspaceRecord) -> Option<Node> {
    let boot_id = boot_id().ok()?;
    let identity = workspace.identity.as_ref();
    let known = identity.filter(|identity| identity.boot_id == boot_id);
    known.map(Identity::node)
}

fn is_another(before: &WorkspaceRecord, now: &WorkspaceRecord) -> bool {
    match (&before.identity, &now.identity) {
        (Some(before), Some(now)) => !before.is(now),
        (None, _) | (_, None) => false,
    }
}

/// Whether programs inside could have put it there, by renaming what is above it, and have something of it. In place of
/// a read-only directory: they have that one under another name then. And in place of what another user owns: they are
/// shown as its owner what they could not enter. A file is replaced by every editor; and what lies in no writable
/// workspace only the user can replace.
fn gains_by_swap(now: &WorkspaceRecord, all: &[WorkspaceRecord], mounts: &[Entry]) -> bool {
    let own = aliases::names(mounts, now.path.as_path());
    let of_directory = now.readonly && now.kind == WorkspaceKind::Directory;
    let mut around = all.iter().filter(|outer| {
        let places = aliases::names_of_all(mounts, outer.path.as_path());
        let lies_in =
            |place: &PathBuf| own.iter().any(|own| own != place && own.starts_with(place));
        !outer.readonly && outer.path != now.path && places.iter().any(lies_in)
    });
    around.any(|outer| of_directory || (now.uid, now.gid) != (outer.uid, outer.gid))
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

fn check_ways(
    requests: &[WorkspaceRequest],
    workspaces: &[WorkspaceRecord],
    others: &[Writable],
) -> Result<(), WorkspaceError> {
    let theirs = UntrustedPaths::new(others);
    let own = workspaces.iter().filter(|workspace| !workspace.readonly);
    let own = own.map(|workspace| UntrustedRoot::from(workspace.path.to_path_buf()));
    let all = UntrustedPaths::new(own.chain(others.iter().map(UntrustedRoot::from)));
    for (request, workspace) in requests.iter().zip(workspaces) {
        check_way(request, workspace.path.as_path(), &theirs, others)?;
        if request.readonly {
            check_read_only_way(request, &all)?;
        }
    }
    Ok(())
}

/// What would be read-only is where the link leads. The link is not, and leads elsewhere as soon as a program inside
/// wants it to: a program that uses the given path would not get the protected one.
fn check_read_only_way(
    request: &WorkspaceRequest,
    untrusted: &UntrustedPaths,
) -> Result<(), WorkspaceError> {
    let given = given_path(request);
    let led = untrusted.follow(given);
    let led = led.ok_or_else(|| WorkspaceError::Missing(given.into()))?;
    match led.crossed {
        Some(link) => Err(WorkspaceError::ReadOnlyLink {
            path: given.components().collect(),
            link: link.link,
            writable: link.root,
            to: led.real,
        }),
        None => Ok(()),
    }
}

/// As the user spelt it, where that is known.
fn given_path(request: &WorkspaceRequest) -> &Path {
    Path::new(request.given.as_deref().unwrap_or(&request.path))
}

/// The name that leads to a workspace by symbolic links, where there is one. What is before `..` is resolved: only the
/// file system knows where that leads.
fn other_name(given: &Path, real: &Path) -> Option<OsBytes> {
    let parts: Vec<_> = given.components().collect();
    let last_up = parts.iter().rposition(|part| *part == Component::ParentDir);
    let (before, after) = parts.split_at(last_up.map_or(0, |index| index + 1));
    let mut name = PathBuf::new();
    if !before.is_empty() {
        name = fs::canonicalize(before.iter().collect::<PathBuf>()).ok()?;
    }
    name.extend(after);
    let leads_there = fs::canonicalize(&name).is_ok_and(|found| found == real);
    (name.is_absolute() && name != real && leads_there).then(|| name.as_path().into())
}

/// The user must have meant this directory. A link in a workspace may be the work of a program inside, and so may be the
/// way by which a shell came to a directory of secrets.
fn check_way(
    request: &WorkspaceRequest,
    real: &Path,
    untrusted: &UntrustedPaths,
    others: &[Writable],
) -> Result<(), WorkspaceError> {
    let given = given_path(request);
    let led = untrusted.follow(given);
    let led = led.ok_or_else(|| WorkspaceError::Missing(given.into()))?;
    if let Some(link) = led.escape
        && let Some(other) = others.iter().find(|other| other.path == link.root)
    {
        return Err(WorkspaceError::Planted {
            // As one would write it: `.` at the end is ours.
            path: given.components().collect(),
            link: link.link,
            sandbox: other.sandbox.clone(),
            to: led.real,
        });
    }
    if led.real != real {
        return Err(WorkspaceError::Moved(given.into()));
    }
    let literal = is_spelt_out(given, real);
    if is_private(real) && !literal {
        return Err(WorkspaceError::Private(real.to_path_buf()));
    }
    Ok(())
}

fn is_spelt_out(given: &Path, real: &Path) -> bool {
    let given = given.as_os_str().as_encoded_bytes();
    let end = given.iter().rposition(|byte| *byte != b'/');
    end.and_then(|end| given.get(..=end)) == Some(real.as_os_str().as_encoded_bytes())
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

/// None on a machine that does not say which boot this is: it has no identities to compare.
fn identity_of(meta: &Metadata) -> Option<Identity> {
    boot_id().ok().map(|boot_id| Identity {
        device: meta.dev(),
        inode: meta.ino(),
        boot_id,
    })
}

/// The same for every path (bind mounts too) that leads to a directory.
fn node_of(meta: &Metadata) -> Node {
    Node {
        device: meta.dev(),
        inode: meta.ino(),
    }
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

fn look_error(path: &Path, source: io::Error) -> WorkspaceError {
    let path = path.to_path_buf();
    if source.kind() == io::ErrorKind::NotFound {
        return WorkspaceError::Missing(path);
    }
    WorkspaceError::Io { path, source }
}

#[cfg(test)]
mod tests;

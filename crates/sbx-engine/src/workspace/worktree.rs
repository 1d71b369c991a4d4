//! Linked git worktrees: the repository that a workspace's `.git` file names, and whether it may be shared.
//!
//! `git worktree add` makes `.git` a file with `gitdir: COMMON/worktrees/NAME`. Programs inside can write that file, and a
//! checkout may come with one, so it proves nothing: a repository is shared only if its administrative directory names
//! this workspace in turn, and if everything involved belongs to the caller. No path that decides about it is followed
//! through a symbolic link (`RESOLVE_NO_SYMLINKS`). What was decided at `create` is in the record, and at every start it
//! must be found again as it was: later changes can take a repository away, never add one.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use thiserror::Error;

use super::guard::Guard;
use super::hints::find_state;
use super::{WorkspaceError, check_place, is_private};
use crate::machine::process::boot_id;
use crate::sandbox::record::{GitDirectory, GitShare, Identity, WorkspaceKind, WorkspaceRecord};

const POINTER: &[u8] = b"gitdir:";
/// What `git worktree add` writes into `commondir`.
const COMMON: &[u8] = b"../..";
const WORKTREES: &str = "worktrees";
/// A path and the word before it.
const MAX_POINTER: u64 = 8 << 10;

/// Why a repository is not shared.
#[derive(Debug, Error)]
pub enum NotShared {
    #[error("`{}` names no directory `REPOSITORY/worktrees/NAME`", .0.display())]
    Pointer(PathBuf),
    #[error("`{}` does not belong to you", .0.display())]
    Owner(PathBuf),
    #[error("`{}` does not point back to it", .0.display())]
    NotBack(PathBuf),
    #[error("`{}` is not a git repository", .0.display())]
    NotRepository(PathBuf),
    #[error("it lies in its own repository `{}`", .0.display())]
    Inside(PathBuf),
    #[error("repository `{}` has been replaced since the sandbox was created", .0.display())]
    Another(PathBuf),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error("cannot look at `{}`", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: Errno,
    },
}

/// Why commits cannot be allowed.
#[derive(Debug, Error)]
pub enum NotWritable {
    #[error("cannot share the repository of `{}` for --git-write", .workspace.display())]
    NotShared {
        workspace: PathBuf,
        #[source]
        reason: Box<NotShared>,
    },
    #[error("repository `{}` keeps its references in a reftable, which --git-write does not support", .0.display())]
    Reftable(PathBuf),
    #[error("worktree `{}` has a split index, which --git-write does not support", .0.display())]
    SplitIndex(PathBuf),
    #[error("repository `{}` has no directory `{name}` of yours, which --git-write needs", .repository.display())]
    Missing {
        repository: PathBuf,
        name: &'static str,
    },
}

impl NotWritable {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotShared { .. } => None,
            Self::Reftable(_) => {
                Some("commit on the host, or create it without --git-write".into())
            }
            Self::SplitIndex(path) => Some(format!(
                "git -C {} update-index --no-split-index",
                super::word(path)
            )),
            Self::Missing { repository, name } => {
                Some(format!("mkdir -p {}", super::word(&repository.join(name))))
            }
        }
    }
}

/// What a start shares of the repositories.
#[derive(Debug, Default)]
pub(crate) struct GitShares {
    pub(crate) shares: Vec<GitShare>,
    pub(crate) warnings: Vec<String>,
}

/// For a new sandbox.
pub(crate) fn find(
    workspaces: &[WorkspaceRecord],
    state: &Path,
    write: bool,
) -> Result<GitShares, crate::error::EngineError> {
    let guard = Guard::new(state)?;
    let mut found = GitShares::default();
    for workspace in workspaces {
        match probe(workspace, workspaces, &guard) {
            Ok(None) => {}
            Ok(Some(mut share)) => {
                if write {
                    share.write = true;
                    share.directories.extend(writable(&share)?);
                }
                found.shares.push(share);
            }
            Err(reason) if write => {
                return Err(NotWritable::NotShared {
                    workspace: workspace.path.to_path_buf(),
                    reason: Box::new(reason),
                }
                .into());
            }
            Err(reason) => found
                .warnings
                .push(warning(workspace.path.as_path(), &reason)),
        }
    }
    if write && found.shares.is_empty() {
        found.warnings.push(
            "--git-write changes nothing: no workspace is a linked git worktree with its repository elsewhere".into(),
        );
    }
    Ok(found)
}

/// For a start: of what is recorded, what is still as it was.
pub(crate) fn find_again(
    known: &[GitShare],
    workspaces: &[WorkspaceRecord],
    state: &Path,
) -> Result<GitShares, WorkspaceError> {
    let mut found = GitShares::default();
    if known.is_empty() {
        return Ok(found);
    }
    let guard = Guard::new(state)?;
    for before in known {
        let mut share = before.clone();
        share.shared = false;
        let workspace = workspaces.iter().find(|it| it.path == before.workspace);
        let now = workspace.map_or(Ok(None), |it| probe(it, workspaces, &guard));
        let now = now.and_then(|now| match now {
            Some(now) => same(before, now),
            None => Err(NotShared::Another(before.common.to_path_buf())),
        });
        match now {
            Ok(()) => share.shared = true,
            Err(reason) => {
                found
                    .warnings
                    .push(warning(before.workspace.as_path(), &reason));
            }
        }
        found.shares.push(share);
    }
    Ok(found)
}

fn warning(workspace: &Path, reason: &NotShared) -> String {
    format!(
        "workspace `{}` has a `.git` file, and the repository that it names is not shared: {}",
        workspace.display(),
        crate::error::chain(reason)
    )
}

/// Whether everything that was recorded is there and is what it was.
fn same(before: &GitShare, now: GitShare) -> Result<(), NotShared> {
    let another = || NotShared::Another(before.common.to_path_buf());
    let is_same = |a: &GitDirectory, b: &GitDirectory| {
        let same_node = match (&a.identity, &b.identity) {
            (Some(a), Some(b)) => a.is(b),
            (None, _) | (_, None) => true,
        };
        a.path == b.path && (a.uid, a.gid) == (b.uid, b.gid) && same_node
    };
    if !is_same(&before.admin, &now.admin) {
        return Err(another());
    }
    for directory in &before.directories {
        let path = directory.path.as_path();
        let place = open(path, OFlags::DIRECTORY).map_err(|source| io_error(path, source))?;
        let found = directory_of(path, &place, directory.readonly)
            .map_err(|source| io_error(path, source))?;
        if !is_same(directory, &found) {
            return Err(another());
        }
    }
    Ok(())
}

fn probe(
    workspace: &WorkspaceRecord,
    all: &[WorkspaceRecord],
    guard: &Guard,
) -> Result<Option<GitShare>, NotShared> {
    let root = workspace.path.as_path();
    let dot_git = root.join(".git");
    if workspace.kind != WorkspaceKind::Directory {
        return Ok(None);
    }
    // A link, a directory and nothing at all are left alone.
    let Ok(file) = open(&dot_git, OFlags::empty()) else {
        return Ok(None);
    };
    if kind(&file) != Some(FileType::RegularFile) {
        return Ok(None);
    }
    let caller = rustix::process::geteuid().as_raw();
    let own = |path: &Path, fd: &OwnedFd| match stat(path, fd)? {
        found if found.st_uid == caller => Ok(found),
        _ => Err(NotShared::Owner(path.to_path_buf())),
    };
    let text = read_own(&dot_git)?;
    let admin = pointer(&text, root).ok_or_else(|| NotShared::Pointer(dot_git.clone()))?;
    // Git also makes such files for submodules, which are no worktrees: their directory is `modules/NAME`.
    let common = match (admin.parent(), admin.parent().and_then(Path::parent)) {
        (Some(parent), Some(common)) if parent.file_name() == Some(WORKTREES.as_ref()) => common,
        _ => return Err(NotShared::Pointer(dot_git)),
    };
    // It is seen through that one, as that one is.
    if all.iter().any(|it| common.starts_with(it.path.as_path())) {
        return Ok(None);
    }
    if root.starts_with(common) {
        return Err(NotShared::Inside(common.to_path_buf()));
    }
    check_place(common)?;
    let look = |path: &Path| open(path, OFlags::DIRECTORY).map_err(|e| io_error(path, e));
    let (common_fd, admin_fd) = (look(common)?, look(&admin)?);
    guard.check(common)?;
    if is_private(common) {
        return Err(WorkspaceError::Private(common.to_path_buf()).into());
    }
    if let Some(state) = find_state(common) {
        let path = common.to_path_buf();
        return Err(WorkspaceError::OtherState { path, state }.into());
    }
    own(root, &look(root)?)?;
    own(common, &common_fd)?;
    own(&admin, &admin_fd)?;
    let back = admin.join("gitdir");
    if pointed(&read_own(&back)?, &admin).as_deref() != Some(dot_git.as_path()) {
        return Err(NotShared::NotBack(back));
    }
    let commondir = admin.join("commondir");
    if read_own(&commondir)?.trim_ascii_end() != COMMON {
        return Err(NotShared::NotBack(commondir));
    }
    if !is_repository(common) {
        return Err(NotShared::NotRepository(common.to_path_buf()));
    }
    let at = |path: &Path, fd: &OwnedFd| {
        directory_of(path, fd, true).map_err(|source| io_error(path, source))
    };
    Ok(Some(GitShare {
        workspace: workspace.path.clone(),
        common: common.into(),
        admin: at(&admin, &admin_fd)?,
        directories: vec![at(common, &common_fd)?],
        write: false,
        shared: true,
    }))
}

/// As git's own `is_git_directory`.
fn is_repository(common: &Path) -> bool {
    let is = |name: &str, wanted| {
        open(&common.join(name), OFlags::empty()).is_ok_and(|it| kind(&it) == Some(wanted))
    };
    is("HEAD", FileType::RegularFile)
        && is("objects", FileType::Directory)
        && is("refs", FileType::Directory)
}

/// What a commit writes of the repository, each a mount of its own. `objects/info` stays as it is: `alternates` in it
/// names other object directories, which programs of the host then use.
fn writable(share: &GitShare) -> Result<Vec<GitDirectory>, NotWritable> {
    let common = share.common.as_path();
    if open(&common.join("reftable"), OFlags::empty()).is_ok() {
        return Err(NotWritable::Reftable(common.to_path_buf()));
    }
    let admin = share.admin.path.as_path();
    let names = std::fs::read_dir(admin).into_iter().flatten().flatten();
    if names
        .map(|entry| entry.file_name())
        .any(|name| name.as_bytes().starts_with(b"sharedindex."))
    {
        return Err(NotWritable::SplitIndex(share.workspace.to_path_buf()));
    }
    // A repository without reflogs has none; one inside would have no place for them.
    let _ = std::fs::create_dir(common.join("logs"));
    let mut directories = Vec::new();
    for (name, readonly) in [
        ("objects", false),
        ("objects/info", true),
        ("refs", false),
        ("logs", true),
    ] {
        let path = common.join(name);
        let missing = || NotWritable::Missing {
            repository: common.to_path_buf(),
            name,
        };
        let place = open(&path, OFlags::DIRECTORY).map_err(|_| missing())?;
        let found = directory_of(&path, &place, readonly).map_err(|_| missing())?;
        if found.uid != share.admin.uid {
            return Err(missing());
        }
        directories.push(found);
    }
    Ok(directories)
}

fn directory_of(path: &Path, place: &OwnedFd, readonly: bool) -> Result<GitDirectory, Errno> {
    let stat = rustix::fs::fstat(place)?;
    Ok(GitDirectory {
        path: path.into(),
        readonly,
        uid: stat.st_uid,
        gid: stat.st_gid,
        identity: boot_id().ok().map(|boot_id| Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
            boot_id,
        }),
    })
}

/// The path in a `.git` file.
fn pointer(text: &[u8], base: &Path) -> Option<PathBuf> {
    pointed(text.strip_prefix(POINTER)?, base)
}

/// A path as git writes one into a file, without `.` and `..`: those of a relative one lead along real directories, as
/// `base` does, because no link is followed later.
fn pointed(text: &[u8], base: &Path) -> Option<PathBuf> {
    let text = text.trim_ascii();
    if text.is_empty() || text.contains(&0) || text.contains(&b'\n') {
        return None;
    }
    let mut path = PathBuf::new();
    for part in base.join(std::ffi::OsStr::from_bytes(text)).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path.is_absolute().then_some(path)
}

fn read_own(path: &Path) -> Result<Vec<u8>, NotShared> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(CWD, path, flags, Mode::empty(), RESOLVE)
        .map_err(|source| io_error(path, source))?;
    let found = stat(path, &file)?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(NotShared::Owner(path.to_path_buf()));
    }
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(NotShared::Pointer(path.to_path_buf()));
    }
    let mut text = Vec::new();
    let read = File::from(file).take(MAX_POINTER).read_to_end(&mut text);
    read.map_err(|e| io_error(path, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    Ok(text)
}

const RESOLVE: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | flags;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), RESOLVE)
}

fn stat(path: &Path, fd: &OwnedFd) -> Result<Stat, NotShared> {
    rustix::fs::fstat(fd).map_err(|source| io_error(path, source))
}

fn kind(fd: &OwnedFd) -> Option<FileType> {
    let found = rustix::fs::fstat(fd).ok()?;
    Some(FileType::from_raw_mode(found.st_mode))
}

fn io_error(path: &Path, source: Errno) -> NotShared {
    NotShared::Io {
        path: path.to_path_buf(),
        source,
    }
}

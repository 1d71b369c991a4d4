//! Whether a work tree and a repository belong to each other.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::{Code, Failure};

const LONGEST_POINTER: u64 = 8192;

/// A path of git's answer, which is relative to where it was asked.
pub(super) fn absolute(dir: &Path, path: &Path) -> Result<PathBuf, Failure> {
    let joined = dir.join(path);
    joined.canonicalize().map_err(|error| {
        let what = format!("resolve git's directory {}", joined.display());
        Failure::new(Code::Local, what).because(&error)
    })
}

/// Refuses a work tree that the repository chose for itself.
///
/// With `core.worktree` a checkout can name any directory around itself, the home directory say, whose files would
/// then count as untracked and be sent. A work tree that git made has a `.git` that leads to the repository.
pub(super) fn points_back(root: &Path, git_dir: &Path) -> Result<(), Failure> {
    if pointed_to(root).is_some_and(|found| found == git_dir) {
        return Ok(());
    }
    let message = format!(
        "the repository {} names {} as its work tree, which does not lead back to it",
        git_dir.display(),
        root.display()
    );
    Err(Failure::new(Code::Untrusted, message)
        .hint("unset `core.worktree` there, or set GIT_DIR and GIT_WORK_TREE yourself"))
}

/// Where `.git` of a work tree leads, whether directory, symlink or file with a pointer.
fn pointed_to(root: &Path) -> Option<PathBuf> {
    let dot_git = root.join(".git");
    let metadata = dot_git.metadata().ok()?;
    if metadata.is_dir() {
        return dot_git.canonicalize().ok();
    }
    if !metadata.is_file() {
        return None;
    }
    let mut text = Vec::new();
    let file = std::fs::File::open(&dot_git).ok()?;
    file.take(LONGEST_POINTER).read_to_end(&mut text).ok()?;
    let target = text.strip_prefix(b"gitdir: ")?;
    let end = target.iter().rposition(|b| !matches!(b, b'\n' | b'\r'))?;
    let target = Path::new(OsStr::from_bytes(target.get(..=end)?));
    root.join(target).canonicalize().ok()
}

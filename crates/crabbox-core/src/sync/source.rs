//! Where the list of files comes from, and when there is none.

use std::path::{Path, PathBuf};

use super::manifest::{Manifest, cannot_list, from_git};
use super::{Rules, walk};
use crate::Failure;
use crate::git::Repository;

/// Who says what belongs to the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// git. A directory that it does not know is an error.
    Git,
    /// git where there is a repository; elsewhere everything that is there. The user has to ask for it.
    Walk,
}

/// Lists what is sent from `dir`: the repository around it, or where [`Source::Walk`] allows it `dir` itself.
/// One git process, none for a walk.
pub fn list(
    dir: &Path,
    repository: Option<&Repository>,
    source: Source,
    rules: &Rules,
) -> Result<Manifest, Failure> {
    check(dir, repository, source)?;
    match repository {
        Some(repository) => from_git(repository, rules),
        None => walk::walk(dir, rules),
    }
}

/// What is wrong with the place itself. Costs nothing, so that it can be asked before anything is created.
pub fn check(dir: &Path, repository: Option<&Repository>, source: Source) -> Result<(), Failure> {
    if let Some(workspace) = native_jujutsu(dir, repository.map(Repository::root)) {
        let why = "is a Jujutsu workspace without a Git repository at its root: run \
            `jj git colocation enable` there or pass --no-sync";
        return Err(cannot_list(&workspace, why));
    }
    match (repository, source) {
        (Some(_), Source::Git | Source::Walk) | (None, Source::Walk) => Ok(()),
        (None, Source::Git) => {
            let why = "is not a Git repository: run `git init` there, or pass --no-sync";
            Err(cannot_list(dir, why))
        }
    }
}

/// The Jujutsu workspace around `dir`, unless a repository at the same place or further in says what is tracked. One
/// further out does not: it sees the workspace as files of its own.
fn native_jujutsu(dir: &Path, git_root: Option<&Path>) -> Option<PathBuf> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let is_workspace = |dir: &&Path| dir.join(".jj").symlink_metadata().is_ok_and(|m| m.is_dir());
    let workspace = dir.ancestors().find(is_workspace)?;
    let known_to_git = git_root.is_some_and(|root| root.starts_with(workspace));
    (!known_to_git).then(|| workspace.to_owned())
}

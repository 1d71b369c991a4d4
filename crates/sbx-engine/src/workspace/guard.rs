//! What no workspace may show: the state directory, by any of its names, and the kernel.
//!
//! A program that can reach the daemon's socket or a record controls all sandboxes of the user. Comparing paths is not
//! enough, because bind mounts give one directory several names: the nodes (device and inode) of every directory on the
//! way are compared, and the names that mountinfo has for the same file system ([`aliases`]).

use std::fs;
use std::path::{Path, PathBuf};

use sbx_proto::plan::Node;
use sbx_sys::mountinfo::Entry;

use super::{WorkspaceError, aliases, kernel, look_error, node_of};
use crate::state::is_state;

pub(super) struct Guard {
    root: PathBuf,
    /// The state directory and everything above it.
    above: Vec<Node>,
    /// Where mounts show it, or a part of it.
    names: Vec<PathBuf>,
    mounts: Vec<Entry>,
}

impl Guard {
    pub(super) fn new(state: &Path) -> Result<Self, WorkspaceError> {
        let root = fs::canonicalize(state).map_err(|e| look_error(state, e))?;
        let above = nodes(&root)?;
        let mounts = aliases::mounts();
        Ok(Self {
            names: aliases::names_of_all(&mounts, &root),
            root,
            above,
            mounts,
        })
    }

    pub(super) fn mounts(&self) -> &[Entry] {
        &self.mounts
    }

    /// For what is to be shared.
    pub(super) fn check(&self, path: &Path) -> Result<(), WorkspaceError> {
        self.check_state(path)?;
        kernel::check(path, &self.mounts)
    }

    /// For what is shared already.
    pub(super) fn check_state(&self, path: &Path) -> Result<(), WorkspaceError> {
        let own = nodes(path)?;
        let contains = own.first().is_some_and(|this| self.above.contains(this));
        let inside = self.above.first().is_some_and(|state| own.contains(state));
        if overlap(path, &self.root) || contains || inside {
            return Err(WorkspaceError::State {
                path: path.to_path_buf(),
                state: self.root.clone(),
            });
        }
        if let Some(name) = self.names.iter().find(|name| overlap(path, name)) {
            return Err(WorkspaceError::StateMount {
                path: path.to_path_buf(),
                name: name.clone(),
                state: self.root.clone(),
            });
        }
        match path.ancestors().find(|dir| is_state(dir)) {
            Some(other) => Err(WorkspaceError::OtherState {
                path: path.to_path_buf(),
                state: other.to_path_buf(),
            }),
            None => Ok(()),
        }
    }
}

/// Whether one is, or lies in, the other.
fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Of the path itself, its parent, and so on up to the root.
fn nodes(path: &Path) -> Result<Vec<Node>, WorkspaceError> {
    path.ancestors()
        .map(|path| {
            let meta = fs::metadata(path).map_err(|e| look_error(path, e))?;
            Ok(node_of(&meta))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use sbx_sys::mountinfo::parse;

    use super::*;

    /// Nothing of it exists: only names decide.
    #[test]
    fn the_state_directory_by_the_names_that_mounts_give_it() {
        let mounts = parse(
            b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 22 254:0 /h/data/home /h/home rw - ext4 /dev/vda rw\n\
            31 22 254:0 /h/data/home/state/vm /w/a/b rw - ext4 /dev/vda rw\n",
        );
        let names = aliases::names_of_all(&mounts, Path::new("/h/home/state"));
        for (path, shown) in [
            ("/h/data", true),
            ("/h/data/home/state/vm/box", true),
            ("/w/a", true),
            ("/w/a/b/box", true),
            ("/h/data/home/project", false),
            ("/h/data/home/state-2", false),
            ("/w/c", false),
        ] {
            let path = Path::new(path);
            let found = names.iter().any(|name| overlap(path, name));
            assert_eq!(found, shown, "{}", path.display());
        }
    }
}

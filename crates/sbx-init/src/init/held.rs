//! The mounts in writable workspaces: read-only parts of them, and what holds these in place.
//!
//! Nothing inside can take them away. The host can: whoever replaces or removes on the host what is mounted on takes the
//! mount away in every mount namespace, and whoever renames it takes the mount along to another name; what has the old name
//! then lies open. No mount is made in its place, because whatever lies there by now may be the inside's choice: the
//! sandbox ends, and its next start looks at everything again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sbx_sys::mountinfo;

/// How long a renamed one may go unnoticed: nothing tells of that.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Held {
    /// Tells by an exceptional condition that mounts have changed in init's own namespace; not that one was renamed.
    list: File,
    mounts: BTreeSet<Mount>,
}

/// One of them, and where it is in its workspace. The way to a workspace is the sandbox's own, and root inside may rename
/// it: that takes everything along.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mount {
    id: u64,
    workspace: u64,
    below: PathBuf,
}

/// What of `mounts`, by id and place, is in writable workspaces, of which `made` has the ids.
pub(super) fn in_workspaces(
    mounts: &BTreeSet<(u64, PathBuf)>,
    made: &BTreeSet<(u64, PathBuf)>,
    workspaces: &[&Path],
) -> BTreeSet<Mount> {
    let mut found = BTreeSet::new();
    for path in workspaces {
        // One that nobody has mounted is missed at the first look.
        let workspace = made.iter().find(|(_, point)| point == path);
        let workspace = workspace.map_or(0, |(id, _)| *id);
        for (id, point) in mounts.union(made) {
            match point.strip_prefix(path) {
                Ok(below) if !below.as_os_str().is_empty() => found.insert(Mount {
                    id: *id,
                    workspace,
                    below: below.to_owned(),
                }),
                Ok(_) | Err(_) => false,
            };
        }
    }
    found
}

impl Held {
    pub(super) fn new(list: File, mounts: BTreeSet<Mount>) -> Self {
        Self { list, mounts }
    }

    /// Whether one of them has gone or is elsewhere. So it is where the list cannot be read.
    pub(super) fn lost(&mut self) -> bool {
        let Ok(found) = self.read() else {
            return true;
        };
        let is_there = |mount: &Mount| {
            let workspace = found.get(&mount.workspace);
            let expected = workspace.map(|point| point.join(&mount.below));
            expected.is_some_and(|expected| found.get(&mount.id) == Some(&expected))
        };
        !self.mounts.iter().all(is_there)
    }

    fn read(&mut self) -> io::Result<BTreeMap<u64, PathBuf>> {
        let mut text = Vec::new();
        self.list.seek(SeekFrom::Start(0))?;
        self.list.read_to_end(&mut text)?;
        let mounts = mountinfo::parse(&text).into_iter();
        Ok(mounts.map(|mount| (mount.id, mount.point)).collect())
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.list.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn set(mounts: &[(u64, &str)]) -> BTreeSet<(u64, PathBuf)> {
        let mounts = mounts.iter().map(|(id, point)| (*id, point.into()));
        mounts.collect()
    }

    #[test]
    fn all_of_them_must_be_there() {
        let listed = |lines: &[(u64, &str)]| {
            let mut list = tempfile::tempfile().unwrap();
            for (id, point) in lines {
                writeln!(list, "{id} 1 0:6 / {point} rw - tmpfs none rw").unwrap();
            }
            list
        };
        let made = [(2, "/w"), (3, "/w/ro")];
        let host = [(4, "/w/mounted"), (5, "/work")];
        let mounts = in_workspaces(&set(&host), &set(&made), &[Path::new("/w")]);
        assert_eq!(mounts.iter().map(|it| it.id).collect::<Vec<_>>(), [3, 4]);
        let lost = |lines: &[(u64, &str)]| Held::new(listed(lines), mounts.clone()).lost();
        assert!(!lost(&[(2, "/w"), (3, "/w/ro"), (4, "/w/mounted")]));
        assert!(!lost(&[
            (9, "/x"),
            (2, "/w"),
            (3, "/w/ro"),
            (4, "/w/mounted")
        ]));
        // The way to the workspace was renamed, and everything with it.
        assert!(!lost(&[(2, "/v"), (3, "/v/ro"), (4, "/v/mounted")]));
        assert!(lost(&[(2, "/w"), (3, "/w/older"), (4, "/w/mounted")]));
        assert!(lost(&[(2, "/v"), (3, "/w/ro"), (4, "/v/mounted")]));
        assert!(lost(&[(2, "/w"), (3, "/w/ro")]) && lost(&[(3, "/w/ro"), (4, "/w/mounted")]));
        // Another one at the same place.
        assert!(lost(&[(2, "/w"), (6, "/w/ro"), (4, "/w/mounted")]));
        let directory = File::open("/").unwrap();
        assert!(Held::new(directory, BTreeSet::new()).lost());
        let nobodys = in_workspaces(&set(&host), &set(&[]), &[Path::new("/w")]);
        assert!(Held::new(listed(&[(4, "/w/mounted")]), nobodys).lost());
    }
}

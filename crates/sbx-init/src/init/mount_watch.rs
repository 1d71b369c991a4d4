//! Read-only parts of writable workspaces, and the mounts that hold these in place.
//!
//! Nothing inside can take them away. The host can: replacing or removing a mount point on the host takes the mount
//! away in every mount namespace, and renaming it takes the mount along to another name; what has the old name then lies
//! open. No mount is made in its place, because whatever lies there by now may be the inside's choice: the
//! sandbox ends, and its next start looks at everything again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sbx_sys::mountinfo;

/// How long a renamed one may go unnoticed: nothing tells of that.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct MountWatch {
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

/// Whether any of `mounts`, by id and place, is in a writable workspace, also if the sandbox did not make it.
pub(super) fn any_below(mounts: &BTreeSet<(u64, PathBuf)>, workspaces: &[&Path]) -> bool {
    let points = mounts.iter().map(|(_, point)| point);
    points.into_iter().any(|point| {
        let mut outer = workspaces.iter();
        outer.any(|path| point != path && point.starts_with(path))
    })
}

/// What setup has `made` in writable workspaces, by id and place, to be read and not written, and what holds that in place.
/// A writable workspace in another one may go where its directory goes: nothing lies open then.
pub(super) fn anchored(made: &BTreeSet<(u64, PathBuf)>, workspaces: &[&Path]) -> BTreeSet<Mount> {
    let mut found = BTreeSet::new();
    for path in workspaces {
        // One that was not mounted is missed at the first look.
        let workspace = made.iter().find(|(_, point)| point == path);
        let workspace = workspace.map_or(0, |(id, _)| *id);
        for (id, point) in made {
            if workspaces.contains(&point.as_path()) {
                continue;
            }
            if let Ok(below) = point.strip_prefix(path) {
                found.insert(Mount {
                    id: *id,
                    workspace,
                    below: below.to_owned(),
                });
            }
        }
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    InPlace,
    Elsewhere,
    Gone,
}

impl MountWatch {
    pub(super) fn new(list: File, mounts: BTreeSet<Mount>) -> Self {
        Self { list, mounts }
    }

    /// Whether one of them has gone or is elsewhere. So it is where the list cannot be read.
    pub(super) fn lost(&mut self) -> bool {
        match self.look() {
            Found::InPlace => false,
            Found::Gone => true,
            // The list is read in pieces: when the way to a workspace is renamed meanwhile, the first ones have the old
            // name and the last ones the new.
            Found::Elsewhere => self.look() != Found::InPlace,
        }
    }

    fn look(&mut self) -> Found {
        let Ok(found) = self.read() else {
            return Found::Gone;
        };
        let mut all = Found::InPlace;
        for mount in &self.mounts {
            let (Some(workspace), Some(point)) =
                (found.get(&mount.workspace), found.get(&mount.id))
            else {
                return Found::Gone;
            };
            if *point != workspace.join(&mount.below) {
                all = Found::Elsewhere;
            }
        }
        all
    }

    fn read(&mut self) -> io::Result<BTreeMap<u64, PathBuf>> {
        let mut text = Vec::new();
        self.list.seek(SeekFrom::Start(0))?;
        self.list.read_to_end(&mut text)?;
        let mounts = mountinfo::parse(&text).into_iter();
        Ok(mounts.map(|mount| (mount.id, mount.point)).collect())
    }
}

impl AsFd for MountWatch {
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

    fn listed(lines: &[(u64, &str)]) -> File {
        let mut list = tempfile::tempfile().unwrap();
        for (id, point) in lines {
            writeln!(list, "{id} 1 0:6 / {point} rw - tmpfs none rw").unwrap();
        }
        list
    }

    #[test]
    fn all_of_them_must_be_there() {
        let made = [(1, "/"), (2, "/w"), (3, "/w/ro"), (5, "/work")];
        let mounts = anchored(&set(&made), &[Path::new("/w")]);
        assert_eq!(mounts.iter().map(|it| it.id).collect::<Vec<_>>(), [3]);
        let lost = |lines: &[(u64, &str)]| MountWatch::new(listed(lines), mounts.clone()).lost();
        assert!(!lost(&[(2, "/w"), (3, "/w/ro")]));
        assert!(!lost(&[(9, "/x"), (2, "/w"), (3, "/w/ro")]));
        // The way to the workspace was renamed, and everything with it.
        assert!(!lost(&[(2, "/v"), (3, "/v/ro")]));
        assert!(lost(&[(2, "/w"), (3, "/w/older")]));
        assert!(lost(&[(2, "/v"), (3, "/w/ro")]));
        assert!(lost(&[(2, "/w")]) && lost(&[(3, "/w/ro")]));
        // Another one at the same place.
        assert!(lost(&[(2, "/w"), (6, "/w/ro")]));
        let directory = File::open("/").unwrap();
        assert!(MountWatch::new(directory, BTreeSet::new()).lost());
        let unmounted = anchored(&set(&[(3, "/w/ro")]), &[Path::new("/w")]);
        assert!(MountWatch::new(listed(&[(3, "/w/ro")]), unmounted).lost());
    }

    #[test]
    fn what_can_be_written_may_go_where_its_directory_goes() {
        let workspaces = [Path::new("/w"), Path::new("/w/a/inner")];
        let made = set(&[(2, "/w"), (3, "/w/a/inner"), (4, "/w/a/inner/ro")]);
        let mounts = anchored(&made, &workspaces);
        // Of both workspaces that it is in.
        assert_eq!(mounts.iter().map(|it| it.id).collect::<Vec<_>>(), [4, 4]);
        let inner = set(&[(2, "/w"), (3, "/w/a/inner")]);
        assert!(anchored(&inner, &workspaces).is_empty());
        let hosts = set(&[(7, "/w/build/cache")]);
        assert!(any_below(&inner, &workspaces) && any_below(&hosts, &workspaces));
        assert!(!any_below(&set(&[(2, "/w"), (5, "/work")]), &workspaces));
    }
}

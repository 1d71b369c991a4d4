//! The mounts in writable workspaces: read-only parts of them, and what holds these in place.
//!
//! Nothing inside can take them away. The host can: whoever replaces or removes on the host what is mounted on takes the
//! mount away in every mount namespace, and whoever renames it takes the mount along to another name; what has the old name
//! then lies open. No mount is made in its place, because whatever lies there by now may be the inside's choice: the
//! sandbox ends, and its next start looks at everything again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use sbx_sys::mountinfo;

/// How long a renamed one may go unnoticed: nothing tells of that.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Held {
    /// Tells by an exceptional condition that mounts have changed in init's own namespace; not that one was renamed.
    list: File,
    mounts: BTreeSet<(u64, PathBuf)>,
}

impl Held {
    pub(super) fn new(list: File, mounts: BTreeSet<(u64, PathBuf)>) -> Self {
        Self { list, mounts }
    }

    /// Whether one of them has gone or is elsewhere. So it is where the list cannot be read.
    pub(super) fn lost(&mut self) -> bool {
        self.read()
            .map_or(true, |found| !self.mounts.is_subset(&found))
    }

    fn read(&mut self) -> io::Result<BTreeSet<(u64, PathBuf)>> {
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

    #[test]
    fn all_of_them_must_be_there() {
        let mut list = tempfile::tempfile().unwrap();
        list.write_all(b"1 0 0:5 / / rw - tmpfs none rw\n2 1 0:6 / /w rw - tmpfs none rw\n")
            .unwrap();
        let lost = |mounts: &[(u64, &str)]| {
            let list = list.try_clone().unwrap();
            let mounts = mounts.iter().map(|(id, point)| (*id, PathBuf::from(point)));
            Held::new(list, mounts.collect()).lost()
        };
        assert!(!lost(&[]) && !lost(&[(2, "/w")]) && !lost(&[(1, "/"), (2, "/w")]));
        assert!(lost(&[(3, "/w")]) && lost(&[(1, "/"), (3, "/w")]));
        assert!(lost(&[(2, "/renamed")]));
        let directory = File::open("/").unwrap();
        assert!(Held::new(directory, BTreeSet::new()).lost());
    }
}

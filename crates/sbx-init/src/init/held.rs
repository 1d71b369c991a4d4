//! The mounts in writable workspaces: read-only parts of them, and what holds these in place.
//!
//! Nothing inside can take them away. The host can: whoever replaces or removes on the host what is mounted on takes the
//! mount away in every mount namespace, and what was read-only lies open. No mount is made in its place, because whatever
//! lies there by now may be the inside's choice: the sandbox ends, and its next start looks at everything again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};

use crate::mountinfo;

#[derive(Debug)]
pub(super) struct Held {
    /// Tells by an exceptional condition that mounts have changed in init's own namespace.
    list: File,
    ids: BTreeSet<u64>,
}

impl Held {
    pub(super) fn new(list: File, ids: BTreeSet<u64>) -> Self {
        Self { list, ids }
    }

    /// Whether one of them has gone. So it is where the list cannot be read.
    pub(super) fn lost(&mut self) -> bool {
        self.read()
            .map_or(true, |found| !self.ids.is_subset(&found))
    }

    fn read(&mut self) -> io::Result<BTreeSet<u64>> {
        let mut text = Vec::new();
        self.list.seek(SeekFrom::Start(0))?;
        self.list.read_to_end(&mut text)?;
        let mounts = mountinfo::parse(&text).into_iter();
        Ok(mounts.map(|mount| mount.id).collect())
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
        let lost = |ids: &[u64]| {
            let list = list.try_clone().unwrap();
            Held::new(list, ids.iter().copied().collect()).lost()
        };
        assert!(!lost(&[]) && !lost(&[2]) && !lost(&[1, 2]));
        assert!(lost(&[3]) && lost(&[1, 3]));
        let directory = File::open("/").unwrap();
        assert!(Held::new(directory, BTreeSet::new()).lost());
    }
}

//! Files below a root, reached one directory at a time, so that no symlink on the way is followed.
//!
//! A path alone does not do: where a directory of the listing has been replaced by a symlink, `dir/file` is a file
//! outside the root.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::RelPath;
use super::levels::{Levels, split};

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// Keeps the directories of the last path open. Fast for sorted paths.
pub(super) struct Tree {
    root: OwnedFd,
    open: Levels<OwnedFd>,
}

impl Tree {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        Ok(Self {
            root: rustix::fs::open(root, flags, Mode::empty())?,
            open: Levels::new(),
        })
    }

    /// None where there is nothing of that name any more.
    pub(super) fn stat(&mut self, path: &RelPath) -> io::Result<Option<Stat>> {
        let found = self.at(path.as_bytes(), |dir, name| {
            rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        });
        absent_is_none(found)
    }

    /// Opens a file with O_NONBLOCK: a FIFO may have taken its place. `None` if it does not exist.
    pub(super) fn file(&mut self, path: &RelPath) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let found = self.at(path.as_bytes(), |dir, name| {
            rustix::fs::openat(dir, name, flags, Mode::empty())
        });
        match found {
            // Of the file itself this is not absence: a symlink is in its place.
            Err(Errno::LOOP) => Err(Errno::LOOP.into()),
            found => Ok(absent_is_none(found)?.map(File::from)),
        }
    }

    /// The raw target of a symlink. `None` if it does not exist.
    pub(super) fn link(&mut self, path: &RelPath) -> io::Result<Option<Vec<u8>>> {
        let found = self.at(path.as_bytes(), |dir, name| {
            rustix::fs::readlinkat(dir, name, Vec::new())
        });
        Ok(absent_is_none(found)?.map(std::ffi::CString::into_bytes))
    }

    /// The names in a directory, in no order. The empty path is the root.
    pub(super) fn names(&mut self, dir: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.enter(dir)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(self.current())? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    fn at<T>(
        &mut self,
        path: &[u8],
        act: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let (dir, name) = split(path);
        self.enter(dir)?;
        act(self.current(), name)
    }

    fn current(&self) -> BorrowedFd<'_> {
        self.open.last().unwrap_or(&self.root).as_fd()
    }

    fn enter(&mut self, dir: &[u8]) -> Result<(), Errno> {
        let root = &self.root;
        self.open.enter(dir, |above, _, name| {
            let above = above.unwrap_or(root);
            rustix::fs::openat(above, name, DIRECTORY, Mode::empty())
        })
    }
}

/// A directory of the path that was replaced by a file or a symlink (ENOTDIR, ELOOP) makes the file as absent as a missing
/// name does.
fn absent_is_none<T>(found: Result<T, Errno>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

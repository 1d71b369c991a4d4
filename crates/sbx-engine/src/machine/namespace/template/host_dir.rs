//! The host's directories as the builder walks them: by descriptors, one name at a time. Others may be able to
//! rename what is being walked, so that a path is somewhere else at every use. What was opened stays what it is, and is
//! checked by its own `fstat`.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat};
use rustix::io::Errno;

use super::TemplateError;
use super::error::At as _;
use crate::state::open_beneath::{self, DIR_HANDLE};

/// Nothing that is installed lies deeper. Each level is held open while those below it are walked.
pub(super) const MOST_DEPTH: usize = 64;

/// Whether a directory on another file system is one of those that are walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mounts {
    Stay,
    Cross,
}

/// A directory of the host.
#[derive(Debug)]
pub(super) struct HostDir {
    fd: OwnedFd,
    pub(super) stat: Stat,
    /// For messages.
    path: PathBuf,
}

impl HostDir {
    /// The directory at a path whose names above it only root can change. A link at its end is not followed.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, TemplateError> {
        let opened = rustix::fs::openat(CWD, path, DIR_HANDLE, Mode::empty());
        Self::of(opened, path.to_owned())
    }

    /// The same with links followed, for where only root makes them.
    pub(super) fn reached(path: &Path) -> Result<Option<Self>, TemplateError> {
        let flags = DIR_HANDLE.difference(OFlags::NOFOLLOW);
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
        Self::of(opened, path.to_owned())
    }

    /// A directory in this one. What is checked is what was opened, whatever has its name now.
    pub(super) fn dir(&self, name: &CStr, mounts: Mounts) -> Result<Option<Self>, TemplateError> {
        let opened = match mounts {
            Mounts::Stay => open_beneath::open_dir(&self.fd, name),
            Mounts::Cross => rustix::fs::openat(&self.fd, name, DIR_HANDLE, Mode::empty()),
        };
        Self::of(opened, self.join(name))
    }

    fn of(
        opened: rustix::io::Result<OwnedFd>,
        path: PathBuf,
    ) -> Result<Option<Self>, TemplateError> {
        let found = opened.and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd)));
        let found = usable(found).at("open", &path)?;
        Ok(found.map(|(stat, fd)| Self { fd, stat, path }))
    }

    /// The same for a path of several names; `admits` is asked about each.
    pub(super) fn below(
        self,
        path: &Path,
        mounts: Mounts,
        admits: &dyn Fn(&Self) -> bool,
    ) -> Result<Option<Self>, TemplateError> {
        let mut place = self;
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Ok(None);
            };
            let Some(name) = c_name(name) else {
                return Ok(None);
            };
            match place.dir(&name, mounts)? {
                Some(next) if admits(&next) => place = next,
                Some(_) | None => return Ok(None),
            }
        }
        Ok(Some(place))
    }

    /// What a name is, itself.
    pub(super) fn look(&self, name: &CStr) -> Result<Option<Stat>, TemplateError> {
        let found = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        usable(found).at("look at", &self.join(name))
    }

    /// A regular file, open for reading, and what it is. A pipe or a device in its place is not waited for.
    pub(super) fn file(&self, name: &CStr) -> Result<Option<(File, Stat)>, TemplateError> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        let found = opened.and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd)));
        let found = usable(found).at("open", &self.join(name))?;
        Ok(found
            .filter(|(stat, _)| kind_of(stat) == FileType::RegularFile)
            .map(|(stat, fd)| (File::from(fd), stat)))
    }

    /// What a link says.
    pub(super) fn link(&self, name: &CStr) -> Result<Option<PathBuf>, TemplateError> {
        let said = usable(rustix::fs::readlinkat(&self.fd, name, Vec::new()));
        let said = said.at("read", &self.join(name))?;
        Ok(said.map(|to| OsString::from_vec(to.into_bytes()).into()))
    }

    /// What is in it; `None` where we may not list it, or not enter it.
    pub(super) fn list(&self) -> Result<Option<Dir>, TemplateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, c".", flags, Mode::empty());
        usable(opened.and_then(Dir::new)).at("list", &self.path)
    }

    /// Whether we may list it, and use the names in it.
    pub(super) fn can_be_listed(&self) -> bool {
        let wanted = Access::READ_OK | Access::EXEC_OK;
        rustix::fs::accessat(&self.fd, c".", wanted, AtFlags::empty()).is_ok()
    }

    /// Whether we may use the names in it.
    pub(super) fn can_be_entered(&self) -> bool {
        rustix::fs::statat(&self.fd, c".", AtFlags::empty()).is_ok()
    }

    /// Whether it lies in a proc file system.
    pub(super) fn is_proc(&self) -> bool {
        rustix::fs::fstatfs(&self.fd).is_ok_and(|known| known.f_type == PROC_SUPER_MAGIC)
    }

    pub(super) fn identity(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    fn join(&self, name: &CStr) -> PathBuf {
        self.path.join(OsStr::from_bytes(name.to_bytes()))
    }
}

/// The names in a directory, but for its own and its parent's; the end where it cannot be read on.
pub(super) fn next_name(entries: &mut Dir) -> Option<(CString, FileType)> {
    loop {
        let entry = entries.next()?.ok()?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            return Some((name.to_owned(), entry.file_type()));
        }
    }
}

pub(super) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

pub(super) fn c_name(name: &OsStr) -> Option<CString> {
    CString::new(name.as_bytes()).ok()
}

/// `None` for what is not there, not for us, or cannot be read: one file of the host's must not keep all sandboxes
/// from being made. Only when this process is at its own end is that a failure.
fn usable<T>(result: rustix::io::Result<T>) -> rustix::io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error),
        Err(_) => Ok(None),
    }
}

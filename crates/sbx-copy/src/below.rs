//! Directories by descriptor: what is below one, without a link that could lead elsewhere.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;

use crate::error::CopyError;
use crate::name::Name;

/// For a directory that is only passed through.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// For one that a stream does not describe.
const USUAL_DIRECTORY: u32 = 0o755;

fn path(name: &Name) -> PathBuf {
    PathBuf::from(OsString::from_vec(name.to_bytes()))
}

/// Opens what has that name below the directory. A link on the way, or at its end, is ELOOP.
pub(crate) fn open(dir: BorrowedFd<'_>, name: &Name, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC;
    loop {
        match openat2(dir, path(name), flags, Mode::empty(), resolve) {
            // Something was renamed meanwhile, and the kernel is not sure.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The filter of a sandbox does not let it pass: it cannot see what the call asks for.
            Err(Errno::NOSYS) => return walk(dir, name, flags),
            opened => return opened,
        }
    }
}

/// The same step by step.
fn walk(dir: BorrowedFd<'_>, name: &Name, flags: OFlags) -> Result<OwnedFd, Errno> {
    let Some((last, parents)) = name.parts().split_last() else {
        return openat(dir, ".", flags, Mode::empty());
    };
    let mut here = openat(dir, ".", DIRECTORY, Mode::empty())?;
    for part in parents {
        here = openat(
            &here,
            part.as_slice(),
            DIRECTORY | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
    }
    openat(
        &here,
        last.as_slice(),
        flags | OFlags::NOFOLLOW,
        Mode::empty(),
    )
}

/// The same, following links that lead nowhere else.
pub(crate) fn open_following(dir: BorrowedFd<'_>, name: &Name) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(
            dir,
            path(name),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        ) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

/// A descriptor that can be read, of one that is a place only. Not of a device or pipe: to open one has effects.
pub(crate) fn reopen(place: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    openat(CWD, link, flags | OFlags::CLOEXEC, Mode::empty())
}

/// The directories of a tree that is being written: the last one is kept open, since the next file is most likely in it.
#[derive(Debug)]
pub(crate) struct Directories {
    root: OwnedFd,
    last: Option<(Name, OwnedFd)>,
}

impl Directories {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { root, last: None }
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The directory with that name, which is made if it is not there.
    pub(crate) fn get(&mut self, name: &Name) -> Result<BorrowedFd<'_>, CopyError> {
        if self.last.as_ref().is_none_or(|(known, _)| known != name) {
            let opened = match open(self.root.as_fd(), name, DIRECTORY) {
                Err(Errno::NOENT) => self.make(name)?,
                opened => opened.map_err(|errno| failed("open", name, errno))?,
            };
            self.last = Some((name.clone(), opened));
        }
        let last = self.last.as_ref().map(|(_, fd)| fd.as_fd());
        Ok(last.unwrap_or(self.root.as_fd()))
    }

    /// All that are missing on the way to it.
    fn make(&mut self, name: &Name) -> Result<OwnedFd, CopyError> {
        if let Some((parent, last)) = name.split() {
            let last = last.to_vec();
            let parent = self.get(&parent)?;
            match mkdirat(
                parent,
                last.as_slice(),
                Mode::from_raw_mode(USUAL_DIRECTORY),
            ) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("make", name, errno)),
            }
        }
        open(self.root.as_fd(), name, DIRECTORY).map_err(|errno| failed("open", name, errno))
    }
}

/// For a link or a file in place of a directory the kernel's errors (ELOOP, ENOTDIR) tell people little.
fn failed(what: &'static str, name: &Name, errno: Errno) -> CopyError {
    let name = name.to_bytes();
    match errno {
        Errno::LOOP => CopyError::refused(&name, "a symbolic link is in its place"),
        Errno::XDEV => CopyError::refused(&name, "it leads out of the directory"),
        errno => CopyError::file(what, &name, errno),
    }
}

//! Removal of trees that something hostile may have made.
//!
//! Nothing is ever reached by a path: every directory is opened below the one before it, without following
//! symlinks and without crossing a mount point. Depth does not matter: a directory that is not empty is moved
//! up to the top before it is entered. Something may still rename what is being removed (a descriptor of it was handed
//! on): what is not where it was a moment ago is looked for again, until the top itself can go.

mod closers;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

use crate::state::open_beneath;
use closers::Closers;

/// How often a directory is emptied. More than once only when something puts files into it meanwhile.
const ATTEMPTS: usize = 10_000;
/// So many directories are worth threads of their own.
const MANY: u64 = 500;

#[derive(Debug, Error)]
pub enum RemoveError {
    #[error("cannot remove `{}`", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot remove `{}`: something is mounted in it", .path.display())]
    Mounted { path: PathBuf },
    #[error("cannot remove `{}`: it has no file name", .path.display())]
    NoName { path: PathBuf },
}

impl RemoveError {
    /// Whether a process with other ids may be able to.
    pub(crate) fn is_a_matter_of_ids(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// Removes everything below `path` and `path` itself; a missing path is not an error.
pub fn remove_tree(path: &Path) -> Result<(), RemoveError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(RemoveError::NoName {
            path: path.to_path_buf(),
        });
    };
    let removed = rustix::fs::open(
        parent,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .and_then(|parent| {
        let name = CString::new(name.as_encoded_bytes()).map_err(|_| Errno::INVAL)?;
        remove_below(&parent, &name)
    });
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::XDEV | Errno::BUSY) => Err(RemoveError::Mounted {
            path: path.to_path_buf(),
        }),
        Err(e) => Err(RemoveError::Io {
            path: path.to_path_buf(),
            source: e.into(),
        }),
    }
}

fn remove_below(parent: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let mut removal = Removal {
        top: open_dir(parent, name)?,
        waiting: Vec::new(),
        counter: 0,
        closers: None,
    };
    let top = rustix::io::fcntl_dupfd_cloexec(&removal.top, 0)?;
    for _ in 0..ATTEMPTS {
        removal.empty(&top, Depth::Top)?;
        while let Some(name) = removal.waiting.pop() {
            removal.finish(&name)?;
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            other => return other,
        }
    }
    Err(Errno::NOTEMPTY)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Top,
    Below,
}

struct Removal {
    top: OwnedFd,
    /// Directories that lie directly in the top one.
    waiting: Vec<CString>,
    counter: u64,
    closers: Option<Closers>,
}

impl Removal {
    /// Empties and removes a directory of the top one.
    fn finish(&mut self, name: &CString) -> rustix::io::Result<()> {
        let mut opened = None;
        for _ in 0..ATTEMPTS {
            match rustix::fs::unlinkat(&self.top, name, AtFlags::REMOVEDIR) {
                Ok(()) => {
                    self.close(opened);
                    return Ok(());
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(e) => return unless_moved(e),
            }
            match open_dir(&self.top, name) {
                Ok(dir) => {
                    self.empty(&dir, Depth::Below)?;
                    opened = Some(dir);
                }
                Err(e) => return unless_moved(e),
            }
        }
        Err(Errno::NOTEMPTY)
    }

    /// The last descriptor of a directory that has been removed.
    fn close(&mut self, removed: Option<OwnedFd>) {
        if let Some(removed) = removed
            && self.counter > MANY
        {
            let closers = self.closers.get_or_insert_with(Closers::start);
            closers.close(removed);
        }
    }

    /// Removes what is in `dir`; directories that are not empty end up in `waiting`.
    fn empty(&mut self, dir: &OwnedFd, depth: Depth) -> rustix::io::Result<()> {
        let entries = match Dir::read_from(dir) {
            Ok(entries) => entries,
            Err(e) => return unless_moved(e),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return unless_moved(e),
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let removed = match entry.file_type() {
                FileType::Directory => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
                FileType::Unknown => unlink_unknown(dir, name),
                _ => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
            };
            match removed {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => match depth {
                    Depth::Top => self.waiting.push(name.to_owned()),
                    Depth::Below => self.lift(dir, name).or_else(unless_moved)?,
                },
                Err(e) => unless_moved(e)?,
            }
        }
        Ok(())
    }

    /// Moves a directory of `dir` into the top one.
    fn lift(&mut self, dir: &OwnedFd, name: &std::ffi::CStr) -> rustix::io::Result<()> {
        let mut opened = false;
        loop {
            self.counter += 1;
            let fresh =
                CString::new(format!(".removed.{}", self.counter)).map_err(|_| Errno::INVAL)?;
            match rustix::fs::renameat(dir, name, &self.top, &fresh) {
                Ok(()) => {
                    self.waiting.push(fresh);
                    return Ok(());
                }
                // The name is in use: by something that a program inside called so.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => {}
                // A directory without write permission cannot get another parent: opening it helps.
                Err(Errno::ACCESS) if !opened => {
                    opened = true;
                    drop(open_dir(dir, name)?);
                }
                Err(e) => return Err(e),
            }
        }
    }
}

/// What is gone from its place or has become something else meanwhile is met again when its directory is read again,
/// which happens as long as that directory is not empty.
fn unless_moved(error: Errno) -> rustix::io::Result<()> {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP => Ok(()),
        error => Err(error),
    }
}

fn unlink_unknown(dir: &OwnedFd, name: &std::ffi::CStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
        other => other,
    }
}

/// Opens a directory for reading and makes sure that it can be emptied, whatever its mode was.
fn open_dir(parent: &OwnedFd, name: &std::ffi::CStr) -> rustix::io::Result<OwnedFd> {
    let found = open_beneath::open_dir(parent, name)?;
    let mode = rustix::fs::fstat(&found)?.st_mode & 0o7777;
    if mode & 0o700 != 0o700 {
        let link = format!("/proc/self/fd/{}", found.as_raw_fd());
        rustix::fs::chmod(link, Mode::from_raw_mode(0o700))?;
    }
    rustix::fs::openat(
        &found,
        c".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir(&tree).unwrap();
        (temp, tree)
    }

    fn left(temp: &tempfile::TempDir) -> usize {
        fs::read_dir(temp.path()).unwrap().count()
    }

    #[test]
    fn an_ordinary_tree_and_a_missing_one() {
        let (temp, tree) = tree();
        for dir in ["a/b/c", "a/d", "e"] {
            fs::create_dir_all(tree.join(dir)).unwrap();
            fs::File::create(tree.join(dir).join("file")).unwrap();
        }
        remove_tree(&tree).unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(left(&temp), 0);
        fs::File::create(&tree).unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(left(&temp), 0);
    }

    #[test]
    fn a_tree_that_is_deeper_than_any_path_and_any_number_of_descriptors() {
        let (temp, tree) = tree();
        let mut dir = rustix::fs::open(&tree, OFlags::RDONLY, Mode::empty()).unwrap();
        for _ in 0..60_000 {
            rustix::fs::mkdirat(&dir, "d", Mode::from_raw_mode(0o755)).unwrap();
            dir = rustix::fs::openat(&dir, "d", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        let began = std::time::Instant::now();
        remove_tree(&tree).unwrap();
        // A second or so; quadratic work would take many minutes.
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
        assert_eq!(left(&temp), 0);
    }

    #[test]
    fn symlinks_are_removed_and_not_followed() {
        let (temp, tree) = tree();
        let outside = temp.path().join("outside");
        fs::create_dir_all(outside.join("kept")).unwrap();
        fs::create_dir(tree.join("in")).unwrap();
        symlink(&outside, tree.join("in/link")).unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(left(&temp), 1);
        assert!(outside.join("kept").is_dir());
        symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(outside.join("kept").is_dir());
    }

    #[test]
    fn odd_names_and_names_of_our_own() {
        let (temp, tree) = tree();
        for name in [&b"new\nline"[..], b"\xff\xfe", b".removed.1", b"-rf", b" "] {
            let dir = tree.join("x").join(OsStr::from_bytes(name));
            fs::create_dir_all(dir.join("y")).unwrap();
            fs::File::create(dir.join("y/z")).unwrap();
        }
        fs::create_dir_all(tree.join(".removed.2/full")).unwrap();
        fs::File::create(tree.join(".removed.1")).unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(left(&temp), 0);
    }

    #[test]
    fn directories_without_any_permission() {
        let (temp, tree) = tree();
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::File::create(tree.join("a/b/c/file")).unwrap();
        for dir in ["a/b/c", "a/b", "a", ""] {
            fs::set_permissions(tree.join(dir), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert_eq!(left(&temp), 0);
    }

    #[test]
    fn nothing_is_left_when_names_change_meanwhile() {
        let (temp, tree) = tree();
        let inner = tree.join("inner");
        for i in 0..400 {
            let dir = inner.join(format!("d{i}"));
            fs::create_dir_all(&dir).unwrap();
            fs::File::create(dir.join("file")).unwrap();
        }
        let dir = rustix::fs::open(&inner, OFlags::RDONLY, Mode::empty()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..400 {
                    let (one, other) = (format!("d{i}"), format!("e{i}"));
                    let rename = |from, to| rustix::fs::renameat(&dir, from, &dir, to).is_ok();
                    while (rename(&one, &other) | rename(&other, &one))
                        && !done.load(Ordering::Relaxed)
                    {
                        std::hint::spin_loop();
                    }
                }
            });
            let removed = remove_tree(&tree);
            done.store(true, Ordering::Relaxed);
            removed.unwrap();
        });
        assert_eq!(left(&temp), 0);
    }
}

//! The lock of the one daemon of a state directory, and what others can tell by it.
//!
//! There are two locks on the one file, of two kinds, because neither kind does both jobs.
//!
//! - An exclusive `flock(2)` keeps other daemons out. It belongs to the open file description, so the kernel drops it
//!   only when the last descriptor is closed: until nothing is left of a daemon that was killed.
//! - A POSIX record lock (`fcntl(F_SETLK)`) is a mark for other processes. It belongs to the process and goes with
//!   the first descriptor that it closes, also on exit, and `F_GETLK` tells who holds it. Shared means "not serving", exclusive means "serves a socket".
//!
//! So the daemon itself must not ask for the holder: to open and close the file would take the mark away.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{FlockType, Pid, fcntl_getlk};

use crate::state::socket::{connect_unix, is_unserved};
use crate::state::{LOCK, SOCKET, StateDir, StateError, io_error, private};

const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Held by the one daemon of a state directory.
#[derive(Debug)]
pub struct DaemonLock {
    file: File,
    file_id: LockFileId,
}

/// Which file is locked, and where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFileId {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// The process that has the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// `None` when it is not of our pid namespace.
    pub pid: Option<Pid>,
    /// It has a socket, or has lost it. Others are about to serve, about to end, or not daemons.
    serves: bool,
}

impl StateDir {
    pub fn lock_daemon(&self) -> Result<DaemonLock, StateError> {
        let path = self.root().join(LOCK);
        loop {
            let lock = self.lock_file(&path)?;
            // The holder before may have unlinked the file: then this locks an inode that no other process opens.
            match lock.file_id.check() {
                Ok(true) => return Ok(lock),
                Ok(false) => {}
                Err(error) => return Err(io_error(&path, error)),
            }
        }
    }

    /// The lock, waited for while its holder is a process that ends: one that was told to, or was killed, has the lock
    /// until the kernel has closed its last descriptor, which a slow disk or a busy machine delays. A daemon that
    /// serves, or that has lost its socket, is not waited for.
    pub fn lock_daemon_within(&self, timeout: Duration) -> Result<DaemonLock, StateError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.lock_daemon() {
                Err(StateError::Locked { .. })
                    if Instant::now() < deadline
                        && connect_unix(self.root(), SOCKET).is_err()
                        && self.cut_off_daemon().is_none() =>
                {
                    std::thread::sleep(LOCK_POLL_INTERVAL);
                }
                other => return other,
            }
        }
    }

    fn lock_file(&self, path: &Path) -> Result<DaemonLock, StateError> {
        let failed = |source| io_error(path, source);
        let file = private()
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StateError::Locked {
                    path: self.root().to_path_buf(),
                });
            }
            Err(e) => return Err(failed(e.into())),
        }
        let meta = file.metadata().map_err(failed)?;
        let file_id = LockFileId {
            path: path.to_path_buf(),
            device: meta.dev(),
            inode: meta.ino(),
        };
        let lock = DaemonLock { file, file_id };
        // The record lock comes second: only the holder of the `flock` may set the mark.
        lock.stop_serving().map_err(failed)?;
        Ok(lock)
    }

    /// Whether there is a daemon, found out without waking it: while a command runs in a sandbox that is up, it has
    /// nothing to do. An error when it is another user's. As [`StateDir::cut_off_daemon`], not for the daemon itself:
    /// it does not see its own mark, and loses it by looking.
    pub fn has_daemon(&self) -> Result<bool, StateError> {
        let Ok(file) = File::open(self.root().join(LOCK)) else {
            return Ok(false);
        };
        if let Ok(meta) = file.metadata() {
            self.check_owner(meta.uid())?;
        }
        Ok(holder(&file).is_some())
    }

    /// The process that has the lock.
    pub fn lock_holder(&self) -> Option<Holder> {
        holder(&File::open(self.root().join(LOCK)).ok()?)
    }

    /// The daemon that serves a socket to which no path leads any more.
    pub fn cut_off_daemon(&self) -> Option<Holder> {
        let serving = || self.lock_holder().filter(|holder| holder.serves);
        let before = serving()?;
        let nowhere = connect_unix(self.root(), SOCKET).is_err_and(|error| is_unserved(&error));
        // One that began or ended meanwhile has lost nothing.
        (nowhere && serving() == Some(before)).then_some(before)
    }
}

impl DaemonLock {
    /// A client that does not find the socket from now on is told that it is lost.
    pub fn serve(&self) -> io::Result<()> {
        Ok(fcntl_lock(
            &self.file,
            FlockOperation::NonBlockingLockExclusive,
        )?)
    }

    /// Before the socket goes.
    pub fn stop_serving(&self) -> io::Result<()> {
        Ok(fcntl_lock(
            &self.file,
            FlockOperation::NonBlockingLockShared,
        )?)
    }

    pub fn file_id(&self) -> &LockFileId {
        &self.file_id
    }
}

impl LockFileId {
    /// Whether the file that is locked is still the one that others look at. For as long as the lock is held: later
    /// the number may be another file's.
    pub fn is_ours(&self) -> bool {
        // One that cannot be looked at need not be gone.
        self.check().unwrap_or(true)
    }

    fn check(&self) -> io::Result<bool> {
        match fs::metadata(&self.path) {
            Ok(meta) => Ok((meta.dev(), meta.ino()) == (self.device, self.inode)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(false),
                _ => Err(error),
            },
        }
    }
}

fn holder(file: &File) -> Option<Holder> {
    let mark = fcntl_getlk(file, &FlockType::WriteLock.into()).ok()??;
    Some(Holder {
        pid: mark.pid,
        serves: mark.typ == FlockType::WriteLock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(path: &Path) -> StateDir {
        let state = StateDir::locate(Path::new("/nowhere"), Some(path)).unwrap();
        state.claim().unwrap();
        state
    }

    #[test]
    fn a_lock_file_that_was_removed_meanwhile_locks_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let state = state(&temp.path().join("s"));
        let path = state.root().join(LOCK);
        let first = state.lock_daemon().unwrap();
        assert!(first.file_id().is_ours());
        fs::remove_file(&path).unwrap();
        assert!(!first.file_id().is_ours());
        let second = state.lock_daemon().unwrap();
        assert!(second.file_id().is_ours());
        assert!(!first.file_id().is_ours(), "it is the successor's");
        fs::rename(state.root(), temp.path().join("away")).unwrap();
        assert!(!second.file_id().is_ours());
    }

    #[test]
    fn a_second_daemon_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let state = state(temp.path());
        let lock = state.lock_daemon().unwrap();
        lock.serve().unwrap();
        assert!(matches!(
            state.lock_daemon(),
            Err(StateError::Locked { .. })
        ));
        drop(lock);
        state.lock_daemon().unwrap();
    }
}

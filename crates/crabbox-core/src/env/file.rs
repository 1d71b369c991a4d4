//! Variables in a file that only we and our child can read, for as long as the child needs it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::claims::{Creator, Liveness, random_hex};
use crate::{Code, Failure};

const SUFFIX: &str = ".env";

/// `<state>/env/<pid>-<start time>-<random>.env`. The name says whose it is: after a crash, [`sweep`] removes it.
#[derive(Debug)]
pub struct EnvFile {
    path: PathBuf,
    /// Kept open and locked, as a second sign of life where process numbers mean something else.
    file: File,
}

impl EnvFile {
    /// `state` is the state directory. The file is never readable by others, not even before it is written.
    pub fn create(state: &Path, bytes: &[u8]) -> Result<Self, Failure> {
        let directory = directory(state);
        let fail = |error: io::Error| failure("write", &directory, &error);
        make_private(&directory).map_err(fail)?;
        let me = Creator::current();
        let name = format!(
            "{}-{}-{}{SUFFIX}",
            me.pid,
            me.start_time.unwrap_or(0),
            random_hex(8)?
        );
        let path = directory.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(fail)?;
        // From here on it is removed whatever happens.
        let mut env_file = Self { path, file };
        // Not every file system has locks.
        drop(env_file.file.try_lock());
        env_file.file.write_all(bytes).map_err(fail)?;
        Ok(env_file)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for EnvFile {
    fn drop(&mut self) {
        // Should it fail, the next sweep does it.
        drop(fs::remove_file(&self.path));
    }
}

/// Removes the files of processes that were killed. What cannot be removed is reported; what belongs to the living, and
/// what is not ours by its name, stays.
pub fn sweep(state: &Path) -> Vec<Failure> {
    let directory = directory(state);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![failure("read", &directory, &error)],
    };
    let mut problems = Vec::new();
    for entry in entries.flatten() {
        let Some((pid, started)) = entry.file_name().to_str().and_then(owner) else {
            continue;
        };
        let path = entry.path();
        if is_dead(pid, started)
            && !is_locked(&path)
            && let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            problems.push(failure("remove", &path, &error));
        }
    }
    problems
}

fn directory(state: &Path) -> PathBuf {
    state.join("env")
}

fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_suffix(SUFFIX)?.split('-');
    let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next()?;
    parts.next().is_none().then_some((pid, started))
}

fn is_dead(pid: u32, started: u64) -> bool {
    let creator = Creator {
        pid,
        start_time: (started != 0).then_some(started),
        ..Creator::current()
    };
    creator.liveness() == Liveness::Dead
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// A directory of this user with mode 0700.
fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let found = fs::symlink_metadata(directory)?;
    let me = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != me {
        return Err(io::Error::other("not a directory owned by this user"));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn failure(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(Code::State, format!("cannot {verb} `{}`", path.display())).because(error)
}

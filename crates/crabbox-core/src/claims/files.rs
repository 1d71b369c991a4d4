//! The files below the state directory: how they are read without harm and written without loss.
//!
//! A write goes to a temporary file in the same directory, is made durable with fsync(2), and then replaces the old
//! file with rename(2) (or link(2), where the file must not exist); at last the directory is synced, because the new name
//! is durable only then. So a reader sees the old bytes or the new ones, never a part. A killed writer leaves a hidden
//! file that no reader opens; it is removed when it is old.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, AtFlags, CWD, OFlags};

use super::problem::{Fault, ProblemCode};
use crate::{Code, Failure};

/// A claim has a few hundred bytes. What is this large was not written by us.
pub(super) const MAX_BYTES: usize = 1 << 20;
const TEMP_PREFIX: &str = ".claim-";
const TEMP_SUFFIX: &str = ".tmp";
/// No write takes this long, so the writer of an older file is gone.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Present,
    Absent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// Fails when the file is there.
    CreateNew,
    Replace,
}

/// Whether there is such a directory of ours. What others could write into proves nothing.
pub(super) fn check_dir(path: &Path) -> Result<Presence, Failure> {
    let refuse = |why: &str| {
        let message = format!("refusing directory `{}`: {why}", path.display());
        Failure::new(Code::State, message)
    };
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Presence::Absent),
        Err(e) => return Err(io_failure("inspect", path, &e)),
    };
    if meta.is_symlink() {
        return Err(refuse("it is a symbolic link"));
    }
    if !meta.is_dir() {
        return Err(refuse("it is not a directory"));
    }
    if meta.permissions().mode() & 0o022 != 0 {
        return Err(
            refuse("writable by other users").hint(format!("chmod 700 '{}'", path.display()))
        );
    }
    Ok(Presence::Present)
}

/// Whether claims, locks and variables can be written below this state directory. Changes nothing.
pub fn check_state(state: &Path) -> Result<(), Failure> {
    for name in ["claims", "claim-locks", "env", "runs"] {
        let path = state.join(name);
        if name.starts_with("claim") {
            check_dir(&path)?;
        }
        let existing = path.ancestors().find(|dir| dir.exists());
        let Some(dir) = existing else { continue };
        if !dir.is_dir() {
            let message = format!("`{}` is not a directory", dir.display());
            return Err(Failure::new(Code::State, message));
        }
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(CWD, dir, wanted, AtFlags::EACCESS).map_err(|errno| {
            io_failure("write to", dir, &errno.into())
                .hint("set XDG_STATE_HOME to a directory of your own")
        })?;
    }
    Ok(())
}

/// Makes the directory and its parents, all 0700.
pub(super) fn create_dir(path: &Path) -> Result<(), Failure> {
    match check_dir(path)? {
        Presence::Present => Ok(()),
        Presence::Absent => {
            create_missing(path).map_err(|e| io_failure("create directory", path, &e))
        }
    }
}

/// A file in a directory is as lasting as the names of all directories above it.
fn create_missing(path: &Path) -> io::Result<()> {
    let existing = path.ancestors().find(|dir| dir.exists());
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for dir in path.ancestors().skip(1) {
        sync_dir(dir)?;
        if Some(dir) == existing {
            break;
        }
    }
    Ok(())
}

/// None when there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, Fault> {
    // A link may lead anywhere, and the open of a pipe would wait for a writer.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) if is_not_regular(path) => return Err(not_regular()),
        Err(e) => return Err(unreadable(&e)),
    };
    let metadata = file.metadata().map_err(|e| unreadable(&e))?;
    if !metadata.is_file() {
        return Err(not_regular());
    }
    // Room for all of it and the end: a reader that has to guess asks for little at a time.
    let size = usize::try_from(metadata.len()).unwrap_or(MAX_BYTES);
    let mut bytes = Vec::with_capacity(size.min(MAX_BYTES) + 64);
    let limit = MAX_BYTES as u64 + 1;
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|e| unreadable(&e))?;
    if bytes.len() > MAX_BYTES {
        let message = "larger than 1 MiB";
        return Err(Fault::new(ProblemCode::ClaimTooLarge, message));
    }
    Ok(Some(bytes))
}

/// When it returns, `dir/name` has these bytes, also after a power cut.
pub(super) fn write(dir: &Path, name: &str, bytes: &[u8], mode: WriteMode) -> io::Result<()> {
    let mut temp = tempfile::Builder::new()
        .prefix(TEMP_PREFIX)
        .suffix(TEMP_SUFFIX)
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(dir)?;
    temp.write_all(bytes)?;
    temp.as_file().sync_all()?;
    let path = dir.join(name);
    match mode {
        WriteMode::CreateNew => temp.persist_noclobber(path)?,
        WriteMode::Replace => temp.persist(path)?,
    };
    sync_dir(dir)
}

pub(super) fn remove(dir: &Path, name: &str) -> io::Result<()> {
    fs::remove_file(dir.join(name))?;
    sync_dir(dir)
}

/// Whether a file of this name is being written, or was when its writer died.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMP_PREFIX) && name.ends_with(TEMP_SUFFIX)
}

/// Removes what killed writers left behind. What cannot be removed does no harm and stays.
pub(super) fn sweep_leftovers(dir: &Path, now: SystemTime) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(is_temporary);
        let old = |meta: &fs::Metadata| {
            let modified = meta.modified().ok();
            let age = modified.and_then(|time| now.duration_since(time).ok());
            age.is_some_and(|age| age > LEFTOVER_AGE)
        };
        if named
            && entry
                .metadata()
                .is_ok_and(|meta| meta.is_file() && old(&meta))
        {
            drop(fs::remove_file(entry.path()));
        }
    }
}

pub(super) fn io_failure(verb: &str, path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot {verb} `{}`", path.display());
    Failure::new(Code::State, message).because(error)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn is_not_regular(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file())
}

fn not_regular() -> Fault {
    let message = "not a regular file";
    Fault::new(ProblemCode::NonRegularFile, message)
}

fn unreadable(error: &io::Error) -> Fault {
    Fault::new(ProblemCode::ReadError, format!("cannot read: {error}"))
}

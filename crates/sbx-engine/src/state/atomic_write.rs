//! Files and directories that are the user's alone, and files that are replaced whole.
//!
//! A file is written under a temporary name in the same directory and then renamed: rename(2) is atomic, so a reader sees
//! the old bytes or the new ones. It survives a power cut only if the file and then its directory are synced, in this order.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const TEMP_SUFFIX: &str = ".tmp";

/// When a write must have reached the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When it returns: what it says survives a power cut.
    Now,
    /// When the kernel gets to it: enough against a crash of the daemon, and not milliseconds slower.
    Soon,
}

/// Writes `dir/name` so that a reader sees the old bytes or the new ones, also after a crash.
pub fn write_atomic(
    dir: &Path,
    name: &str,
    bytes: &[u8],
    durability: Durability,
) -> io::Result<()> {
    write_then(dir, name, bytes, durability, |temp, path| {
        fs::rename(temp, path)
    })
}

/// Writes `dir/name` in the same way where nothing has that name yet; else it stays as it is.
pub fn write_new(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let link = |temp: &Path, path: &Path| {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(rustix::fs::CWD, temp, rustix::fs::CWD, path, flags) {
            Err(rustix::io::Errno::EXIST) => fs::remove_file(temp),
            other => Ok(other?),
        }
    };
    write_then(dir, name, bytes, Durability::Now, link)
}

fn write_then(
    dir: &Path,
    name: &str,
    bytes: &[u8],
    durability: Durability,
    place: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let temp = dir.join(format!(
        ".{name}.{}.{number}{TEMP_SUFFIX}",
        std::process::id()
    ));
    let written = private()
        .create_new(true)
        .open(&temp)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            match durability {
                Durability::Now => file.sync_all(),
                Durability::Soon => Ok(()),
            }
        })
        .and_then(|()| place(&temp, &dir.join(name)));
    if let Err(e) = written {
        // The error that matters is the first one.
        drop(fs::remove_file(&temp));
        return Err(e);
    }
    match durability {
        Durability::Now => File::open(dir)?.sync_all(),
        Durability::Soon => Ok(()),
    }
}

/// Whether a file name is one that [`write_atomic`] leaves behind when it is interrupted.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMP_SUFFIX)
}

/// Makes the directory and its parents, all 0700.
pub fn make_private_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Options for a file that is the user's alone.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

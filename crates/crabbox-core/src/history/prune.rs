//! Keeping the history small.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use super::Ledger;
use super::record::{Record, Status};
use super::run::{END, RECORD};
use crate::claims::{Creator, Fate, random_hex};

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub runs: usize,
    /// Of all files together.
    pub bytes: u64,
    /// Of one stream of one run.
    pub log: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            runs: 200,
            bytes: 256 << 20,
            log: 8 << 20,
        }
    }
}

/// A run of which nobody here can tell whether it is over counts as over when it is so old.
const ABANDONED: SignedDuration = SignedDuration::from_hours(24 * 30);
/// A record that cannot be read stays so long, since a newer version may be writing it.
const DAMAGED: SignedDuration = SignedDuration::from_hours(24);
const TRASH: &str = ".trash-";
const FRESH: &str = ".new-";

struct Candidate {
    run_id: String,
    bytes: u64,
    started_at: Timestamp,
    over: bool,
}

/// One process at a time; when another does it, there is nothing to do.
pub(super) fn prune(ledger: &Ledger, bounds: &Bounds, now: Timestamp) -> io::Result<()> {
    let ids = ledger.ids().map_err(io::Error::other)?;
    let sizes: Vec<(String, u64)> = ids
        .into_iter()
        .map(|run_id| {
            let bytes = size(&ledger.directory(&run_id));
            (run_id, bytes)
        })
        .collect();
    let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    if sizes.len() <= bounds.runs && bytes <= bounds.bytes {
        return Ok(());
    }
    let Some(_lock) = lock(ledger.root())? else {
        return Ok(());
    };
    let mut candidates: Vec<Candidate> = sizes
        .into_iter()
        .map(|(run_id, bytes)| judge(ledger, run_id, bytes, now))
        .collect();
    candidates.sort_by_key(|candidate| candidate.started_at);
    // A tenth less than allowed, so that not every run finds the bounds broken and reads every record.
    let (mut runs, mut bytes) = (candidates.len(), bytes);
    let (most_runs, most_bytes) = (
        bounds.runs - bounds.runs / 10,
        bounds.bytes - bounds.bytes / 10,
    );
    for candidate in candidates.iter().filter(|candidate| candidate.over) {
        if runs <= most_runs && bytes <= most_bytes {
            break;
        }
        remove(ledger.root(), &ledger.directory(&candidate.run_id))?;
        runs -= 1;
        bytes = bytes.saturating_sub(candidate.bytes);
    }
    sweep(ledger.root())
}

fn judge(ledger: &Ledger, run_id: String, bytes: u64, now: Timestamp) -> Candidate {
    let (started_at, over) = match ledger.read(&run_id) {
        Ok(Some(record)) => (record.started_at, is_over(&record, now)),
        Ok(None) => (now, false),
        Err(_) => {
            let changed = changed(&ledger.directory(&run_id));
            (changed, now.duration_since(changed) > DAMAGED)
        }
    };
    Candidate {
        run_id,
        bytes,
        started_at,
        over,
    }
}

/// A run whose process lives may still write, even when it says that it is over.
fn is_over(record: &Record, now: Timestamp) -> bool {
    match (record.process.fate(), record.run_status) {
        (Fate::Alive, _) => false,
        (Fate::Dead, _) => true,
        (Fate::Unknown, Status::Running) => now.duration_since(record.started_at) > ABANDONED,
        (
            Fate::Unknown,
            Status::Succeeded
            | Status::Failed
            | Status::TimedOut
            | Status::Canceled
            | Status::Interrupted,
        ) => true,
    }
}

fn changed(directory: &Path) -> Timestamp {
    fs::metadata(directory)
        .and_then(|found| found.modified())
        .ok()
        .and_then(|time| Timestamp::try_from(time).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

fn size(directory: &Path) -> u64 {
    let files = [RECORD, END, "stdout.log", "stderr.log"];
    let sizes = files
        .iter()
        .filter_map(|name| fs::metadata(directory.join(name)).ok());
    sizes.map(|found| found.len()).sum()
}

/// The directory goes away at once, whatever happens to its content.
fn remove(root: &Path, directory: &Path) -> io::Result<()> {
    let random = random_hex(8).map_err(io::Error::other)?;
    let trash = root.join(format!("{TRASH}{random}"));
    gone(fs::rename(directory, &trash))?;
    gone(fs::remove_dir_all(&trash))
}

/// What a killed process left: half of a removal, or a run that never began.
fn sweep(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.starts_with(TRASH) || name.strip_prefix(FRESH).is_some_and(is_orphan) {
            gone(fs::remove_dir_all(entry.path()))?;
        }
    }
    Ok(())
}

/// From `<pid>-<start time>-<run id>`.
fn is_orphan(name: &str) -> bool {
    let mut parts = name.split('-');
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u64>().ok());
    let (Some(pid), Some(started)) = (number(parts.next()), number(parts.next())) else {
        return false;
    };
    let creator = Creator {
        pid: u32::try_from(pid).unwrap_or(0),
        start_time: (started != 0).then_some(started),
        ..Creator::current()
    };
    creator.fate() == Fate::Dead
}

fn lock(root: &Path) -> io::Result<Option<File>> {
    let path: PathBuf = root.join(".lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

//! Keeping the history small.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use super::RunStore;
use super::record::{Record, Status};
use crate::claims::Liveness;
use crate::process::Stream;

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

/// A run whose process cannot be checked from here counts as finished at this age.
const ABANDONED_AGE: SignedDuration = SignedDuration::from_hours(24 * 30);
/// A record that cannot be read stays so long, since a newer version may be writing it.
const DAMAGED_AGE: SignedDuration = SignedDuration::from_hours(24);

struct Candidate {
    run_id: String,
    bytes: u64,
    started_at: Timestamp,
    finished: bool,
}

/// One process at a time; when another does it, there is nothing to do.
pub(super) fn prune(store: &RunStore, bounds: &Bounds, now: Timestamp) -> io::Result<()> {
    let ids = store.ids().map_err(io::Error::other)?;
    let sizes: Vec<(String, u64)> = ids
        .into_iter()
        .map(|run_id| {
            let bytes = size(store, &run_id);
            (run_id, bytes)
        })
        .collect();
    let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    if sizes.len() <= bounds.runs && bytes <= bounds.bytes {
        return Ok(());
    }
    let Some(_lock) = lock(store.root())? else {
        return Ok(());
    };
    let mut candidates: Vec<Candidate> = sizes
        .into_iter()
        .map(|(run_id, bytes)| classify(store, run_id, bytes, now))
        .collect();
    candidates.sort_by_key(|candidate| candidate.started_at);
    // A tenth less than allowed, so that not every run finds the bounds broken and reads every record.
    let (mut runs, mut bytes) = (candidates.len(), bytes);
    let (most_runs, most_bytes) = (
        bounds.runs - bounds.runs / 10,
        bounds.bytes - bounds.bytes / 10,
    );
    for candidate in candidates.iter().filter(|candidate| candidate.finished) {
        if runs <= most_runs && bytes <= most_bytes {
            break;
        }
        remove(store, &candidate.run_id)?;
        runs -= 1;
        bytes = bytes.saturating_sub(candidate.bytes);
    }
    sweep(store)
}

fn classify(store: &RunStore, run_id: String, bytes: u64, now: Timestamp) -> Candidate {
    let (started_at, finished) = match store.read(&run_id) {
        Ok(Some(record)) => (record.started_at, is_over(&record, now)),
        Ok(None) | Err(_) => {
            let changed = changed(&store.record(&run_id));
            (changed, now.duration_since(changed) > DAMAGED_AGE)
        }
    };
    Candidate {
        run_id,
        bytes,
        started_at,
        finished,
    }
}

/// A run whose process lives may still write, even when it says that it is over.
fn is_over(record: &Record, now: Timestamp) -> bool {
    match (record.process.liveness(), record.run_status) {
        (Liveness::Alive, _) => false,
        (Liveness::Dead, _) => true,
        (Liveness::Unknown, Status::Running) => {
            now.duration_since(record.started_at) > ABANDONED_AGE
        }
        (
            Liveness::Unknown,
            Status::Succeeded
            | Status::Failed
            | Status::TimedOut
            | Status::Canceled
            | Status::Interrupted,
        ) => true,
    }
}

fn changed(file: &Path) -> Timestamp {
    fs::metadata(file)
        .and_then(|found| found.modified())
        .ok()
        .and_then(|time| Timestamp::try_from(time).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

fn files(store: &RunStore, run_id: &str) -> [PathBuf; 3] {
    [
        store.record(run_id),
        store.log(run_id, Stream::Stdout),
        store.log(run_id, Stream::Stderr),
    ]
}

fn size(store: &RunStore, run_id: &str) -> u64 {
    let files = files(store, run_id);
    let sizes = files.iter().filter_map(|path| fs::metadata(path).ok());
    sizes.map(|found| found.len()).sum()
}

/// The record first: without it there is no run, whatever happens to the rest.
fn remove(store: &RunStore, run_id: &str) -> io::Result<()> {
    files(store, run_id)
        .iter()
        .try_for_each(|path| gone(fs::remove_file(path)))
}

/// What a killed process left: logs of a run that is gone. A run has its record before it has logs.
fn sweep(store: &RunStore) -> io::Result<()> {
    for (run_id, name) in store.logs()? {
        if !store.record(&run_id).try_exists()? {
            gone(fs::remove_file(store.root().join(name)))?;
        }
    }
    Ok(())
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

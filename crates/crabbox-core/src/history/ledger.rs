//! All recorded runs of this user.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::prune::Bounds;
use super::record::Record;
use super::run::{ActiveRun, Begin, END, RECORD, log_name};
use crate::claims::Creator;
use crate::process::Stream;
use crate::redact::Redactor;
use crate::{Code, Failure};

/// No record is larger.
const MAX_RECORD: u64 = 1 << 20;
/// How many of several matches a message names.
const NAMED: usize = 5;

#[derive(Debug, Clone)]
pub struct Ledger {
    runs: PathBuf,
    bounds: Bounds,
}

/// What there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Newest first.
    pub runs: Vec<Record>,
    pub problems: Vec<Problem>,
}

/// A record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub run_id: String,
    pub reason: String,
}

impl Ledger {
    /// `state` is the state directory. Nothing is made or read yet.
    pub fn new(state: &Path, bounds: Bounds) -> Self {
        Self {
            runs: state.join("runs"),
            bounds,
        }
    }

    /// Writes down that a run begins. `redactor` knows what must not be written.
    pub fn begin(&self, begin: Begin, redactor: Redactor) -> Result<ActiveRun, Failure> {
        if !is_run_id(&begin.run_id) {
            let message = format!("{:?} is not the id of a run", begin.run_id);
            return Err(Failure::new(Code::Local, message));
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.runs)
            .map_err(|error| self.failure("make", &error))?;
        ActiveRun::begin(self, begin, redactor, self.bounds)
    }

    /// All runs. Damaged ones are problems and stand in nobody's way.
    pub fn list(&self) -> Result<Listing, Failure> {
        let mut listing = Listing::default();
        for run_id in self.ids()? {
            match self.read(&run_id) {
                Ok(Some(record)) => listing.runs.push(record.with_fate()),
                Ok(None) => {}
                Err(reason) => listing.problems.push(Problem { run_id, reason }),
            }
        }
        listing
            .runs
            .sort_by(|a, b| (b.started_at, &b.run_id).cmp(&(a.started_at, &a.run_id)));
        Ok(listing)
    }

    /// `latest`, a run's id or the beginning of it, or a slug (its newest run).
    pub fn find(&self, which: &str) -> Result<Record, Failure> {
        let runs = self.list()?.runs;
        let not_found = || {
            Failure::new(
                Code::NotFound,
                format!("no recorded run is called {which:?}"),
            )
            .hint("crabbox history")
        };
        if which == "latest" {
            return runs.into_iter().next().ok_or_else(|| {
                Failure::new(Code::NotFound, "there is no recorded run")
                    .hint("crabbox run -- COMMAND")
            });
        }
        if which.is_empty() {
            return Err(not_found());
        }
        if let Some(run) = runs
            .iter()
            .find(|run| run.run_id == which)
            .or_else(|| runs.iter().find(|run| run.slug == which))
        {
            return Ok(run.clone());
        }
        let begins = |run: &&Record| {
            run.run_id.starts_with(which)
                || run
                    .run_id
                    .strip_prefix("run_")
                    .is_some_and(|id| id.starts_with(which))
        };
        let found: Vec<&Record> = runs.iter().filter(begins).collect();
        match found.as_slice() {
            [] => Err(not_found()),
            [run] => Ok((*run).clone()),
            [..] => {
                let names: Vec<&str> = found
                    .iter()
                    .take(NAMED)
                    .map(|run| run.run_id.as_str())
                    .collect();
                let message = format!(
                    "{which:?} is the beginning of {} runs: {}",
                    found.len(),
                    names.join(", ")
                );
                Err(Failure::usage(message).hint("crabbox history"))
            }
        }
    }

    /// What the run wrote, or has written so far.
    pub fn read_log(&self, run_id: &str, stream: Stream) -> Result<File, Failure> {
        if !is_run_id(run_id) {
            return Err(Failure::usage(format!("{run_id:?} is not the id of a run")));
        }
        let path = self.directory(run_id).join(log_name(stream));
        File::open(&path).map_err(|error| {
            let code = match error.kind() {
                io::ErrorKind::NotFound => Code::NotFound,
                _ => Code::State,
            };
            Failure::new(code, format!("cannot read the log `{}`", path.display())).because(&error)
        })
    }

    /// Removes the oldest runs until the bounds are kept. Cheap when they are.
    pub fn prune(&self, now: Timestamp) -> Result<(), Failure> {
        super::prune::prune(self, &self.bounds, now)
            .map_err(|error| self.failure("tidy up", &error))
    }

    pub(super) fn root(&self) -> &Path {
        &self.runs
    }

    pub(super) fn directory(&self, run_id: &str) -> PathBuf {
        self.runs.join(run_id)
    }

    /// Where a run is made before it appears.
    pub(super) fn fresh(&self, process: &Creator, run_id: &str) -> PathBuf {
        let started = process.start_time.unwrap_or(0);
        self.runs
            .join(format!(".new-{}-{started}-{run_id}", process.pid))
    }

    pub(super) fn ids(&self) -> Result<Vec<String>, Failure> {
        let entries = match fs::read_dir(&self.runs) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failure("read", &error)),
        };
        Ok(entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_run_id(name))
            .collect())
    }

    /// `None` when it was removed in the meantime.
    pub(super) fn read(&self, run_id: &str) -> Result<Option<Record>, String> {
        let directory = self.directory(run_id);
        let mut bytes = Vec::new();
        let read = File::open(directory.join(END))
            .or_else(|_| File::open(directory.join(RECORD)))
            // The run may have ended between the two.
            .or_else(|_| File::open(directory.join(END)))
            .and_then(|file| file.take(MAX_RECORD).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.exists() => {
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        }
        let record: Record = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if record.run_id != run_id {
            return Err(format!("it is the record of {:?}", record.run_id));
        }
        Ok(Some(record))
    }

    fn failure(&self, verb: &str, error: &io::Error) -> Failure {
        let message = format!("cannot {verb} the history in `{}`", self.runs.display());
        Failure::new(Code::State, message).because(error)
    }
}

/// `run_` and lower-case hex: nothing else may become part of a path.
fn is_run_id(text: &str) -> bool {
    text.strip_prefix("run_").is_some_and(|id| {
        (1..=64).contains(&id.len())
            && id
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

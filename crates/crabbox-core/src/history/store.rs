//! All recorded runs of this user.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::prune::Bounds;
use super::record::{Record, Status};
use super::run::{ActiveRun, Begin};
use crate::process::Stream;
use crate::redact::Redactor;
use crate::{Code, Failure};

/// What follows the id in a file's name.
const RECORD: &str = ".json";
/// No record is larger.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// How many of several matches a message names.
const MAX_NAMED: usize = 5;

#[derive(Debug, Clone)]
pub struct RunStore {
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

impl RunStore {
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
            let message = format!("invalid run id `{}`", crate::printable(&begin.run_id));
            return Err(Failure::new(Code::Local, message));
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.runs)
            .map_err(|error| self.failure("create", &error))?;
        ActiveRun::begin(self, begin, redactor, self.bounds)
    }

    /// All runs. Damaged ones are reported as problems and do not affect the others.
    pub fn list(&self) -> Result<Listing, Failure> {
        let mut listing = Listing::default();
        for run_id in self.ids()? {
            match self.read(&run_id) {
                Ok(Some(record)) => listing.runs.push(record.with_liveness()),
                Ok(None) => {}
                Err(reason) => listing.problems.push(Problem { run_id, reason }),
            }
        }
        listing
            .runs
            .sort_by(|a, b| (b.started_at, &b.run_id).cmp(&(a.started_at, &a.run_id)));
        Ok(listing)
    }

    /// `latest`, a run's id or the beginning of it, or a slug: its newest run, but first one that still runs, such as a
    /// server in the background beside which others were run.
    pub fn find(&self, which: &str) -> Result<Record, Failure> {
        let runs = self.list()?.runs;
        let not_found = || {
            Failure::new(
                Code::NotFound,
                format!("no run matches `{}`", crate::printable(which)),
            )
            .hint("crabbox history")
        };
        if which == "latest" {
            return runs.into_iter().next().ok_or_else(|| {
                Failure::new(Code::NotFound, "no runs recorded").hint("crabbox run -- COMMAND")
            });
        }
        if which.is_empty() {
            return Err(not_found());
        }
        if let Some(run) = runs.iter().find(|run| run.run_id == which).or_else(|| {
            let of_slug = || runs.iter().filter(|run| run.slug == which);
            of_slug()
                .find(|run| run.run_status == Status::Running)
                .or_else(|| of_slug().next())
        }) {
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
                    .take(MAX_NAMED)
                    .map(|run| run.run_id.as_str())
                    .collect();
                let message = format!(
                    "`{}` is ambiguous, it matches {} runs: {}",
                    crate::printable(which),
                    found.len(),
                    names.join(", ")
                );
                Err(Failure::usage(message).hint("crabbox history"))
            }
        }
    }

    /// What the run wrote, or has written so far. `None` when that is nothing.
    pub fn read_log(&self, run_id: &str, stream: Stream) -> Result<Option<File>, Failure> {
        if !is_run_id(run_id) {
            return Err(Failure::usage(format!(
                "invalid run id `{}`",
                crate::printable(run_id)
            )));
        }
        let path = self.log(run_id, stream);
        match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let message = format!("cannot read the log `{}`", path.display());
                Err(Failure::new(Code::State, message).because(&error))
            }
        }
    }

    /// Removes the oldest runs until the bounds are kept. Cheap when they are.
    pub fn prune(&self, now: Timestamp) -> Result<(), Failure> {
        super::prune::prune(self, &self.bounds, now).map_err(|error| self.failure("prune", &error))
    }

    pub(super) fn root(&self) -> &Path {
        &self.runs
    }

    pub(super) fn record(&self, run_id: &str) -> PathBuf {
        self.runs.join(format!("{run_id}{RECORD}"))
    }

    pub(super) fn log(&self, run_id: &str, stream: Stream) -> PathBuf {
        self.runs.join(format!("{run_id}{}", log_suffix(stream)))
    }

    pub(super) fn ids(&self) -> Result<Vec<String>, Failure> {
        let names = self.names().map_err(|error| self.failure("read", &error))?;
        Ok(names
            .iter()
            .filter_map(|name| name.strip_suffix(RECORD))
            .filter(|id| is_run_id(id))
            .map(str::to_owned)
            .collect())
    }

    /// The names of the logs, with the ids of their runs.
    pub(super) fn logs(&self) -> io::Result<Vec<(String, String)>> {
        let streams = [Stream::Stdout, Stream::Stderr];
        let names = self.names()?.into_iter().filter_map(|name| {
            let id = streams
                .iter()
                .find_map(|stream| name.strip_suffix(log_suffix(*stream)))?;
            is_run_id(id).then(|| (id.to_owned(), name.clone()))
        });
        Ok(names.collect())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(&self.runs) {
            Ok(entries) => Ok(entries
                .flatten()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// `None` when it was removed in the meantime, or is only being made.
    pub(super) fn read(&self, run_id: &str) -> Result<Option<Record>, String> {
        let mut bytes = Vec::new();
        let read = File::open(self.record(run_id))
            .and_then(|file| file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
        match Record::read(&bytes)? {
            Some(record) if record.run_id != run_id => {
                Err(format!("contains the record of {:?}", record.run_id))
            }
            record => Ok(record),
        }
    }

    fn failure(&self, verb: &str, error: &io::Error) -> Failure {
        let message = format!("cannot {verb} run history `{}`", self.runs.display());
        Failure::new(Code::State, message).because(error)
    }
}

fn log_suffix(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => ".stdout.log",
        Stream::Stderr => ".stderr.log",
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

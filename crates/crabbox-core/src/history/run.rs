//! A run that is being recorded.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::prune::Bounds;
use super::record::{LogInfo, Record, Status};
use super::{Ledger, RunLog};
use crate::claims::Creator;
use crate::process::Stream;
use crate::redact::Redactor;
use crate::timing::{ErrorKind, Report, RunStatus};
use crate::{Code, Failure};

pub(super) const RECORD: &str = "run.json";
/// The same of a run that is over, and the last word about it. A file of its own: to replace one makes some file systems
/// wait for the disk.
pub(super) const END: &str = "end.json";

/// What is known when a run begins.
#[derive(Debug, Clone)]
pub struct Begin {
    pub run_id: String,
    pub provider: String,
    /// Empty for a lease that is yet to come; see [`ActiveRun::leased`].
    pub lease_id: String,
    pub slug: String,
    pub repo_root: String,
    /// As [`crate::command::display`] gives it.
    pub command: String,
    pub label: Option<String>,
    pub started_at: Timestamp,
}

/// What is known when it is over.
#[derive(Debug, Clone)]
pub struct Finish {
    pub ended_at: Timestamp,
    pub exit_code: Option<i32>,
    pub status: RunStatus,
    pub error_kind: Option<ErrorKind>,
    pub timing: Option<Report>,
}

/// Dropped without [`Self::finish`], the run shows as interrupted once this process is gone.
#[derive(Debug)]
pub struct ActiveRun {
    directory: PathBuf,
    record: Record,
    redactor: Redactor,
    stdout: RunLog,
    stderr: RunLog,
}

impl ActiveRun {
    /// The directory is made under another name and appears with everything in it.
    pub(super) fn begin(
        ledger: &Ledger,
        begin: Begin,
        redactor: Redactor,
        bounds: Bounds,
    ) -> Result<Self, Failure> {
        let process = Creator::current();
        let fresh = ledger.fresh(&process, &begin.run_id);
        let directory = ledger.directory(&begin.run_id);
        let mut record = Record {
            run_id: begin.run_id,
            provider: begin.provider,
            lease_id: begin.lease_id,
            slug: begin.slug,
            repo_root: begin.repo_root,
            command: begin.command,
            started_at: begin.started_at,
            ended_at: None,
            exit_code: None,
            run_status: Status::Running,
            error_kind: None,
            label: begin.label,
            stdout: LogInfo::default(),
            stderr: LogInfo::default(),
            timing: None,
            process,
        };
        record.clean(&redactor);
        let logs = make(&fresh, &record).and_then(|logs| {
            // The kernel refuses to replace a directory that is not empty: nothing is overwritten.
            fs::rename(&fresh, &directory).map(|()| logs)
        });
        let [stdout, stderr] = match logs {
            Ok(logs) => logs.map(|log| RunLog::new(log, &redactor, bounds.log)),
            Err(error) => {
                drop(fs::remove_dir_all(&fresh));
                return Err(cannot_write(&directory, &error));
            }
        };
        Ok(Self {
            directory,
            record,
            redactor,
            stdout,
            stderr,
        })
    }

    pub fn run_id(&self) -> &str {
        &self.record.run_id
    }

    /// Where a stream of the command is written down.
    pub fn log(&self, stream: Stream) -> RunLog {
        match stream {
            Stream::Stdout => self.stdout.clone(),
            Stream::Stderr => self.stderr.clone(),
        }
    }

    /// The lease that the run got. What is on record already is not written again.
    pub fn leased(&mut self, lease_id: &str, slug: &str) -> Result<(), Failure> {
        let known = self.record.slug == slug;
        self.record.lease_id = lease_id.to_owned();
        self.record.slug = slug.to_owned();
        if known { Ok(()) } else { self.write() }
    }

    /// The command's output must have ended: what comes later is not written down.
    pub fn finish(mut self, finish: Finish) -> Result<Record, Failure> {
        self.record.stdout = self.stdout.finish();
        self.record.stderr = self.stderr.finish();
        self.record.ended_at = Some(finish.ended_at);
        self.record.exit_code = finish.exit_code;
        self.record.run_status = finish.status.into();
        self.record.error_kind = finish.error_kind;
        self.record.timing = finish.timing;
        self.record.clean(&self.redactor);
        write_record(&self.directory, END, &self.record)
            .map_err(|error| cannot_write(&self.directory, &error))?;
        // Whoever reads it before it is gone finds the end first.
        drop(fs::remove_file(self.directory.join(RECORD)));
        Ok(self.record)
    }

    fn write(&self) -> Result<(), Failure> {
        write_record(&self.directory, RECORD, &self.record)
            .map_err(|error| cannot_write(&self.directory, &error))
    }
}

/// The record and the two empty logs.
fn make(directory: &Path, record: &Record) -> io::Result<[fs::File; 2]> {
    DirBuilder::new().mode(0o700).create(directory)?;
    let create = |name: &str| {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(directory.join(name))
    };
    // Nobody sees the directory yet.
    create(RECORD)?.write_all(&encode(record)?)?;
    Ok([
        create(&log_name(Stream::Stdout))?,
        create(&log_name(Stream::Stderr))?,
    ])
}

/// A reader sees the old record or the new one. It need not survive a power cut: then it is a problem in a list.
fn write_record(directory: &Path, name: &str, record: &Record) -> io::Result<()> {
    let bytes = encode(record)?;
    let mut file = tempfile::Builder::new()
        .prefix(".run-")
        .tempfile_in(directory)?;
    file.write_all(&bytes)?;
    file.persist(directory.join(name))?;
    Ok(())
}

fn encode(record: &Record) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(record)?;
    bytes.push(b'\n');
    Ok(bytes)
}

pub(super) fn log_name(stream: Stream) -> String {
    format!("{}.log", stream.as_str())
}

fn cannot_write(directory: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot write the run's record in `{}`", directory.display());
    Failure::new(Code::State, message).because(error)
}

//! A run that is being recorded.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use jiff::Timestamp;

use super::prune::Bounds;
use super::record::{LogInfo, Record, Status};
use super::{RunLog, RunStore};
use crate::claims::Creator;
use crate::process::Stream;
use crate::redact::Redactor;
use crate::timing::{ErrorKind, Report, RunStatus};
use crate::{Code, Failure};

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
    /// Whether it has a terminal: then what it writes is not heard.
    pub terminal: bool,
    /// The terminal is heard: both streams are in the log of stdout.
    pub merged: bool,
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
    file: File,
    record: Record,
    redactor: Redactor,
    stdout: RunLog,
    stderr: RunLog,
}

impl ActiveRun {
    pub(super) fn begin(
        store: &RunStore,
        begin: Begin,
        redactor: Redactor,
        bounds: Bounds,
    ) -> Result<Self, Failure> {
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
            terminal: begin.terminal,
            merged: begin.merged,
            stdout: LogInfo::default(),
            stderr: LogInfo::default(),
            timing: None,
            process: Creator::current(),
        };
        record.clean(&redactor);
        let path = store.record(&record.run_id);
        // An id that is taken is not taken over.
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| {
                let message = format!("cannot create run record `{}`", path.display());
                Failure::new(Code::State, message).because(&error)
            })?;
        let log = |stream| {
            let path = store.log(&record.run_id, stream);
            RunLog::new(path, &redactor, bounds.log)
        };
        let run = Self {
            file,
            stdout: log(Stream::Stdout),
            stderr: log(Stream::Stderr),
            record,
            redactor,
        };
        run.write()?;
        Ok(run)
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
        self.write()?;
        Ok(self.record)
    }

    /// A line more, which replaces those before it. It need not survive a power cut.
    fn write(&self) -> Result<(), Failure> {
        let write = || -> io::Result<()> {
            let mut line = serde_json::to_vec(&self.record)?;
            line.push(b'\n');
            (&self.file).write_all(&line)
        };
        write().map_err(|error| {
            let message = format!("cannot write the run record of {}", self.record.run_id);
            Failure::new(Code::State, message).because(&error)
        })
    }
}

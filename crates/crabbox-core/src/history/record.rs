//! What is written down about one run.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::claims::{Creator, Liveness};
use crate::redact::Redactor;
use crate::timing::{ErrorKind, Report, RunStatus};

/// A line of a run's file, of which the last one counts. Keys that a newer version adds are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub run_id: String,
    pub provider: String,
    /// Empty until there is a lease.
    pub lease_id: String,
    pub slug: String,
    pub repo_root: String,
    /// For people: quoted, without known secrets.
    pub command: String,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    pub run_status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the command had a terminal: what it wrote is not written down then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// What it wrote to the terminal is in the log of stdout all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
    pub stdout: LogInfo,
    pub stderr: LogInfo,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Report>,
    /// Who writes this.
    pub process: Creator,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    Running,
    Succeeded,
    Failed,
    TimedOut,
    Canceled,
    /// Its process died before it could say how the run ended. Never written, only concluded.
    Interrupted,
}

/// One of the logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogInfo {
    /// What the command wrote.
    pub bytes: u64,
    /// What is kept of it.
    pub stored: u64,
    /// Whether the middle was left out, or writing failed.
    pub truncated: bool,
}

impl Record {
    /// The last whole line: a process may have died while it wrote another. `None` before there is any.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            return match bytes {
                [] => Ok(None),
                [..] => Err("incomplete record".to_owned()),
            };
        };
        let whole = bytes.get(..end).unwrap_or_default();
        let last = whole.rsplit(|byte| *byte == b'\n').next();
        serde_json::from_slice(last.unwrap_or_default()).map_err(|error| error.to_string())
    }

    /// The same, seen from here and now.
    pub(super) fn with_liveness(mut self) -> Self {
        if self.run_status == Status::Running && self.process.liveness() == Liveness::Dead {
            self.run_status = Status::Interrupted;
        }
        self
    }

    /// Takes known and secret-shaped values out of everything that the user wrote.
    pub(super) fn clean(&mut self, redactor: &Redactor) {
        let clean = |text: &mut String| *text = redactor.clean(text).into_owned();
        clean(&mut self.command);
        self.label.as_mut().map(clean);
        if let Some(timing) = &mut self.timing {
            timing.label.as_mut().map(clean);
            timing.stop_command.as_mut().map(clean);
        }
    }
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed-out",
            Self::Canceled => "canceled",
            Self::Interrupted => "interrupted",
        }
    }
}

impl From<RunStatus> for Status {
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Succeeded => Self::Succeeded,
            RunStatus::Failed => Self::Failed,
            RunStatus::TimedOut => Self::TimedOut,
            RunStatus::Canceled => Self::Canceled,
        }
    }
}

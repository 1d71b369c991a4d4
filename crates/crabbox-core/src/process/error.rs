//! What can go wrong with a child, before its exit code matters.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Reason, Stream};
use crate::timing::format_ms;
use crate::{Code, Failure};

/// `what` is the label of the tool: the program and its verb.
#[derive(Debug)]
pub enum ProcessError {
    /// It never ran: nothing is known about anything that it would have done.
    Start {
        program: PathBuf,
        kind: StartKind,
        source: io::Error,
    },
    TimedOut {
        what: String,
        after: Duration,
    },
    Canceled {
        what: String,
        reason: Reason,
    },
    TooMuchOutput {
        what: String,
        stream: Stream,
        limit: usize,
    },
    Io {
        what: String,
        source: io::Error,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartKind {
    /// No such program.
    Missing,
    /// There is a file, and it cannot be executed.
    NotExecutable,
    /// Anything else, such as a working directory that is gone.
    Other,
}

/// Whose program it is decides the failure's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Provider,
    /// A tool of this machine.
    Local,
}

impl ProcessError {
    /// What a failed spawn means. The error number says it, and the file system where that is ambiguous: also a script
    /// whose interpreter is missing and a missing working directory are reported as `ENOENT`.
    pub(super) fn start(program: &Path, cwd: Option<&Path>, error: io::Error) -> Self {
        let start = |kind, source| Self::Start {
            program: program.to_path_buf(),
            kind,
            source,
        };
        if let Some(cwd) = cwd.filter(|cwd| !cwd.is_dir()) {
            let message = format!("no such directory `{}`", cwd.display());
            return start(
                StartKind::Other,
                io::Error::new(io::ErrorKind::NotFound, message),
            );
        }
        match error.kind() {
            io::ErrorKind::NotFound if has_directory(program) && program.exists() => {
                let message = "the interpreter named in its first line is missing";
                start(
                    StartKind::NotExecutable,
                    io::Error::new(io::ErrorKind::NotFound, message),
                )
            }
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                start(StartKind::Missing, error)
            }
            io::ErrorKind::PermissionDenied => start(StartKind::NotExecutable, error),
            _ if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
                start(StartKind::NotExecutable, error)
            }
            _ => start(StartKind::Other, error),
        }
    }

    pub fn into_failure(self, whose: Whose) -> Failure {
        let by_owner = |provider, local| match whose {
            Whose::Provider => provider,
            Whose::Local => local,
        };
        let code = match &self {
            Self::Start { .. } => by_owner(Code::ProviderMissing, Code::Local),
            Self::TimedOut { .. }
            | Self::Canceled {
                reason: Reason::Late,
                ..
            } => Code::Timeout,
            Self::Canceled { .. } => Code::Canceled,
            Self::TooMuchOutput { .. } => by_owner(Code::ProviderMalformed, Code::Local),
            Self::Io { .. } => Code::Local,
        };
        let failure = Failure {
            exit: match &self {
                Self::Canceled { reason, .. } => reason.exit_code(),
                _ => None,
            },
            ..Failure::new(code, self.to_string())
        };
        match self.source() {
            Some(source) => failure.because(source),
            None => failure,
        }
    }
}

fn has_directory(program: &Path) -> bool {
    program
        .parent()
        .is_some_and(|parent| !parent.as_os_str().is_empty())
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { program, kind, .. } => {
                let program = program.display();
                match kind {
                    StartKind::Missing => write!(f, "cannot start `{program}`: no such program"),
                    StartKind::NotExecutable => {
                        write!(f, "cannot start `{program}`: not executable")
                    }
                    StartKind::Other => write!(f, "cannot start `{program}`"),
                }
            }
            Self::TimedOut { what, after } => {
                write!(f, "`{what}` did not end within {}", format_ms(*after))
            }
            Self::Canceled { what, reason } => write!(f, "`{what}` was stopped: {reason}"),
            Self::TooMuchOutput {
                what,
                stream,
                limit,
            } => write!(
                f,
                "`{what}` wrote more than {limit} bytes to {}",
                stream.as_str()
            ),
            Self::Io { what, .. } => write!(f, "cannot follow `{what}`"),
        }
    }
}

impl Error for ProcessError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // "No such program" says all of it; the system's own words would say it again.
            Self::Start {
                kind: StartKind::Missing,
                ..
            } => None,
            Self::Start { source, .. } | Self::Io { source, .. } => Some(source),
            Self::TimedOut { .. } | Self::Canceled { .. } | Self::TooMuchOutput { .. } => None,
        }
    }
}

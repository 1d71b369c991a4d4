//! Errors of the set-up: which step failed, and why.

use std::fmt;
use std::io;

use sbx_proto::plan::Outcome;

#[derive(Debug)]
pub(crate) struct SetupError {
    step: String,
    errno: Option<i32>,
    message: String,
}

impl SetupError {
    pub(crate) fn new(step: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            step: step.into(),
            errno: None,
            message: message.into(),
        }
    }

    /// Whether files that a program inside left behind can be the cause (EEXIST, ELOOP, EROFS, ...): not an error of the plan,
    /// and not of the machine (no space, broken disk).
    pub(crate) fn is_about_existing_files(&self) -> bool {
        let of_the_machine = [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::ENOMEM];
        self.errno
            .is_some_and(|errno| !of_the_machine.contains(&errno))
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        Outcome::Failed {
            step: self.step,
            errno: self.errno,
            message: self.message,
        }
    }

    pub(crate) fn from_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Failed {
                step,
                errno,
                message,
            } => Self {
                step,
                errno,
                message,
            },
            Outcome::Booted { .. }
            | Outcome::Done
            | Outcome::Measured { .. }
            | Outcome::Attached
            | Outcome::NotNow { .. } => Self::new("talk to the new process", "unexpected message"),
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to {}: {}", self.step, self.message)
    }
}

pub(crate) type SetupResult<T> = Result<T, SetupError>;

/// Adds the step that failed to an I/O error.
pub(crate) trait ErrorContext<T> {
    fn doing(self, step: impl FnOnce() -> String) -> SetupResult<T>;
}

impl<T, E: Into<io::Error>> ErrorContext<T> for Result<T, E> {
    fn doing(self, step: impl FnOnce() -> String) -> SetupResult<T> {
        self.map_err(|error| {
            let error = error.into();
            SetupError {
                step: step(),
                errno: error.raw_os_error(),
                message: error.to_string(),
            }
        })
    }
}

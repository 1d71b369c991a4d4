//! What went wrong, for people and for programs: a stable code, the whole chain of causes, and what to do next.

use std::error::Error;
use std::fmt;

use serde::Serialize;

/// Stable names of failures. They alone decide the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The command line is wrong.
    Usage,
    /// A setting is wrong.
    Config,
    /// A setting of the repository needs the user's trust.
    Untrusted,
    /// The provider does not offer this.
    Unsupported,
    UnknownProvider,
    /// A local file of ours is damaged, or cannot be read or written.
    State,
    /// Another process changed the claim in the meantime.
    ClaimChanged,
    /// The lease belongs to another repository.
    OtherRepository,
    /// No such lease, or its sandbox is proved to be gone.
    NotFound,
    /// The sandbox is there and not ours.
    NotOwned,
    /// The lease's time is over.
    Expired,
    Timeout,
    /// The provider failed.
    Provider,
    /// The provider's access rules forbid it.
    Denied,
    /// The provider's program could not be started: nothing is known about any sandbox.
    ProviderMissing,
    /// The provider answered with something that is not understood.
    ProviderMalformed,
    /// What is to be sent is too much, or cannot be listed or packed.
    Sync,
    /// Something on this machine failed.
    Local,
    /// `doctor` found problems.
    Unhealthy,
    Canceled,
    /// The command itself ended with a code of its own, which is the exit code.
    CommandExit,
}

impl Code {
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage
            | Self::Config
            | Self::Untrusted
            | Self::Unsupported
            | Self::UnknownProvider
            | Self::State
            | Self::ClaimChanged
            | Self::OtherRepository
            | Self::ProviderMalformed => 2,
            Self::NotFound | Self::NotOwned | Self::Expired => 4,
            Self::Timeout | Self::Denied => 5,
            Self::Sync => 6,
            Self::Canceled => 130,
            Self::Provider
            | Self::ProviderMissing
            | Self::Local
            | Self::Unhealthy
            | Self::CommandExit => 1,
        }
    }
}

/// A failure on its way to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    /// Why, outermost first. Never repeats the message.
    pub causes: Vec<String>,
    /// What went wrong besides, such as a cleanup that failed as well.
    pub also: Vec<String>,
    /// The next commands to try.
    pub hints: Vec<String>,
    /// The exit code, where it is not that of [`Self::code`]: a command's own, or that of a signal.
    pub exit: Option<u8>,
    /// The text that it is about, on lines of its own. Never the last thing that is shown: that is the cause.
    pub snippet: Option<Box<str>>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
            also: Vec::new(),
            hints: Vec::new(),
            exit: None,
            snippet: None,
        }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Adds an error and everything below it.
    #[must_use]
    pub fn because(mut self, error: &dyn Error) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            self.causes.push(error.to_string());
            next = error.source();
        }
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    #[must_use]
    pub fn exits(mut self, code: u8) -> Self {
        self.exit = Some(code);
        self
    }

    pub fn exit_code(&self) -> u8 {
        self.exit.unwrap_or_else(|| self.code.exit_code())
    }

    /// Another failure on top, which does not change what this one is.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.also.push(other.to_string());
        for hint in &other.hints {
            if !self.hints.contains(hint) {
                self.hints.push(hint.clone());
            }
        }
        self
    }
}

/// The message with its causes, as one sentence.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for cause in &self.causes {
            write!(f, ": {cause}")?;
        }
        for also in &self.also {
            write!(f, "; {also}")?;
        }
        Ok(())
    }
}

impl Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_alone_decides_the_exit_code() {
        for (codes, exit) in [
            (
                &[
                    Code::Provider,
                    Code::ProviderMissing,
                    Code::Local,
                    Code::Unhealthy,
                    Code::CommandExit,
                ][..],
                1,
            ),
            (
                &[
                    Code::Usage,
                    Code::Config,
                    Code::Untrusted,
                    Code::Unsupported,
                    Code::UnknownProvider,
                    Code::State,
                    Code::ClaimChanged,
                    Code::OtherRepository,
                    Code::ProviderMalformed,
                ],
                2,
            ),
            (&[Code::NotFound, Code::NotOwned, Code::Expired], 4),
            (&[Code::Timeout], 5),
            (&[Code::Sync], 6),
            (&[Code::Canceled], 130),
        ] {
            for code in codes {
                assert_eq!(code.exit_code(), exit, "{code:?}");
            }
        }
    }
}

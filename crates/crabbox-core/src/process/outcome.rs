//! How a child ended, and what it said.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::Stream;
use crate::redact::Redactor;
use crate::{Code, Failure};

/// The most that an error quotes of a child's output.
const QUOTED: usize = 4096;

/// How a child ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signaled(i32),
}

/// A child's whole output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    pub end: End,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub(super) what: String,
}

/// The end of a child whose output was passed on.
#[derive(Debug)]
pub struct Streamed {
    pub end: End,
    /// The writers that failed. The child's side was closed then.
    pub broken: Vec<(Stream, io::Error)>,
}

impl Streamed {
    pub fn lost(&self) -> Option<Failure> {
        lost(&self.broken)
    }
}

/// Output that is lost because it could not be written, to a full disk for example. A reader that went away wants no more.
pub(super) fn lost(broken: &[(Stream, io::Error)]) -> Option<Failure> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let (stream, error) = broken.iter().find(|(_, error)| !gone(error))?;
    let name = stream.as_str();
    let message = format!("cannot write the command's {name}; the rest of it is lost");
    Some(Failure::new(Code::Local, message).because(error))
}

impl End {
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }

    /// As a shell has it: 128 and the signal's number.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
        }
    }

    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signaled(signal),
            // A stopped child is not waited for: there is no third way to end.
            (None, None) => Self::Exited(1),
        }
    }
}

impl Captured {
    /// The failure of a provider's program that did not succeed: its label, how it ended, and what it said.
    pub fn failure(&self, redactor: &Redactor) -> Failure {
        let what = &self.what;
        let message = match self.end {
            End::Exited(code) => format!("`{what}` exited {code}"),
            End::Signaled(signal) => format!("`{what}` was killed by signal {signal}"),
        };
        let mut failure = Failure::new(Code::Provider, message);
        failure.causes.extend(self.said(redactor));
        failure
    }

    /// What it said about its failure, for people and for rules that look for words: stderr, or stdout when that is empty.
    /// Never the command line.
    pub fn said(&self, redactor: &Redactor) -> Option<String> {
        [&self.stderr, &self.stdout]
            .into_iter()
            .map(|bytes| redactor.excerpt(bytes, QUOTED))
            .find(|text| !text.is_empty())
    }
}

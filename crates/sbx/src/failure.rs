//! The error type of the command line: a message, a machine-readable kind and a hint with the next command to run.

use std::io;

use sbx_api::{ErrorBody, ErrorCode};
use sbx_engine::EngineError;
use sbx_engine::error::chain;
use sbx_engine::policy::PolicyBookError;
use sbx_engine::sandbox::name::NameError;
use sbx_engine::sandbox::ports::PortSpecError;
use sbx_engine::state::StateError;

/// Determines the exit code and the `code` of the JSON form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Invalid command line.
    Usage,
    /// Any other failure.
    Failed,
    /// No such sandbox.
    NotFound,
    /// The name is in use, or a session is open.
    Conflict,
    /// Not supported by this version.
    NotYet,
    /// The request is invalid or not allowed.
    BadRequest,
    /// Client and daemon, or client and init, have different versions.
    VersionMismatch,
    /// The engine or the sandbox failed.
    Engine,
    /// No daemon is running.
    NoDaemon,
    /// A daemon is running but does not answer or cannot be reached.
    Unreachable,
    /// The program to run exists but cannot be executed.
    NotExecutable,
    /// The program to run does not exist.
    CommandNotFound,
    /// Everything has been printed already; only the exit code is left.
    Quiet(u8),
}

impl Kind {
    /// The stable `code` of the JSON form.
    fn code(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Failed | Self::Quiet(_) => "failed",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::NotYet => "not_yet",
            Self::BadRequest => "bad_request",
            Self::VersionMismatch => "version_mismatch",
            Self::Engine => "engine",
            Self::NoDaemon => "no_daemon",
            Self::Unreachable => "unreachable",
            Self::NotExecutable => "not_executable",
            Self::CommandNotFound => "command_not_found",
        }
    }

    /// Exit code of commands that do not run a program in a sandbox.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::Quiet(code) => code,
            Self::Failed
            | Self::NotFound
            | Self::Conflict
            | Self::NotYet
            | Self::BadRequest
            | Self::VersionMismatch
            | Self::Engine
            | Self::NoDaemon
            | Self::Unreachable
            | Self::NotExecutable
            | Self::CommandNotFound => 1,
        }
    }

    /// Exit code of `exec` and `run`: as with docker, codes below 125 are the program's own.
    pub(crate) fn session_exit_code(self) -> u8 {
        match self {
            Self::NotExecutable => 126,
            Self::CommandNotFound => 127,
            Self::Quiet(code) => code,
            Self::Usage
            | Self::Failed
            | Self::NotFound
            | Self::Conflict
            | Self::NotYet
            | Self::BadRequest
            | Self::VersionMismatch
            | Self::Engine
            | Self::NoDaemon
            | Self::Unreachable => 125,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// `what` exists in Docker's `sbx` but not in this version.
    pub(crate) fn not_yet(what: &str) -> Self {
        Self::new(
            Kind::NotYet,
            format!("`{what}` is not supported by this version of sbx"),
        )
    }

    pub(crate) fn quiet(code: u8) -> Self {
        Self::new(Kind::Quiet(code), "")
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The form for programs.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "error": {"code": self.kind.code(), "message": self.message, "hint": self.hint}
        })
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        let kind = match body.code {
            ErrorCode::BadRequest | ErrorCode::TooLarge => Kind::BadRequest,
            ErrorCode::NotFound => Kind::NotFound,
            ErrorCode::Conflict => Kind::Conflict,
            ErrorCode::VersionMismatch => Kind::VersionMismatch,
            ErrorCode::NotYet => Kind::NotYet,
            ErrorCode::Engine => Kind::Engine,
        };
        Self {
            kind,
            message: body.message,
            hint: body.hint,
        }
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        let failure = Self::failed(chain(&error));
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::from(ErrorBody {
            message: chain(&error),
            code: error.code(),
            hint: error.hint(),
        })
    }
}

impl From<PolicyBookError> for Failure {
    fn from(error: PolicyBookError) -> Self {
        Self::from(ErrorBody {
            message: chain(&error),
            code: error.code(),
            hint: error.hint(),
        })
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        Self::new(Kind::BadRequest, error.to_string()).hint(error.hint())
    }
}

impl From<PortSpecError> for Failure {
    fn from(error: PortSpecError) -> Self {
        Self::new(Kind::BadRequest, error.to_string()).hint(PortSpecError::hint())
    }
}

/// Wraps the error of a system call that a session depends on.
pub(crate) fn engine(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(Kind::Engine, format!("{what}: {error}"))
}

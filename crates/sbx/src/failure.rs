//! The one error type of the command line: what went wrong, for people and for programs, and what to type next.

use std::io;

use sbx_api::{ErrorBody, ErrorCode};
use sbx_engine::EngineError;
use sbx_engine::error::chain;
use sbx_engine::policy::PolicyBookError;
use sbx_engine::sandbox::name::NameError;
use sbx_engine::state::StateError;

/// Decides the exit code, and the word that programs see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Arguments that make no sense together.
    Usage,
    /// Anything that did not work and has no kind of its own.
    Failed,
    /// No such sandbox.
    NotFound,
    /// The name is taken, a session is open.
    Conflict,
    /// Comes with a later version.
    NotYet,
    /// The request is not understood or not allowed.
    BadRequest,
    /// Client and daemon, or client and sandbox, are of different versions.
    VersionMismatch,
    /// The engine or the sandbox failed.
    Engine,
    /// No daemon runs.
    NoDaemon,
    /// A daemon runs, and says nothing or cannot be asked.
    Unreachable,
    /// The program to run exists but cannot be executed.
    NotExecutable,
    /// The program to run does not exist.
    CommandNotFound,
    /// Everything has been said already; only the exit code is left.
    Quiet(u8),
}

impl Kind {
    /// The stable word for programs.
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

    /// Exit code of commands that run nothing themselves.
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

    /// Exit code of `exec` and `run`, where everything below 125 belongs to the command: docker's codes.
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

    /// `what` is known, but not part of this version.
    pub(crate) fn not_yet(what: &str) -> Self {
        Self::new(
            Kind::NotYet,
            format!("`{what}` comes with a later version of sbx"),
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

    /// The line for programs.
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

/// An operation of the kernel that a session cannot do without.
pub(crate) fn engine(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(Kind::Engine, format!("{what}: {error}"))
}

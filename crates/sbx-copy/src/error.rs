//! Why a copy could not be made.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum CopyError {
    #[error("cannot {what} `{name}`: {source}")]
    File {
        what: &'static str,
        name: String,
        source: io::Error,
    },
    #[error("the stream ended before its end")]
    Truncated,
    #[error("invalid tar stream: {0}")]
    Invalid(String),
    #[error("refused `{name}`: {reason}")]
    Refused { name: String, reason: &'static str },
    #[error("`{0}` changed while it was copied")]
    Changed(String),
    #[error("cannot read or write the stream: {0}")]
    Stream(#[source] io::Error),
}

impl CopyError {
    pub(crate) fn file(what: &'static str, name: &[u8], source: impl Into<io::Error>) -> Self {
        Self::File {
            what,
            name: shown(name),
            source: source.into(),
        }
    }

    /// What was named by the user cannot be opened.
    pub fn open(name: &[u8], source: impl Into<io::Error>) -> Self {
        Self::file("open", name, source)
    }

    pub(crate) fn refused(name: &[u8], reason: &'static str) -> Self {
        Self::Refused {
            name: shown(name),
            reason,
        }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }
}

/// A name for people. Whether its characters suit a terminal is up to who prints it.
pub(crate) fn shown(name: &[u8]) -> String {
    OsStr::from_bytes(name).to_string_lossy().into_owned()
}

//! What can be wrong with one claim file. It concerns that file and no other.

use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::lease_id::{LeaseId, hex};
use crate::{Code, Failure};

pub(super) const CLAIM_SUFFIX: &str = ".json";
const MAX_MESSAGE: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCode {
    InvalidFilename,
    InvalidJson,
    ClaimTooLarge,
    EmptyLeaseId,
    LeaseIdMismatch,
    ReadError,
    NonRegularFile,
    InvalidClaim,
    /// There are more problems than are shown.
    ProblemsTruncated,
}

/// A damaged file, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file's name, or `sha256:<16 hex>` of a name that is not safe to print.
    pub file: String,
    pub code: ProblemCode,
    pub message: String,
}

/// What is wrong, before it is known how the file is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: ProblemCode,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(code: ProblemCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        // What a parser says may quote the file, of which a claim is not worth more than a line.
        if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(end);
            message.push_str("...");
        }
        Self { code, message }
    }

    pub(super) fn of_lease(self, lease: &LeaseId) -> Problem {
        Problem {
            file: format!("{lease}{CLAIM_SUFFIX}"),
            code: self.code,
            message: self.message,
        }
    }
}

impl Problem {
    pub(super) fn invalid_name(name: &[u8]) -> Self {
        let mut hash = hex(&Sha256::digest(name));
        hash.truncate(16);
        Self {
            file: format!("sha256:{hash}"),
            code: ProblemCode::InvalidFilename,
            message: "file name is not a lease id".to_owned(),
        }
    }

    pub(super) fn truncated(hidden: usize) -> Self {
        Self {
            file: String::new(),
            code: ProblemCode::ProblemsTruncated,
            message: format!("{hidden} more problems not shown"),
        }
    }

    /// For a caller that needs just this claim.
    pub(super) fn into_failure(self) -> Failure {
        let message = format!("claim file `{}`: {}", self.file, self.message);
        Failure::new(Code::State, message).hint("crabbox claims list")
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidFilename => "invalid_filename",
            Self::InvalidJson => "invalid_json",
            Self::ClaimTooLarge => "claim_too_large",
            Self::EmptyLeaseId => "empty_lease_id",
            Self::LeaseIdMismatch => "lease_id_mismatch",
            Self::ReadError => "read_error",
            Self::NonRegularFile => "non_regular_file",
            Self::InvalidClaim => "invalid_claim",
            Self::ProblemsTruncated => "problems_truncated",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ProblemCode::*;

    /// The original's words, for programs and for people.
    #[test]
    fn codes_are_spelled_alike_everywhere() {
        for (code, word) in [
            (InvalidFilename, "invalid_filename"),
            (InvalidJson, "invalid_json"),
            (ClaimTooLarge, "claim_too_large"),
            (EmptyLeaseId, "empty_lease_id"),
            (LeaseIdMismatch, "lease_id_mismatch"),
            (ReadError, "read_error"),
            (NonRegularFile, "non_regular_file"),
            (InvalidClaim, "invalid_claim"),
            (ProblemsTruncated, "problems_truncated"),
        ] {
            assert_eq!(code.to_string(), word);
            assert_eq!(serde_json::to_value(code).unwrap(), word);
        }
    }
}

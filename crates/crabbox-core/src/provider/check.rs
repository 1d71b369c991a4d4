//! What `doctor` reports.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Class;
use crate::Failure;

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub status: Health,
    pub check: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

/// The detail of a check that tells people what to do about it.
pub const ADVICE: &str = "advice";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Ok,
    Warn,
    Skip,
    Missing,
    Failed,
}

impl Check {
    pub fn new(status: Health, check: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            check: check.to_owned(),
            provider: None,
            message: message.into(),
            details: BTreeMap::new(),
        }
    }

    /// With what to do about it, if that is known.
    pub fn of_failure(status: Health, check: &str, failure: &Failure) -> Self {
        let check = Self::new(status, check, failure.to_string());
        match failure.hints.is_empty() {
            true => check,
            false => check.detail(ADVICE, failure.hints.join("; ")),
        }
    }

    /// With the words for programs.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        self.detail("class", class.as_str())
            .detail("hint", class.hint())
    }

    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<String>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }
}

impl Health {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Skip => "skip",
            Self::Missing => "missing",
            Self::Failed => "failed",
        }
    }

    pub fn is_bad(self) -> bool {
        matches!(self, Self::Missing | Self::Failed)
    }
}

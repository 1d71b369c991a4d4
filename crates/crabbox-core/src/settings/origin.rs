//! Where a value came from.

use std::path::PathBuf;

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    User { path: PathBuf, line: u64 },
    Repository { path: PathBuf, line: u64 },
    Environment { name: &'static str },
    Flag { name: &'static str },
}

impl Origin {
    /// The stable name of the kind of source.
    pub fn source(&self) -> &'static str {
        match self {
            Self::Default => "compiled_default",
            Self::User { .. } => "user_config",
            Self::Repository { .. } => "repo_config",
            Self::Environment { .. } => "environment",
            Self::Flag { .. } => "flag",
        }
    }

    /// Whether the value was set, and is not the default.
    pub fn is_choice(&self) -> bool {
        *self != Self::Default
    }

    pub(super) fn shown(&self) -> ShownOrigin {
        let mut shown = ShownOrigin {
            source: self.source(),
            file: None,
            line: None,
            name: None,
            also: Vec::new(),
        };
        match self {
            Self::Default => {}
            Self::User { path, line } | Self::Repository { path, line } => {
                shown.file = Some(path.display().to_string());
                shown.line = Some(*line);
            }
            Self::Environment { name } => shown.name = Some((*name).to_owned()),
            Self::Flag { name } => shown.name = Some(format!("--{name}")),
        }
        shown
    }
}

/// What `config show` prints of it.
#[derive(Debug, Serialize)]
pub(super) struct ShownOrigin {
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The weaker ones of a list that comes from several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) also: Vec<Self>,
}

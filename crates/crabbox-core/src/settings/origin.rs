//! Where a value came from.

use std::path::PathBuf;

use serde_json::{Map, Value as Json};

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

    pub(super) fn to_json(&self) -> Json {
        let mut object = Map::new();
        object.insert("source".to_owned(), self.source().into());
        match self {
            Self::Default => {}
            Self::User { path, line } | Self::Repository { path, line } => {
                object.insert("file".to_owned(), path.display().to_string().into());
                object.insert("line".to_owned(), (*line).into());
            }
            Self::Environment { name } => {
                object.insert("name".to_owned(), (*name).into());
            }
            Self::Flag { name } => {
                object.insert("name".to_owned(), format!("--{name}").into());
            }
        }
        Json::Object(object)
    }
}

//! Why a template cannot be used.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("failed to {action} `{path}`")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to build the host template in `{path}`: {message}")]
    Build { path: PathBuf, message: String },
    #[error("failed to remove the old template `{path}`: {message}")]
    Remove { path: PathBuf, message: String },
    #[error("invalid template specification")]
    Spec(#[source] serde_json::Error),
    #[error("cannot parse `{path}` of the host template")]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("the host has no `{path}` to run programs from")]
    NoSystem { path: PathBuf },
}

impl TemplateError {
    pub fn hint(&self) -> Option<String> {
        match self {
            // Sandboxes that run use the files of the template, which are removed before it is built anew.
            Self::Damaged { path, .. } => {
                let marker = path.with_file_name(super::ensure::COMPLETE);
                Some(format!(
                    "sbx daemon stop, which stops all sandboxes; then remove `{}`: the next create builds the template anew",
                    marker.display()
                ))
            }
            Self::Io { .. }
            | Self::Build { .. }
            | Self::Remove { .. }
            | Self::Spec(_)
            | Self::NoSystem { .. } => None,
        }
    }
}

/// Gives an I/O result the path it is about.
pub(super) trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, TemplateError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, TemplateError> {
        self.map_err(|source| TemplateError::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}

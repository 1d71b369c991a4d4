//! Errors about a value that only a provider or the program can check, after its file was read.

use super::origin::Origin;
use super::resolved::Settings;
use super::source::{Position, Show, Source, printable};
use crate::failure::Failure;

/// The place of a value in its file, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValueLocation {
    position: String,
    snippet: Option<Box<str>>,
}

impl ValueLocation {
    pub(super) fn new(source: &Source<'_>, at: Position) -> Self {
        Self {
            position: source.place(at),
            snippet: source.snippet(at, Show::Line).map(Into::into),
        }
    }
}

impl Settings {
    /// Says of a failure which file, variable or flag the value comes from.
    #[must_use]
    pub fn with_location<'s>(
        &self,
        section: impl Into<Option<&'s str>>,
        key: &str,
        mut failure: Failure,
    ) -> Failure {
        let Some(entry) = self.entry(section, key) else {
            return failure;
        };
        match (&entry.origin, &entry.location) {
            (Origin::Default, _) => {}
            (Origin::Environment { name }, _) => {
                failure.message = format!("{name}: {}", failure.message);
            }
            // The words are those that scripts know; the flag itself is the line that they are about.
            (Origin::Flag { name }, _) => {
                let value = entry.value.to_text();
                failure.snippet = Some(format!("--{name} {}", printable(&value)).into());
            }
            (Origin::User { .. } | Origin::Repository { .. }, Some(location)) => {
                failure.message = format!("{}: {}", location.position, failure.message);
                failure.snippet.clone_from(&location.snippet);
            }
            (Origin::User { path, line } | Origin::Repository { path, line }, None) => {
                failure.message = format!("config {}:{line}: {}", path.display(), failure.message);
            }
        }
        failure
    }
}

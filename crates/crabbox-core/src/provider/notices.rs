//! What a provider says while it works, and what it knows afterwards.

use std::fmt;
use std::sync::Arc;

type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Where a provider's lines for people go as they come. By itself it says nothing.
#[derive(Clone, Default)]
pub struct Notices {
    tell: Option<Tell>,
    watched: bool,
}

impl Notices {
    /// `watched`: a person is at a terminal, and wants to know why something takes long.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static, watched: bool) -> Self {
        Self {
            tell: Some(Arc::new(tell)),
            watched,
        }
    }

    pub fn say(&self, line: &str) {
        if let Some(tell) = &self.tell {
            tell(line);
        }
    }

    pub fn is_watched(&self) -> bool {
        self.watched
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices")
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

/// What the network policy of a sandbox denied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Denials {
    /// `host:port`, each once.
    pub targets: Vec<String>,
    /// The command that allows them from now on, where there is one.
    pub allow: Option<String>,
}

//! Build caches: what tools in the sandboxes of one repository cached, kept for the next one that asks for it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The build cache of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(serialize = "camelCase"))]
pub struct BuildCache {
    /// The repository's canonical path.
    pub workspace: String,
    /// After the last use; unknown until then.
    pub bytes: Option<u64>,
    pub used_at: Timestamp,
    /// The sandbox that writes to it now.
    pub sandbox: Option<String>,
}

/// What became of the build caches that were to be removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedCaches {
    pub cleared: Vec<BuildCache>,
    /// Left alone: a sandbox writes to them.
    pub busy: Vec<BuildCache>,
}

//! What a repository sends to a sandbox: manifest, excludes, guardrails, archive.
//!
//! Three steps, put together by [`Prepared`]: [`list`] asks git once and looks at each file, [`guard::check`] decides
//! whether that is too much, [`Archive`] packs it; [`delta`] finds what of it a sandbox has already. Nothing here follows a symlink, and nothing that is sent lies outside
//! the root.

mod archive;
pub mod delta;
mod exclude;
mod glob;
pub mod guard;
mod levels;
mod listing;
mod manifest;
mod options;
mod path;
pub mod plan;
mod prepare;
mod source;
mod status;
mod tree;
mod walk;

#[cfg(test)]
mod tests;

pub use archive::{Archive, ArchiveStats, Compression};
pub use delta::{Delta, RemoteTree};
pub use exclude::{Decision, Rules, built_in};
pub use guard::{Allow, Limits, Verdict, human_bytes};
pub use listing::{Listed, ListingError, Tag, parse_listing};
pub use manifest::{Entry, Kind, Manifest, Protected, Skipped, Why};
pub use options::Options;
pub use path::{RelPath, UnsafePath};
pub use plan::Plan;
pub(crate) use prepare::interrupted;
pub use prepare::{Prepared, Tree};
pub use source::{Source, check, list};
pub use status::parse_status;

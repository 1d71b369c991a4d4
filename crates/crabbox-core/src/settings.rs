//! One table of settings, and what the files, the environment and the flags make of it.
//!
//! Everything comes in as values ([`Sources`]) and goes out as values ([`Settings`]): nothing here reads the
//! environment or looks for files. The exception is the [`TrustStore`], a file of our own. Which providers there are,
//! the caller says with their tables.

mod core_table;
mod duration;
mod env_and_flags;
mod files;
mod jobs;
mod layers;
mod origin;
mod partial;
mod presets;
mod profiles;
mod reference;
mod repository_limits;
mod resolve;
mod resolved;
mod show;
mod source;
mod suggest;
mod table;
#[cfg(test)]
mod tests;
mod trust;
mod value;
mod value_location;
mod yaml;

pub use core_table::{CACHE, CORE};
pub use duration::{DurationError, format_duration, parse_duration};
pub use files::{Owner, ResolvedPath, normalize_lexically, owner_of, repository_files, user_file};
pub use jobs::{JobSpec, StopPolicy};
pub use layers::Ignored;
pub use origin::Origin;
pub use partial::{PartialSettings, load_partial};
pub use presets::Preset;
pub use profiles::ProfileEnv;
pub use reference::reference;
pub use resolve::{FlagValue, Sources, Untrusted, check_file, load};
pub use resolved::{Entry, Settings};
pub use show::{Shown, show_json, show_text};
pub use source::SourceFile;
pub use table::{Applies, Effect, Entries, Kind, Merge, ProviderTable, Setting, Trust};
pub use trust::{TrustRecord, TrustStore};
pub use value::Value;

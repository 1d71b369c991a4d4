//! One table of settings, and what the files, the environment and the flags make of it.
//!
//! Everything comes in as values ([`Sources`]) and goes out as values ([`Settings`]): nothing here reads the
//! environment or looks for files. The exception is the [`TrustStore`], a file of our own. Which providers there are,
//! the caller says with their tables.

mod allowed;
mod blame;
mod core_table;
mod duration;
mod files;
mod layers;
mod origin;
mod outside;
mod profiles;
mod reference;
mod resolve;
mod resolved;
mod salvage;
mod show;
mod source;
mod suggest;
mod table;
#[cfg(test)]
mod tests;
mod trust;
mod value;
mod yaml;

pub use core_table::CORE;
pub use duration::{DurationError, format_duration, parse_duration};
pub use files::{Owner, Place, owner_of, repository_files, user_file};
pub use layers::Ignored;
pub use origin::Origin;
pub use profiles::ProfileEnv;
pub use reference::reference;
pub use resolve::{FlagValue, Sources, Untrusted, check_file, load};
pub use resolved::{Entry, Settings};
pub use salvage::{Salvaged, salvage};
pub use show::{Shown, show_json, show_text};
pub use source::SourceFile;
pub use table::{Applies, Effect, Entries, Kind, Merge, ProviderTable, Setting, Trust};
pub use trust::{TrustRecord, TrustStore};
pub use value::Value;

//! Which variables go with a command, how they get there, and what is said about them.
//!
//! The caller's environment comes in as a map. Values never go into messages.

mod allow;
mod explicit;
mod file;
mod forward;
mod profile;

#[cfg(test)]
mod tests;

pub use allow::{AllowList, AllowSources};
pub use explicit::{Named, parse_env_file, parse_env_flag};
pub use file::{EnvFile, sweep};
pub use forward::{Forwarded, Request, Reserved, env_file_bytes, is_secret_shaped};
pub use profile::{ProfileFile, Skipped};

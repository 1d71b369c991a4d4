//! The provider-neutral half of `crabbox`.
//!
//! Nothing here names a provider, reads the environment or prints: what a provider is comes in as a
//! [`provider::Spec`], what the machine is as values, and what people see goes out as values.

pub mod bench;
pub mod claims;
pub mod command;
pub mod env;
mod failure;
pub mod git;
pub mod history;
pub mod lifecycle;
mod ordered_map;
mod printable;
pub mod process;
pub mod provider;
pub mod redact;
pub mod search_path;
pub mod settings;
pub mod small_file;
pub mod sync;
pub mod timing;

pub use failure::{Code, Failure};
pub use ordered_map::OrderedMap;
pub use printable::{printable, printable_lines};

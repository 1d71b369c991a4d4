//! What is known about one sandbox: its name, its record on disk, and both as the API shows them.

pub mod agents;
pub(crate) mod git_identity;
pub mod name;
pub mod offline;
pub mod ports;
pub mod record;
pub mod tag;
pub mod view;

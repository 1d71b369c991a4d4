//! The engine behind `sandboxd`: it creates, runs, keeps and removes sandboxes of one user on one machine.
//!
//! Decisions are pure and become data: a [`sandbox::record::Record`] on disk and a plan for the single-threaded setup
//! helper. [`engine::Engine`] acts on them. Everything is synchronous and called from threads; nothing here reads the
//! environment or writes to a terminal.
//!
//! - [`sandbox`]: what is stored and shown of one sandbox
//! - [`machine`]: what a running sandbox is, and the backend that runs it ([`machine::namespace`])
//! - `lifecycle`: create, start, watch, stop, remove; recovery after a restart of the daemon
//! - [`workspace`]: which host directories may be shared
//! - [`policy`]: the network rules on disk
//! - [`saved`]: templates that were made from sandboxes
//! - [`state`]: the state directory and how files in it are written and removed

pub mod cache;
pub mod engine;
pub mod error;
mod lifecycle;
pub mod machine;
pub mod policy;
pub mod sandbox;
pub mod saved;
pub mod state;
mod threads;
pub mod workspace;

pub use engine::{Config, Engine};
pub use error::EngineError;
pub use lifecycle::reset::reset;
pub use sandbox::name::SandboxName;
pub use state::StateDir;

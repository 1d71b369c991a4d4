//! The engine behind `sandboxd`: it makes, runs, keeps and removes sandboxes of one user on one machine.
//!
//! Decisions are pure ([`name`], [`ids`], [`workspace`], [`plan`]) and become data: a [`record::Record`] on
//! disk and a plan for the single-threaded setup helper. [`engine::Engine`] acts on them. Everything is
//! synchronous and called from threads; nothing here reads the environment or writes to a terminal.

pub mod agents;
pub mod autostop;
pub mod control;
pub mod daemonlock;
pub mod egress;
pub mod engine;
pub mod entry;
pub mod error;
pub mod ids;
pub mod limits;
pub mod name;
pub mod observe;
pub mod ownaddress;
pub mod plan;
pub mod policybook;
pub mod record;
pub mod remove;
pub mod reset;
pub mod settings;
pub mod setup;
pub mod socket;
pub mod statedir;
pub mod template;
pub mod territory;
pub mod view;
pub mod workspace;
pub mod workspace_hints;

mod beneath;
mod draft;
mod git;
mod handover;
mod lifecycle;
mod recovery;
mod threads;

pub use engine::{Config, Engine};
pub use error::EngineError;
pub use name::SandboxName;
pub use statedir::StateDir;

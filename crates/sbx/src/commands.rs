//! One file per command: its arguments, its help text (the doc comments) and its implementation.

pub(crate) mod cache;
pub(crate) mod completion;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod daemon;
pub(crate) mod diagnose;
pub(crate) mod exec;
pub(crate) mod inspect;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod network;
pub(crate) mod policy;
pub(crate) mod ports;
pub(crate) mod prune;
pub(crate) mod reset;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod settings;
pub(crate) mod setup;
pub(crate) mod ssh;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod umount;
pub(crate) mod version;

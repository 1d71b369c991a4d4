//! One file per command: its flags, its help, and what it does.

pub(crate) mod claims;
pub(crate) mod cleanup;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod doctor;
mod forwarding;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod ports;
pub(crate) mod providers;
mod routing;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod sync_plan;
pub(crate) mod trust;
pub(crate) mod warmup;

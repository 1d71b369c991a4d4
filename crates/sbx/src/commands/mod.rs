//! One file per command: its arguments, its help text (the doc comments) and what it does.

pub mod completion;
pub mod create;
pub mod daemon;
pub mod diagnose;
pub mod exec;
pub mod inspect;
pub mod logs;
pub mod ls;
pub mod rm;
pub mod run;
pub mod stop;
pub mod version;

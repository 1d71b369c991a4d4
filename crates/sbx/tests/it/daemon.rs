//! The daemon: who may talk to it, what survives it, what it leaves alone.

pub mod access;
pub mod lost;
pub mod places;
pub mod process;
pub mod restarting;
pub mod settings;

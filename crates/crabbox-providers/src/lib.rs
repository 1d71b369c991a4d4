//! The places where crabbox can run a command.

pub mod docker_sandbox;

use crabbox_core::provider::Spec;

/// All of them, in the order in which they are listed.
pub const SPECS: &[&Spec] = &[&docker_sandbox::SPEC];

/// What is used when nobody has chosen.
pub const DEFAULT: &str = docker_sandbox::SPEC.name;

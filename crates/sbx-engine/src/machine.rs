//! Running machines.

pub mod control;
pub mod egress;
pub mod namespace;

//! `sbx diagnose`: [`gather`] collects facts about the machine, [`check`] evaluates them without I/O.

mod checks;
mod facts;
mod gather;
#[cfg(test)]
mod tests;

pub(crate) use checks::{Check, Group, Status, check};
pub(crate) use gather::gather;

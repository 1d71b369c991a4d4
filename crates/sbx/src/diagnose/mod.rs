//! What a machine offers for sandboxes: facts are gathered in one place, judged in another.

mod checks;
mod facts;
mod gather;
#[cfg(test)]
mod tests;

pub(crate) use checks::{Check, Group, Status, check};
pub(crate) use gather::gather;

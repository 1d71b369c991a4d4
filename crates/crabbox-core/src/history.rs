//! Local records of runs: what ran where, how it ended, how long each phase took, what it said.
//!
//! `<state>/runs/<run id>.json` and, when the command wrote something, `<run id>.stdout.log` and `.stderr.log`: for the user
//! alone, without known secrets, and bounded by runs, by bytes, and by bytes per log. Each run has its own files, and its
//! record is only ever added to, so that processes need no lock to write beside each other. Nothing that a live process
//! writes is ever removed.

mod log;
mod prune;
mod record;
mod run;
mod store;

#[cfg(test)]
mod tests;

pub use log::RunLog;
pub use prune::Bounds;
pub use record::{LogInfo, Record, Status};
pub use run::{ActiveRun, Begin, Finish};
pub use store::{Listing, Problem, RunStore};

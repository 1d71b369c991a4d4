//! Claims: which sandboxes are ours, whose they are, and until when.
//!
//! A claim is one JSON file per lease. It is written before the sandbox exists, so that a crash leaves a claim and
//! never an unknown sandbox. [`ClaimStore`] reads and writes the files; everything that can be decided
//! without a file ([`binding`], [`sweep`], deadlines, slugs) is a function of values.
//!
//! Reading takes no lock and creates nothing. Writing compares with what was read before it changes anything.
//! What takes long (a run, a stop, a cleanup of one lease) holds that lease's [`OperationLock`], and looks the claim
//! up again once it has it. This module knows no provider and touches no sandbox.

pub mod binding;
mod claim;
mod creator;
mod deadline;
mod files;
mod lease_id;
mod list;
mod locks;
mod problem;
mod slug;
mod store;
pub mod sweep;
#[cfg(test)]
mod tests;

pub use binding::{Binding, Reclaim, RepoRoot};
pub use claim::{Claim, FIXED, Intent, State};
pub use creator::{Creator, Liveness};
pub use deadline::{Deadline, Deadlines, Reason};
pub use files::check_state;
pub(crate) use lease_id::hex;
pub use lease_id::{LeaseId, random_hex, run_id};
pub use list::Listing;
pub use locks::{OperationLock, Wait};
pub use problem::{Problem, ProblemCode};
pub use slug::{Slug, SlugChoice};
pub use store::{ClaimStore, ProviderFilter, Scan};

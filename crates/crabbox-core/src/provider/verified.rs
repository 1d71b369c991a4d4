//! The proof of identity that every use of a sandbox needs.
//!
//! A name proves nothing: a sandbox can be deleted and another one created under the same name between two requests. So
//! operations do not take a claim but a [`Verified`], which has no other constructor than [`verify`]. It is made anew
//! for each operation and lives only as long as that.

use super::{Labels, Provider};
use crate::Failure;
use crate::claims::Claim;
use crate::process::Cancel;

/// The fact that the provider does not know the sandbox of a claim that is to be inspected or used again, with what to say about it; with
/// nothing where the user wants such claims to be forgotten.
pub const MISSING: &str = "missing";

/// The fact that the provider says that the time of a lease which is to be inspected is over, whatever the claim says.
pub const EXPIRED: &str = "expired";

/// What a sandbox is about to be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Another run takes the lease.
    Reuse,
    Upload,
    Replace,
    Exec,
    /// `ports` or `cp`.
    Attach,
    /// `cleanup` says what it would do with it.
    Inspect,
    /// An absent sandbox is not a mismatch here: [`Provider::remove`] says what it means.
    Remove,
}

/// A claim whose sandbox was proved to be the one that the claim means.
#[derive(Debug)]
pub struct Verified<'c> {
    claim: &'c Claim,
    facts: Labels,
}

/// Asks the provider for the proof.
pub fn verify<'c>(
    provider: &dyn Provider,
    claim: &'c Claim,
    intent: Use,
    cancel: &Cancel,
) -> Result<Verified<'c>, Failure> {
    let facts = provider.verify(claim, intent, cancel)?;
    Ok(Verified { claim, facts })
}

impl<'c> Verified<'c> {
    pub fn claim(&self) -> &'c Claim {
        self.claim
    }

    /// What the provider found on the way, such as the pod to talk to.
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.facts.get(key).map(String::as_str)
    }
}

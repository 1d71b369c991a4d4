//! Claims whose sandbox is gone.

use std::collections::BTreeSet;

use super::Context;
use super::cleanup::{Action, DryRun, Subject, Swept};
use super::exclusive::{self, Attempt};
use crate::Failure;
use crate::claims::{Claim, LeaseId, State};
use crate::provider::{Observed, Phase};

/// Removes the claims of sandboxes that the provider proves to be gone. It removes no sandbox.
pub fn prune(
    context: Context<'_>,
    claims: &[Claim],
    dry_run: DryRun,
) -> Result<Vec<Swept>, Failure> {
    let observed = context.provider.observe(claims, context.cancel)?;
    let mut swept = Vec::with_capacity(claims.len());
    for (claim, observed) in claims.iter().zip(observed) {
        let (action, reason) = match lost(context, claim, &observed) {
            Err(reason) => (Action::Skip, reason),
            Ok(()) => prune_one(context, claim, dry_run)?,
        };
        swept.push(Swept {
            subject: Subject::Claim(Box::new(claim.clone())),
            action,
            reason,
        });
    }
    Ok(swept)
}

const GONE: &str = "sandbox is gone";

/// The leases of this provider whose sandbox is proved to be gone. None where it does not answer: a command that needs the
/// answer says why.
pub(super) fn lost_claims(context: Context<'_>, claims: &[Claim]) -> BTreeSet<LeaseId> {
    let ours = |claim: &&Claim| claim.provider == context.name() && claim.state == State::Ready;
    let ours: Vec<_> = claims.iter().filter(ours).cloned().collect();
    if ours.is_empty() {
        return BTreeSet::new();
    }
    let observed = context.provider.observe(&ours, context.cancel);
    let observed = observed.unwrap_or_default();
    let pairs = ours.into_iter().zip(observed);
    pairs
        .filter(|(claim, observed)| lost(context, claim, observed).is_ok())
        .map(|(claim, _)| claim.lease_id)
        .collect()
}

/// The claim of a sandbox that is gone.
pub(super) fn prune_one(
    context: Context<'_>,
    claim: &Claim,
    dry_run: DryRun,
) -> Result<(Action, String), Failure> {
    match dry_run {
        DryRun::Yes => Ok((Action::WouldDelete, GONE.to_owned())),
        DryRun::No => forget(context, claim),
    }
}

/// Whether there is a proof that the sandbox is gone, or why there is none.
fn lost(context: Context<'_>, claim: &Claim, observed: &Observed) -> Result<(), String> {
    if claim.state == State::Creating {
        return Err("being created".to_owned());
    }
    match observed.phase {
        Phase::Absent if context.provider.spec().absence_is_proof => Ok(()),
        Phase::Absent => Err(format!("{}: no proof that it is gone", observed.state)),
        Phase::Ready | Phase::NotYet | Phase::Over | Phase::Unknown => {
            Err(format!("sandbox is {}", observed.state))
        }
    }
}

/// Looks again once no other process uses the lease.
fn forget(context: Context<'_>, claim: &Claim) -> Result<(Action, String), Failure> {
    let _lock = match exclusive::try_lock(context, claim, "crabbox claims prune")? {
        Attempt::Locked(lock) => lock,
        Attempt::InUse(failure) => return Ok((Action::Skip, failure.to_string())),
        Attempt::Changed => return Ok((Action::Skip, "claim changed".to_owned())),
    };
    let again = context
        .provider
        .observe(std::slice::from_ref(claim), context.cancel)?;
    if let Some(observed) = again.first()
        && let Err(reason) = lost(context, claim, observed)
    {
        return Ok((Action::Skip, reason));
    }
    context.store.remove(claim)?;
    Ok((Action::Delete, GONE.to_owned()))
}

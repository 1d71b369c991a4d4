//! The leases that have a sandbox.

use jiff::Timestamp;

use super::Context;
use crate::Failure;
use crate::claims::{Claim, Problem, State};
use crate::provider::{Observed, Phase};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub claim: Claim,
    pub observed: Observed,
}

/// Damaged claims come along as problems; they hide nothing else. A lease whose sandbox is gone is not listed, one that is
/// being created or released is, and so is one whose sandbox is absent where absence proves nothing.
pub fn list(context: Context<'_>) -> Result<(Vec<Listed>, Vec<Problem>), Failure> {
    let scan = context.store.scan()?;
    let claims: Vec<Claim> = scan
        .claims
        .into_iter()
        .filter(|claim| claim.provider == context.name())
        .collect();
    if claims.is_empty() {
        return Ok((Vec::new(), scan.problems));
    }
    let observed = context.provider.observe(&claims, context.cancel)?;
    let now = Timestamp::now();
    let absence_is_proof = context.provider.spec().absence_is_proof;
    let listed = claims
        .into_iter()
        .zip(observed)
        .filter(|(claim, observed)| {
            let gone = observed.phase == Phase::Absent && absence_is_proof;
            !gone || claim.state != State::Ready
        })
        .map(|(claim, observed)| Listed {
            observed: with_claim_state(context, &claim, observed, now),
            claim,
        })
        .collect();
    Ok((listed, scan.problems))
}

/// What the provider cannot know: what we are about to do with it, and how long it may live.
pub(super) fn with_claim_state(
    context: Context<'_>,
    claim: &Claim,
    observed: Observed,
    now: Timestamp,
) -> Observed {
    let by_hand = context.provider.manual_removal_reason(claim).is_some();
    let is_known = !matches!(observed.phase, Phase::Absent | Phase::Unknown);
    let (state, phase) = match claim.state {
        State::Creating => ("creating", Phase::NotYet),
        State::Releasing => ("releasing", Phase::NotYet),
        // No command runs in it any more, whatever the provider thinks of it. What only its user may end can be used.
        State::Ready if claim.is_expired(now) && !by_hand && is_known => ("expired", Phase::Over),
        State::Ready => return observed,
    };
    Observed {
        state: state.to_owned(),
        phase,
        ..observed
    }
}

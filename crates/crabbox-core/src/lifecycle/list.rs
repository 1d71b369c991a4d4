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
    pub expires_at: Option<Timestamp>,
}

/// Damaged claims come along as problems; they hide nothing else. A lease whose sandbox is gone is not listed, one that is
/// being made is.
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
    let listed = claims
        .into_iter()
        .zip(observed)
        .filter(|(claim, observed)| {
            observed.phase != Phase::Absent || claim.state == State::Creating
        })
        .map(|(claim, observed)| Listed {
            expires_at: claim.deadline().map(|deadline| deadline.at),
            observed: in_its_state(&claim, observed),
            claim,
        })
        .collect();
    Ok((listed, scan.problems))
}

/// What the provider cannot know yet.
pub(super) fn in_its_state(claim: &Claim, observed: Observed) -> Observed {
    let state = match claim.state {
        State::Creating => "creating",
        State::Releasing => "releasing",
        State::Ready => return observed,
    };
    Observed {
        state: state.to_owned(),
        phase: Phase::NotYet,
        ..observed
    }
}

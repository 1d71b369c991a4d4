//! All leases of a provider, with what became of their sandboxes.

use jiff::Timestamp;

use super::Context;
use crate::claims::{Claim, Creator, Problem, State, sweep};
use crate::provider::{Labels, Observed, Phase};
use crate::{Code, Failure, printable};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub claim: Claim,
    pub observed: Observed,
}

/// Every claim is listed, whatever became of its sandbox: what is not seen cannot be stopped.
#[derive(Debug, Default)]
pub struct Listing {
    pub leases: Vec<Listed>,
    /// Damaged claims. They hide nothing else.
    pub problems: Vec<Problem>,
    /// Claims of other providers, which are not asked.
    pub others: Vec<Claim>,
    /// Claims of this provider in another scope, of which nothing can be said here.
    pub out_of_scope: Vec<Claim>,
    /// Why the state of some leases is not known.
    pub failure: Option<Failure>,
}

/// The state of a lease whose provider did not answer.
const UNKNOWN: &str = "unknown";

pub fn list(context: Context<'_>) -> Result<Listing, Failure> {
    let scan = context.store.scan()?;
    let is_ours = |claim: &Claim| claim.provider == context.name();
    let (claims, others): (Vec<_>, Vec<_>) = scan.claims.into_iter().partition(is_ours);
    let in_scope = |claim: &Claim| context.provider.scope_mismatch(claim).is_none();
    let (claims, out_of_scope): (Vec<_>, Vec<_>) = claims.into_iter().partition(in_scope);
    let mut listing = Listing {
        problems: scan.problems,
        others,
        out_of_scope,
        ..Listing::default()
    };
    let observed = observe(context, &claims, &mut listing.failure)?;
    let now = Timestamp::now();
    listing.leases = claims
        .into_iter()
        .zip(observed)
        .map(|(claim, observed)| Listed {
            observed: with_claim_state(context, &claim, observed, now),
            claim,
        })
        .collect();
    Ok(listing)
}

/// How many leases there are of the provider, as it is configured. Asks no sandbox.
pub fn count(context: Context<'_>) -> Result<usize, Failure> {
    let claims = context.store.scan()?.claims;
    Ok(claims.iter().filter(|claim| context.is_ours(claim)).count())
}

/// All at once, or one by one where that fails: the engine of one lease does not hide the others.
fn observe(
    context: Context<'_>,
    claims: &[Claim],
    failed: &mut Option<Failure>,
) -> Result<Vec<Observed>, Failure> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    match context.provider.observe(claims, context.cancel) {
        Ok(observed) => return Ok(observed),
        Err(failure) if context.canceled() => return Err(failure),
        Err(failure) if claims.len() == 1 => *failed = Some(failure),
        Err(_) => {}
    }
    let mut all = Vec::with_capacity(claims.len());
    for claim in claims {
        // One that does not answer in time is not asked again and again.
        let is_silent = failed
            .as_ref()
            .is_some_and(|failure| failure.code == Code::Timeout);
        let observed = match is_silent || claims.len() == 1 {
            true => None,
            false => match context
                .provider
                .observe(std::slice::from_ref(claim), context.cancel)
            {
                Ok(mut one) => one.pop(),
                Err(failure) => {
                    failed.get_or_insert(failure);
                    None
                }
            },
        };
        all.push(observed.unwrap_or_else(|| Observed {
            state: UNKNOWN.to_owned(),
            phase: Phase::Unknown,
            labels: Labels::new(),
        }));
    }
    Ok(all)
}

/// Whether a sandbox that was there is not coming back: its lease is being released, or the process that was creating it
/// died.
fn is_gone(context: Context<'_>, claim: &Claim, observed: &Observed) -> bool {
    let is_left = claim.state == State::Releasing || sweep::is_orphan(claim, &Creator::liveness);
    observed.phase == Phase::Absent && is_left && context.provider.was_seen(claim)
}

/// What the provider cannot know: what we are about to do with it, and how long it may live. The state is text of an engine
/// or a server, which goes to terminals.
pub(super) fn with_claim_state(
    context: Context<'_>,
    claim: &Claim,
    observed: Observed,
    now: Timestamp,
) -> Observed {
    let by_hand = context.provider.manual_removal_reason(claim).is_some();
    let is_known = !matches!(observed.phase, Phase::Absent | Phase::Unknown);
    let unfinished = match is_gone(context, claim, &observed) {
        true => Phase::Absent,
        false => Phase::NotYet,
    };
    let (state, phase) = match claim.state {
        State::Creating => ("creating", unfinished),
        State::Releasing => ("releasing", unfinished),
        // No command runs in it any more, whatever the provider thinks of it. What only its user may end can be used.
        State::Ready if claim.is_expired(now) && !by_hand && is_known => ("expired", Phase::Over),
        State::Ready => (&*printable(&observed.state), observed.phase),
    };
    Observed {
        state: state.to_owned(),
        phase,
        ..observed
    }
}

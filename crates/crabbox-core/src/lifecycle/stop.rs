//! The end of a lease on request.

use super::Context;
use crate::claims::{Claim, State, Wait};
use crate::{Code, Failure};

/// Waits for whoever runs in it. The claim goes only when the sandbox is proved to be gone.
pub fn stop(context: Context<'_>, identifier: &str) -> Result<Claim, Failure> {
    let found = context.find(identifier)?;
    let canceled = || context.canceled();
    let tell = |line: &str| context.report.progress(line);
    let wait = Wait::until_canceled(&canceled).telling(&tell);
    let _lock = context
        .store
        .operation(&found.lease_id, "crabbox stop", wait)?;
    let Some(claim) = context.store.read(&found.lease_id)? else {
        return Ok(found); // released while we waited
    };
    if claim.provider != found.provider {
        let message = format!("lease {} claim changed; retry", claim.lease_id);
        return Err(Failure::new(Code::ClaimChanged, message));
    }
    release(context, &claim)?;
    Ok(claim)
}

/// With the operation lock held. A claim in this state tells whoever comes later that the end has begun.
pub(super) fn release(context: Context<'_>, claim: &Claim) -> Result<(), Failure> {
    let releasing = match claim.state {
        State::Releasing => claim.clone(),
        State::Ready | State::Creating => context.store.replace(claim, claim.releasing())?,
    };
    match context.provider.remove(&releasing, context.cancel) {
        Ok(()) => context.store.remove(&releasing),
        // Nothing was begun: the lease is as good as before.
        Err(failure) if failure.code == Code::ProviderMissing => {
            match context.store.replace(&releasing, claim.clone()) {
                Ok(_) => Err(failure),
                Err(other) => Err(failure.and(&other)),
            }
        }
        Err(failure) => Err(failure),
    }
}

//! The end of a lease on request.

use std::cell::RefCell;

use super::Context;
use crate::claims::{Claim, State, Wait};
use crate::{Code, Failure};

/// Waits for whoever runs in it. The claim goes only when the sandbox is proved to be gone.
pub fn stop(context: Context<'_>, identifier: &str) -> Result<Claim, Failure> {
    let found = context.find(identifier)?;
    let canceled = || context.canceled();
    let tell = |line: &str| context.report.line(line);
    let wait = Wait::until_canceled(&canceled).with_notice(&tell);
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

/// With the operation lock held. A claim that is `releasing` tells whoever comes later that the end has begun; before
/// that the lease is as good as ever.
pub(super) fn release(context: Context<'_>, claim: &Claim) -> Result<(), Failure> {
    let begun = RefCell::new(None);
    let begin = || {
        let releasing = match claim.state {
            State::Releasing => claim.clone(),
            State::Ready | State::Creating => context.store.replace(claim, claim.releasing())?,
        };
        begun.replace(Some(releasing));
        Ok(())
    };
    let removed = context.provider.remove(claim, &begin, context.cancel);
    match (removed, begun.into_inner()) {
        (Ok(()), begun) => context.store.remove(begun.as_ref().unwrap_or(claim)),
        // The program was gone before it could begin.
        (Err(failure), Some(releasing)) if failure.code == Code::ProviderMissing => {
            match context.store.replace(&releasing, claim.clone()) {
                Ok(_) => Err(failure),
                Err(other) => Err(failure.and(&other)),
            }
        }
        (Err(failure), _) => Err(failure),
    }
}

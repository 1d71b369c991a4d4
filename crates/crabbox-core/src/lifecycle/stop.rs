//! The end of a lease on request.

use std::cell::RefCell;

use super::Context;
use crate::claims::{Claim, State, Wait};
use crate::process::Cancel;
use crate::provider::{Removal, Use, verify};
use crate::{Code, Failure};

/// Waits for commands that run in it. The claim goes only when the sandbox is proved to be gone.
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
    match release(context, &claim)? {
        Released::Gone => Ok(claim),
        Released::Missing(failure) => Err(failure),
    }
}

/// What came of a release that did not fail.
#[derive(Debug)]
pub(super) enum Released {
    /// The claim is gone as well.
    Gone,
    /// The provider does not know the sandbox, which proves nothing: the claim is as it was.
    Missing(Failure),
}

/// With the operation lock held. The state `releasing` says that the end has begun; before that the lease is as good as
/// ever.
pub(super) fn release(context: Context<'_>, claim: &Claim) -> Result<Released, Failure> {
    let begun = RefCell::new(None);
    let begin = || {
        let releasing = match claim.state {
            State::Releasing => claim.clone(),
            State::Ready | State::Creating => context.store.replace(claim, claim.releasing())?,
        };
        begun.replace(Some(releasing));
        Ok(())
    };
    let sandbox = context.verify(claim, Use::Remove)?;
    let removed = context.provider.remove(&sandbox, &begin, context.cancel);
    match (removed, begun.into_inner()) {
        (Ok(Removal::Missing(failure)), None) => Ok(Released::Missing(failure)),
        (Ok(Removal::Missing(failure)), Some(_)) => Err(failure),
        (Ok(removal), begun) => {
            tell_forgotten(context, &removal);
            context.store.remove(begun.as_ref().unwrap_or(claim))?;
            Ok(Released::Gone)
        }
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

/// Removes a sandbox of our own making, without a word in the claim. The claim is the caller's.
pub(super) fn remove(context: Context<'_>, claim: &Claim, cancel: &Cancel) -> Result<(), Failure> {
    let sandbox = verify(context.provider, claim, Use::Remove, cancel)?;
    match context.provider.remove(&sandbox, &|| Ok(()), cancel)? {
        Removal::Missing(failure) => Err(failure),
        removal @ (Removal::Gone | Removal::Forgotten(_)) => {
            tell_forgotten(context, &removal);
            Ok(())
        }
    }
}

fn tell_forgotten(context: Context<'_>, removal: &Removal) {
    if let Removal::Forgotten(warning) = removal {
        context.report.line(&format!("warning: {warning}"));
    }
}

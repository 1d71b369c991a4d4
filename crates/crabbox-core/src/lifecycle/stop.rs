//! The end of a lease on request.

use std::cell::RefCell;

use super::Context;
use crate::claims::{Claim, State, Wait};
use crate::process::Cancel;
use crate::provider::{Removal, Use, verify};
use crate::{Code, Failure};

/// What a stop does about commands that run in the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Running {
    /// It waits for them.
    Wait,
    /// It ends them.
    End,
}

/// Waits for commands that run in it. The claim goes only when the sandbox is proved to be gone.
pub fn stop(context: Context<'_>, identifier: &str) -> Result<Claim, Failure> {
    stop_with(context, identifier, Running::Wait).map(|stopped| stopped.claim)
}

/// A lease that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    pub claim: Claim,
    /// Whether only the claim was removed, because the user knows that the sandbox is gone.
    pub forgotten: bool,
}

pub fn stop_with(
    context: Context<'_>,
    identifier: &str,
    running: Running,
) -> Result<Stopped, Failure> {
    let found = context.find(identifier)?;
    let canceled = || context.canceled();
    let tell = |line: &str| context.report.line(line);
    let wait = Wait::until_canceled(&canceled).with_notice(&tell);
    // What is still being created is not used yet, and no stop is in the way of another.
    let _lock = match (running, found.state) {
        (Running::End, State::Ready) => None,
        (Running::End | Running::Wait, _) => Some(context.store.operation(
            &found.lease_id,
            "crabbox stop",
            wait,
        )?),
    };
    let Some(claim) = context.store.read(&found.lease_id)? else {
        // Released while we waited.
        return Ok(Stopped {
            claim: found,
            forgotten: false,
        });
    };
    if claim.provider != found.provider {
        let message = format!("lease {} claim changed; retry", claim.lease_id);
        return Err(Failure::new(Code::ClaimChanged, message));
    }
    let released = match running {
        Running::Wait => release(context, &claim),
        Running::End => release_in_use(context, claim.clone()),
    };
    match released.map_err(|failure| unresolved(context, &claim, failure))? {
        released @ (Released::Gone | Released::Forgotten) => Ok(Stopped {
            claim,
            forgotten: matches!(released, Released::Forgotten),
        }),
        Released::Missing(failure) => Err(failure),
    }
}

/// A lease whose sandbox cannot be removed by its provider is not stuck for ever.
pub(super) fn unresolved(context: Context<'_>, claim: &Claim, failure: Failure) -> Failure {
    let is_providers = matches!(
        failure.code,
        Code::Provider | Code::ProviderMissing | Code::ProviderMalformed | Code::Timeout
    );
    let forget = format!(
        "crabbox claims forget {}",
        context.provider.spec().shown_id(claim)
    );
    let is_named = failure.hints.iter().any(|hint| hint.contains(&forget));
    match is_providers && !is_named {
        true => failure.hint(format!(
            "{forget} removes only the record: if the sandbox is known to be gone"
        )),
        false => failure,
    }
}

/// How often a claim that its users change at the same time is read again.
const ATTEMPTS: u32 = 10;

/// Without the operation lock: a command that ends because of it writes that down, or releases the lease itself.
fn release_in_use(context: Context<'_>, mut claim: Claim) -> Result<Released, Failure> {
    let mut attempt = 1;
    loop {
        match release(context, &claim) {
            Err(failure) if failure.code == Code::ClaimChanged && attempt < ATTEMPTS => {}
            ended => return ended,
        }
        attempt += 1;
        match context.store.read(&claim.lease_id)? {
            None => return Ok(Released::Gone),
            Some(now) => claim = now,
        }
    }
}

/// What came of a release that did not fail.
#[derive(Debug)]
pub(super) enum Released {
    /// The claim is gone as well.
    Gone,
    /// The claim is gone, and of the sandbox the user said so.
    Forgotten,
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
            let last = begun.as_ref().unwrap_or(claim);
            match claim.is_fixed() {
                true => context.store.retire(last)?,
                false => context.store.remove(last)?,
            }
            Ok(match removal {
                Removal::Forgotten(_) => Released::Forgotten,
                Removal::Gone | Removal::Missing(_) => Released::Gone,
            })
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

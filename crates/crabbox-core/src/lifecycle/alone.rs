//! A lease for oneself alone, to end it.

use super::Context;
use crate::claims::{Claim, OperationLock, Wait};
use crate::{Code, Failure};

/// What came of the attempt. A failure of whatever follows it is never taken for "in use".
#[derive(Debug)]
pub(super) enum Alone {
    /// Nobody else's as long as this lives.
    Taken(OperationLock),
    /// The failure says by whom.
    InUse(Failure),
    /// Somebody was faster: it is no longer what was decided about.
    Changed,
}

/// Does not wait for whoever uses it.
pub(super) fn take(context: Context<'_>, claim: &Claim, command: &str) -> Result<Alone, Failure> {
    let lease = &claim.lease_id;
    let lock = match context.store.operation(lease, command, Wait::none()) {
        Ok(lock) => lock,
        Err(failure) if failure.code == Code::Timeout => return Ok(Alone::InUse(failure)),
        Err(failure) => return Err(failure),
    };
    Ok(match context.store.read(lease)? {
        Some(again) if again == *claim => Alone::Taken(lock),
        Some(_) | None => Alone::Changed,
    })
}

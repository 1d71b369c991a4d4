//! The exclusive lock on a lease, to end it.

use super::Context;
use crate::claims::{Claim, OperationLock, Wait};
use crate::{Code, Failure};

/// What came of the attempt. A failure of what follows it is never taken for "in use".
#[derive(Debug)]
pub(super) enum Attempt {
    /// No other process uses the lease as long as this lives.
    Locked(OperationLock),
    /// The failure says by which process.
    InUse(Failure),
    /// The claim is no longer what was decided about.
    Changed,
}

/// Does not wait for a process that uses it.
pub(super) fn try_lock(
    context: Context<'_>,
    claim: &Claim,
    command: &str,
) -> Result<Attempt, Failure> {
    let lease = &claim.lease_id;
    let lock = match context.store.operation(lease, command, Wait::none()) {
        Ok(lock) => lock,
        Err(failure) if failure.code == Code::Timeout => return Ok(Attempt::InUse(failure)),
        Err(failure) => return Err(failure),
    };
    Ok(match context.store.read(lease)? {
        Some(again) if again == *claim => Attempt::Locked(lock),
        Some(_) | None => Attempt::Changed,
    })
}

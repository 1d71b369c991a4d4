//! What becomes of a lease after its run.

use std::time::Duration;

use super::Context;
use super::lease::{self, Lease, Origin};
use super::run::Keep;
use crate::Failure;
use crate::claims::Claim;
use crate::provider::RunEnd;
use crate::timing::format_ms;

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    Gone,
    /// As it should be.
    Kept,
    /// It is still there, or that is not known.
    Unremoved,
}

/// Keeps the lease or gives it back.
pub(super) fn settle(
    context: Context<'_>,
    lease: &Lease,
    keep: Keep,
    ended: &Result<i32, Failure>,
    rerun: &str,
) -> Settled {
    if lease.origin == Origin::Reused {
        renew(context, lease);
        return Settled::Kept;
    }
    let succeeded = matches!(ended, Ok(0));
    let stop = context.provider.stop_command(&lease.claim);
    match keep {
        Keep::Yes => {
            renew(context, lease);
            return Settled::Kept;
        }
        Keep::OnFailure if !succeeded => {
            keep_after_all(context, lease);
            for line in kept_on_failure(&lease.claim, rerun, &stop) {
                context.report.line(&line);
            }
            return Settled::Kept;
        }
        Keep::OnFailure | Keep::No => {}
    }
    let end = match succeeded {
        true => RunEnd::Succeeded,
        false => RunEnd::Failed,
    };
    if let Some(line) = context.provider.keep_after_run(&lease.claim, end, &stop) {
        keep_after_all(context, lease);
        context.report.line(&line);
        return Settled::Kept;
    }
    match lease::give_back(context, lease) {
        Ok(()) => Settled::Gone,
        // The command's own end counts, not what became of its sandbox.
        Err(failure) => {
            let claim = &lease.claim;
            let name = claim.sandbox().unwrap_or(claim.lease_id.as_str());
            let line = format!(
                "warning: {} rm failed for {name}: {failure}",
                context.name()
            );
            context.report.line(&line);
            Settled::Unremoved
        }
    }
}

/// Otherwise the next run would take it for one that this process left behind.
fn keep_after_all(context: Context<'_>, lease: &Lease) {
    if let Err(failure) = lease::keep(context, lease) {
        let id = &lease.claim.lease_id;
        let line = format!("warning: that lease {id} stays is not recorded: {failure}");
        context.report.line(&line);
    }
}

/// The idle time begins when the command ends.
fn renew(context: Context<'_>, lease: &Lease) {
    if let Err(failure) = lease::used(context, lease) {
        let id = &lease.claim.lease_id;
        let line = format!("warning: the use of lease {id} is not recorded: {failure}");
        context.report.line(&line);
    }
}

fn terms_of(claim: &Claim) -> String {
    let shown = |seconds| format_ms(Duration::from_secs(seconds));
    format!(
        "idle_timeout={} ttl={}",
        shown(claim.idle_timeout_seconds),
        shown(claim.ttl_seconds)
    )
}

fn kept_on_failure(claim: &Claim, rerun: &str, stop: &str) -> [String; 3] {
    let lease = &claim.lease_id;
    let slug = claim.slug_str().unwrap_or("-");
    let terms = terms_of(claim);
    [
        format!("keep-on-failure: kept lease={lease} slug={slug} expires=idle/ttl {terms}"),
        format!("rerun: {rerun}"),
        format!("stop: {stop}"),
    ]
}

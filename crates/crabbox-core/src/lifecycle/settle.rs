//! What becomes of a lease after its run.

use std::time::Duration;

use super::Context;
use super::deadline;
use super::lease::{self, Lease, Origin};
use super::run::Keep;
use super::stop::{self, Released};
use crate::claims::Claim;
use crate::provider::RunEnd;
use crate::timing::format_ms;
use crate::{Code, Failure};

/// What became of a lease.
#[derive(Debug)]
pub(super) enum Settled {
    Gone,
    /// As it should be.
    Kept,
    /// It is still there, or that is not known. With the command that removes it.
    Unremoved(Failure),
}

/// Keeps the lease or gives it back.
pub(super) fn settle(
    context: Context<'_>,
    lease: &mut Lease,
    keep: Keep,
    ended: &Result<i32, Failure>,
    rerun: &str,
) -> Settled {
    // It goes whatever was asked for, as soon as no other process uses it.
    let goes_anyhow = lease.origin == Origin::Fresh && keep == Keep::No;
    if !goes_anyhow && lease::has_expired(context, &lease.claim) {
        return release_at_end(context, lease);
    }
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
                context.report.fact(&line);
            }
            return Settled::Kept;
        }
        Keep::UntilEnd => return release_at_end(context, lease),
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
        Err(failure) => {
            let claim = &lease.claim;
            let name = claim.sandbox().unwrap_or(claim.lease_id.as_str());
            let called = context.provider.called();
            let message = format!("{called} rm failed for {name}: {failure}");
            let mut unremoved = Failure::new(Code::Provider, message);
            unremoved.hints = failure.hints;
            unremoved.hints.retain(|hint| *hint != stop);
            Settled::Unremoved(unremoved.hint(stop))
        }
    }
}

/// The end of a lease that others may have used meanwhile, and may still use: then it stays until it is idle.
fn release_at_end(context: Context<'_>, lease: &mut Lease) -> Settled {
    let id = lease.claim.lease_id.clone();
    let is_fixed = lease.claim.is_fixed();
    let released = deadline::removal(context.cancel, is_fixed, |cancel| {
        let context = Context { cancel, ..context };
        let Some(claim) = lease::hold_alone(context, lease)? else {
            return Ok(Released::Gone); // by a stop
        };
        match stop::release(context, &claim) {
            // By a stop that did not wait for us.
            Err(_) if context.store.read(&id)?.is_none() => Ok(Released::Gone),
            released => released,
        }
    });
    match released {
        Ok(Released::Gone | Released::Forgotten) => Settled::Gone,
        Ok(Released::Missing(failure)) | Err(failure) => {
            let stop = context.provider.stop_command(&lease.claim);
            Settled::Unremoved(failure.hint(stop))
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

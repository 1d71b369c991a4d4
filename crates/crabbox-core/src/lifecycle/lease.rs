//! Taking a lease, reusing one, giving one back.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::alone::{self, Alone};
use super::{Context, bounded};
use crate::claims::{
    Claim, Creator, Intent, OperationLock, Reclaim, RepoRoot, SlugChoice, State, Wait, binding,
    sweep,
};
use crate::provider::Workspace;
use crate::{Code, Failure};

/// What a new lease is to be.
#[derive(Debug, Clone)]
pub struct Terms {
    pub slug: SlugChoice,
    pub ttl: Duration,
    pub idle_timeout: Duration,
    pub keep: bool,
    /// For the claim, besides the provider's own.
    pub labels: BTreeMap<String, String>,
}

/// A lease in use. Nobody stops it as long as this lives.
#[derive(Debug)]
pub struct Lease {
    pub claim: Claim,
    pub origin: Origin,
    _lock: OperationLock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Fresh,
    Reused,
}

/// A sandbox that stays.
pub fn warmup(
    context: Context<'_>,
    workspace: &Workspace,
    terms: &Terms,
) -> Result<Claim, Failure> {
    take(context, workspace, terms, "crabbox warmup").map(|lease| lease.claim)
}

/// Recorded first, made second: a process that dies in between leaves a claim that the next one sweeps.
pub(super) fn take(
    context: Context<'_>,
    workspace: &Workspace,
    terms: &Terms,
    command: &str,
) -> Result<Lease, Failure> {
    context.provider.validate()?;
    sweep_orphans(context);
    let mut intended = context.provider.intend(workspace)?;
    intended.labels.extend(terms.labels.clone());
    let mut lock = context
        .store
        .operation(&intended.lease_id, command, Wait::none())?;
    let intent = Intent {
        lease_id: intended.lease_id,
        provider: context.name().to_owned(),
        provider_scope: intended.scope,
        repo_root: Some(RepoRoot::new(&workspace.root)?),
        idle_timeout_seconds: terms.idle_timeout.as_secs(),
        ttl_seconds: terms.ttl.as_secs(),
        keep: terms.keep,
        labels: intended.labels,
        creator: Creator::current(),
    };
    let claim = context
        .store
        .create(Claim::intended(intent, Timestamp::now()), &terms.slug)?;
    let made = context
        .provider
        .create(&claim, workspace, &lock, context.cancel)
        .and_then(|labels| context.store.replace(&claim, ready(&claim, labels)));
    let claim = match made {
        Ok(claim) => claim,
        Err(failure) => return Err(undo(context, &claim, failure)),
    };
    // What stays is for others as well, from now on. What goes with this run is nobody else's.
    if terms.keep {
        downgrade(context, &mut lock, &claim)?;
    }
    Ok(Lease {
        claim,
        origin: Origin::Fresh,
        _lock: lock,
    })
}

fn downgrade(context: Context<'_>, lock: &mut OperationLock, claim: &Claim) -> Result<(), Failure> {
    let lease = &claim.lease_id;
    let canceled = || context.canceled();
    let wait = Wait::until_canceled(&canceled);
    context.store.downgrade(lock, lease, wait)?;
    match context.store.read(lease)? {
        Some(now) if now.state == State::Ready => Ok(()),
        Some(_) | None => Err(released_meanwhile(claim)),
    }
}

fn released_meanwhile(claim: &Claim) -> Failure {
    let message = format!("lease {} was released meanwhile", claim.lease_id);
    Failure::new(Code::NotFound, message)
}

fn ready(claim: &Claim, labels: BTreeMap<String, String>) -> Claim {
    let mut claim = claim.ready();
    claim.labels.extend(labels);
    claim
}

/// A sandbox that was not made whole goes. What cannot be removed now keeps its claim, and is swept later.
fn undo(context: Context<'_>, claim: &Claim, failure: Failure) -> Failure {
    let removed = bounded::cleanup(|cancel| context.provider.remove(claim, &|| Ok(()), cancel))
        .and_then(|()| context.store.remove(claim));
    match removed {
        Ok(()) => failure,
        // Nothing can have been made.
        Err(_) if failure.code == Code::ProviderMissing => match context.store.remove(claim) {
            Ok(()) => failure,
            Err(other) => failure.and(&other),
        },
        Err(other) => {
            let lease = &claim.lease_id;
            let stop = context.provider.stop_command(claim);
            let kept = Failure::new(
                other.code,
                format!("cleanup of lease {lease} failed as well: {other}"),
            );
            failure.and(&kept.hint(stop))
        }
    }
}

/// Leases whose creator died before it was done with them. What cannot be removed now stays for the next time.
pub(super) fn sweep_orphans(context: Context<'_>) {
    let Ok(scan) = context.store.scan() else {
        return; // whoever needs the claims says what is wrong with them
    };
    // What was worked in may hold what only its user can judge.
    let by_hand = |claim: &Claim| {
        claim.state == State::Ready && context.provider.only_by_hand(claim).is_some()
    };
    let ours = |claim: &&Claim| claim.provider == context.name() && !by_hand(claim);
    for claim in sweep::orphans(&scan.claims, &Creator::liveness)
        .into_iter()
        .filter(ours)
    {
        sweep_orphan(context, claim);
    }
}

fn sweep_orphan(context: Context<'_>, claim: &Claim) {
    let lease = &claim.lease_id;
    let say = |line: String| context.report.line(&line);
    let warning =
        |failure| format!("warning: cannot remove lease {lease}, whose creator died: {failure}");
    let _lock = match alone::take(context, claim, "crabbox sweep") {
        Ok(Alone::Taken(lock)) => lock,
        Ok(Alone::Changed) => return,
        // Somebody works in it.
        Ok(Alone::InUse(_)) if claim.state == State::Ready => return,
        Ok(Alone::InUse(failure)) | Err(failure) => return say(warning(failure)),
    };
    let removed = context
        .provider
        .remove(claim, &|| Ok(()), context.cancel)
        .and_then(|()| context.store.remove(claim));
    say(match removed {
        Ok(()) => format!("removed lease={lease} reason=its creator died"),
        Err(failure) => warning(failure),
    });
}

/// A lease that exists, for this repository.
pub(super) fn reuse(
    context: Context<'_>,
    identifier: &str,
    workspace: &Workspace,
    reclaim: Reclaim,
    idle_timeout: Duration,
    command: &str,
) -> Result<Lease, Failure> {
    context.provider.validate()?;
    let repo = RepoRoot::new(&workspace.root)?;
    let found = context.find(identifier)?;
    binding::check(&found, &repo, reclaim)?;
    let canceled = || context.canceled();
    let tell = |line: &str| context.report.progress(line);
    let wait = Wait::until_canceled(&canceled).with_notice(&tell);
    let lock = context
        .store
        .operation_shared(&found.lease_id, command, wait)?;
    // It may have changed, or be gone, by the time it is our turn.
    let claim = context
        .store
        .read(&found.lease_id)?
        .ok_or_else(|| released_meanwhile(&found))?;
    let allowed = binding::check(&claim, &repo, reclaim)?;
    usable(context, &claim)?;
    let idle = idle_timeout.as_secs();
    let bound = binding::bind(&claim, &repo, allowed, Timestamp::now(), idle);
    let claim = store_use(context, claim, bound)?;
    Ok(Lease {
        claim,
        origin: Origin::Reused,
        _lock: lock,
    })
}

/// Writes a use down, unless only its time has changed, and that by so little that no deadline is the wiser.
fn store_use(context: Context<'_>, claim: Claim, used: Claim) -> Result<Claim, Failure> {
    let mut otherwise = used.clone();
    otherwise.last_used_at = claim.last_used_at;
    let only_later = otherwise == claim;
    let little = Duration::from_secs(claim.idle_timeout_seconds / 60);
    let later = used.last_used_at.duration_since(claim.last_used_at);
    if only_later && later.unsigned_abs() <= little {
        return Ok(claim);
    }
    context.store.replace(&claim, used)
}

/// A lease that was to go with its run, and stays. It was in use until now.
pub(super) fn keep(context: Context<'_>, lease: &Lease) -> Result<(), Failure> {
    let claim = &lease.claim;
    let idle = claim.idle_timeout_seconds;
    let kept = binding::touch(&claim.kept(), Timestamp::now(), idle);
    context.store.replace(claim, kept).map(drop)
}

/// The end of a use, which may have been a long one. A claim that somebody else has changed since is theirs.
pub(super) fn used(context: Context<'_>, lease: &Lease) -> Result<(), Failure> {
    let Some(claim) = context.store.read(&lease.claim.lease_id)? else {
        return Ok(());
    };
    let idle = claim.idle_timeout_seconds;
    let used = binding::touch(&claim, Timestamp::now(), idle);
    store_use(context, claim, used).map(drop)
}

fn usable(context: Context<'_>, claim: &Claim) -> Result<(), Failure> {
    let lease = &claim.lease_id;
    match claim.state {
        State::Ready => {}
        State::Creating => {
            let message = format!("lease {lease} is not ready: it is still being created");
            return Err(Failure::new(Code::NotFound, message).hint("crabbox list"));
        }
        State::Releasing => {
            let message = format!("lease {lease} is being released");
            let stop = context.provider.stop_command(claim);
            return Err(Failure::new(Code::NotFound, message).hint(stop));
        }
    }
    // Use renews the idle time, but not the time to live.
    if claim.is_expired(Timestamp::now()) {
        // Nobody else ends it, and what it holds can only be had by using it.
        if let Some(why) = context.provider.only_by_hand(claim) {
            let stop = context.provider.stop_command(claim);
            let line = format!(
                "warning: lease {lease} reached its TTL expiry and stays, because {why}; when you have them: {stop}"
            );
            context.report.line(&line);
            return Ok(());
        }
        let message = format!("lease {lease} reached its TTL expiry; command not run");
        return Err(Failure::new(Code::Expired, message)
            .hint("crabbox cleanup")
            .hint("crabbox run without --id makes a new one"));
    }
    Ok(())
}

/// The end of a lease that this process made. Whatever somebody else has changed since stays theirs.
pub(super) fn give_back(context: Context<'_>, lease: &Lease) -> Result<(), Failure> {
    let claim = &lease.claim;
    let changed = || {
        let message = format!("lease {} claim changed; retry", claim.lease_id);
        Failure::new(Code::ClaimChanged, message)
    };
    if context.store.read(&claim.lease_id)?.as_ref() != Some(claim) {
        return Err(changed());
    }
    bounded::cleanup(|cancel| context.provider.remove(claim, &|| Ok(()), cancel))?;
    context.store.remove(claim)
}

#[cfg(test)]
mod tests;

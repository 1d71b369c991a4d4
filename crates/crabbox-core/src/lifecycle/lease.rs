//! Taking a lease, reusing one, giving one back.
//!
//! The claim is written before the sandbox is created and replaced after each step (compare-and-swap on its revision), so
//! that a process that dies at any point leaves a record of what may exist. The next run sweeps such leases. The
//! operation lock is held from before the claim is written until the lease is dropped: no other process removes it
//! meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::exclusive::{self, Attempt};
use super::fixed::Replay;
use super::stop::{self, Released};
use super::sync::{LISTED, SYNCED};
use super::{Context, deadline, fixed, ready};
use crate::claims::{
    Claim, Creator, FIXED, Intent, LeaseId, OperationLock, Reclaim, RepoRoot, SlugChoice, State,
    Wait, binding, sweep,
};
use crate::provider::{
    CreateFailure, Demand, ExpiredLease, Labels, Left, MISSING, NewLease, Use, Workspace,
};
use crate::{Code, Failure};

/// What a new lease is to be.
#[derive(Debug, Clone)]
pub struct Terms {
    pub slug: SlugChoice,
    /// The id that the user chose.
    pub lease_id: Option<LeaseId>,
    pub ttl: Duration,
    pub idle_timeout: Duration,
    pub keep: bool,
    /// Whether it goes with its run, whatever comes of that.
    pub one_shot: bool,
    /// For the claim, besides the provider's own.
    pub labels: BTreeMap<String, String>,
}

/// A lease in use. No other process stops it as long as this lives.
#[derive(Debug)]
pub struct Lease {
    pub claim: Claim,
    pub origin: Origin,
    /// What the claim said about the tree in the sandbox, and what it is to say when it is written next.
    pub(super) synced: Option<String>,
    /// When the tree that was sent last was listed, see [`LISTED`].
    pub(super) listed: Option<i64>,
    lock: OperationLock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Fresh,
    Reused,
}

/// Whether others may run in a lease at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    Exclusive,
    Shared,
}

/// A sandbox that stays.
pub fn warmup(
    context: Context<'_>,
    workspace: &Workspace,
    terms: &Terms,
) -> Result<Claim, Failure> {
    let _cleanup = context.cancel.guard_cleanup();
    let demand = Demand::Warmup;
    let mut lease = take(context, workspace, terms, demand, "crabbox warmup")?;
    share(context, &mut lease)?;
    Ok(lease.claim)
}

/// Recorded first, created second: a process that dies in between leaves a claim that the next one sweeps.
pub(super) fn take(
    context: Context<'_>,
    workspace: &Workspace,
    terms: &Terms,
    demand: Demand,
    command: &str,
) -> Result<Lease, Failure> {
    context.provider.validate()?;
    context.provider.check_lifetime(terms.ttl, demand)?;
    let chosen = match fixed::replay(context, workspace, terms, demand, command)? {
        Replay::Known(lease) => return Ok(*lease),
        Replay::New(lock) => Some(lock),
        Replay::NotChosen => None,
    };
    sweep_orphans(context);
    let mut plan = context.provider.plan(&NewLease {
        workspace,
        lease_id: terms.lease_id.as_ref(),
        ttl: terms.ttl,
        one_shot: terms.one_shot,
    })?;
    plan.labels.extend(terms.labels.clone());
    if terms.lease_id.is_some() {
        plan.labels.insert(FIXED.to_owned(), "true".to_owned());
    }
    let lock = match chosen {
        Some(lock) => lock,
        None => context
            .store
            .operation(&plan.lease_id, command, Wait::none())?,
    };
    let intent = Intent {
        lease_id: plan.lease_id,
        provider: context.name().to_owned(),
        provider_scope: plan.scope,
        repo_root: Some(RepoRoot::new(&workspace.root)?),
        idle_timeout_seconds: terms.idle_timeout.as_secs(),
        ttl_seconds: terms.ttl.as_secs(),
        keep: terms.keep,
        labels: plan.labels,
        creator: Creator::current(),
    };
    let claim = context
        .store
        .create(Claim::intended(intent, Timestamp::now()), &terms.slug)?;
    let mut lease = Lease::new(claim, Origin::Fresh, lock);
    finish(context, workspace, &mut lease, demand, command)?;
    Ok(lease)
}

/// Creates what is recorded, or undoes it.
pub(super) fn finish(
    context: Context<'_>,
    workspace: &Workspace,
    lease: &mut Lease,
    demand: Demand,
    command: &str,
) -> Result<(), Failure> {
    create(context, workspace, lease, demand, command)
        .map_err(|failure| undo(context, &lease.claim, failure))
}

/// Creates what an earlier request with the same id has recorded, and may have created.
pub(super) fn resume(
    context: Context<'_>,
    workspace: &Workspace,
    lease: &mut Lease,
    demand: Demand,
    command: &str,
) -> Result<(), Failure> {
    let Err(failed) = create(context, workspace, lease, demand, command) else {
        return Ok(());
    };
    Err(match failed.failure.code {
        Code::Expired => lease.ended(context, *failed.failure),
        _ => keep_begun(context, &lease.claim, *failed.failure),
    })
}

impl Lease {
    pub(super) fn new(claim: Claim, origin: Origin, lock: OperationLock) -> Self {
        Self {
            claim,
            origin,
            synced: None,
            listed: None,
            lock,
        }
    }

    /// An earlier request with the same id made it, and its provider says that its time is over.
    pub(super) fn ended(&mut self, context: Context<'_>, failure: Failure) -> Failure {
        ended(context, &self.claim, &mut self.lock, failure, REPLAY)
    }
}

/// Creates the sandbox and waits until it is ready. The lease's claim is what is on disk at any time, so that a failure
/// can be undone at any time.
fn create(
    context: Context<'_>,
    workspace: &Workspace,
    lease: &mut Lease,
    demand: Demand,
    command: &str,
) -> Result<(), CreateFailure> {
    let created = context
        .provider
        .create(&lease.claim, workspace, &lease.lock, context.cancel)?;
    if let Some(notice) = &created.notice {
        context.report.line(notice);
    }
    if let Some(id) = created.lease_id.filter(|id| *id != lease.claim.lease_id) {
        let lock = context.store.operation(&id, command, Wait::none())?;
        lease.claim = context.store.rename(&lease.claim, id)?;
        lease.lock = lock;
    }
    // From now on the sandbox can be found by what the provider calls it, whatever becomes of this process.
    if !created.labels.is_empty() {
        let known = with_labels(&lease.claim, created.labels);
        lease.claim = context.store.replace(&lease.claim, known)?;
    }
    let labels = ready::wait(context, &lease.claim)?;
    let ready = with_labels(&lease.claim.ready(), labels);
    context.provider.check_time_left(&ready, demand)?;
    lease.claim = context.store.replace(&lease.claim, ready)?;
    Ok(())
}

fn with_labels(claim: &Claim, labels: Labels) -> Claim {
    let mut claim = claim.clone();
    claim.labels.extend(labels);
    claim
}

/// Opens a lease that was held exclusively to other commands, unless it goes with this run.
pub(super) fn share(context: Context<'_>, lease: &mut Lease) -> Result<(), Failure> {
    if lease.origin == Origin::Fresh && !lease.claim.keep {
        return Ok(());
    }
    let id = &lease.claim.lease_id;
    let canceled = || context.canceled();
    let wait = Wait::until_canceled(&canceled);
    context.store.downgrade(&mut lease.lock, id, wait)?;
    match context.store.read(id)? {
        Some(now) if now.state == State::Ready => Ok(()),
        Some(_) | None => Err(released_meanwhile(&lease.claim)),
    }
}

fn changed(claim: &Claim) -> Failure {
    let message = format!("lease {} claim changed; retry", claim.lease_id);
    Failure::new(Code::ClaimChanged, message)
}

/// Waits until no other command uses the lease. `None` when it was released meanwhile.
pub(super) fn hold_alone(
    context: Context<'_>,
    lease: &mut Lease,
) -> Result<Option<Claim>, Failure> {
    let id = &lease.claim.lease_id;
    let canceled = || context.canceled();
    let wait = Wait::until_canceled(&canceled);
    context.store.upgrade(&mut lease.lock, id, wait)?;
    context.store.read(id)
}

fn released_meanwhile(claim: &Claim) -> Failure {
    let message = format!("lease {} was released meanwhile", claim.lease_id);
    Failure::new(Code::NotFound, message)
}

/// A sandbox that was not created completely is removed. If that fails, the claim stays, and is swept later.
fn undo(context: Context<'_>, claim: &Claim, failed: CreateFailure) -> Failure {
    let CreateFailure { failure, left } = failed;
    let failure = *failure;
    if claim.is_fixed() && left == Left::MaybeSandbox {
        return keep_begun(context, claim, failure);
    }
    let removed = match left {
        Left::Nothing => Ok(()),
        Left::MaybeSandbox => deadline::cleanup(context.cancel, |cancel| {
            stop::remove(context, claim, cancel)
        }),
    };
    match removed.and_then(|()| context.store.remove(claim)) {
        Ok(()) => failure,
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

/// Without its record the id could be used for another request, while the sandbox of this one is there.
fn keep_begun(context: Context<'_>, claim: &Claim, failure: Failure) -> Failure {
    let id = &claim.lease_id;
    let stop = context.provider.stop_command(claim);
    failure.hint(format!(
        "repeat the request to continue with lease {id}, or remove it: {stop}"
    ))
}

/// Leases whose creator died before it was done with them. What cannot be removed now stays for the next time.
pub(super) fn sweep_orphans(context: Context<'_>) {
    let Ok(scan) = context.store.scan() else {
        return; // a command that needs the claims says what is wrong with them
    };
    // A sandbox that commands ran in may hold work that only its user can value.
    let by_hand = |claim: &Claim| {
        claim.state == State::Ready && context.provider.manual_removal_reason(claim).is_some()
    };
    let ours = |claim: &&Claim| context.is_ours(claim) && !by_hand(claim);
    for claim in sweep::orphans(&scan.claims, &Creator::liveness)
        .into_iter()
        .filter(ours)
    {
        // A chosen id belongs to its request, which finishes what it has begun when it is made again.
        if claim.is_fixed() && claim.state == State::Creating {
            continue;
        }
        sweep_orphan(context, claim);
    }
}

fn sweep_orphan(context: Context<'_>, claim: &Claim) {
    let lease = &claim.lease_id;
    let say = |line: String| context.report.line(&line);
    let warning =
        |failure| format!("warning: cannot remove lease {lease}, whose creator died: {failure}");
    let _lock = match exclusive::try_lock(context, claim, "crabbox sweep") {
        Ok(Attempt::Locked(lock)) => lock,
        Ok(Attempt::Changed) => return,
        // Another process runs a command in it.
        Ok(Attempt::InUse(_)) if claim.state == State::Ready => return,
        Ok(Attempt::InUse(failure)) | Err(failure) => return say(warning(failure)),
    };
    let removed =
        stop::remove(context, claim, context.cancel).and_then(|()| context.store.remove(claim));
    match removed {
        Ok(()) => say(format!("removed lease={lease} reason=its creator died")),
        Err(failure) => {
            let hints = failure.hints.clone();
            say(warning(failure));
            hints
                .into_iter()
                .for_each(|hint| say(format!("hint: {hint}")));
        }
    }
}

/// How a lease is used again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reuse<'a> {
    pub(super) identifier: &'a str,
    pub(super) reclaim: Reclaim,
    pub(super) idle_timeout: Duration,
    pub(super) sharing: Sharing,
    pub(super) demand: Demand,
}

/// A lease that exists, for this repository. The claim is written only after the provider has confirmed the sandbox.
pub(super) fn reuse(
    context: Context<'_>,
    workspace: &Workspace,
    request: Reuse<'_>,
    command: &str,
) -> Result<Lease, Failure> {
    context.provider.validate()?;
    let repo = RepoRoot::new(&workspace.root)?;
    let found = context.find(request.identifier)?;
    binding::check(&found, &repo, request.reclaim)?;
    let canceled = || context.canceled();
    let tell = |line: &str| context.report.progress(line);
    let wait = Wait::until_canceled(&canceled).with_notice(&tell);
    let id = &found.lease_id;
    let mut lock = match request.sharing {
        Sharing::Exclusive => context.store.operation(id, command, wait)?,
        Sharing::Shared if is_to_be_removed(context, &found) => {
            context.store.operation(id, command, wait)?
        }
        Sharing::Shared => context.store.operation_shared(id, command, wait)?,
    };
    // It may have changed, or be gone, by the time it is our turn.
    let claim = context
        .store
        .read(&found.lease_id)?
        .ok_or_else(|| released_meanwhile(&found))?;
    let allowed = binding::check(&claim, &repo, request.reclaim)?;
    usable(context, &claim, REUSE)?;
    let verified = context.verify(&claim, Use::Reuse)?;
    if let Some(why) = verified.fact(MISSING) {
        let is_forgotten = why.is_empty();
        return Err(missing(context, &claim, &mut lock, is_forgotten));
    }
    let labels = ready::wait(context, &claim)
        .map_err(|failure| ended(context, &claim, &mut lock, failure, REUSE))?;
    let idle = request.idle_timeout.as_secs();
    context
        .provider
        .check_time_left(&with_labels(&claim, labels.clone()), request.demand)?;
    let mut synced = None;
    // Another terminal may have written its own use down since: that is not an error.
    let claim = context.store.update(id, |now| {
        let allowed = match same_sandbox(&claim, now) {
            true => allowed,
            false => return Err(changed(now)),
        };
        let bound = binding::bind(now, &repo, allowed, Timestamp::now(), idle);
        let mut bound = with_labels(&bound, labels);
        synced = bound.labels.remove(SYNCED);
        Ok(unless_little_later(now, bound))
    })?;
    let listed = claim.labels.get(LISTED).and_then(|at| at.parse().ok());
    Ok(Lease {
        claim,
        origin: Origin::Reused,
        synced,
        listed,
        lock,
    })
}

/// A lease whose sandbox its provider does not know runs nothing. Its claim goes if the user said that this is enough.
pub(super) fn missing(
    context: Context<'_>,
    claim: &Claim,
    lock: &mut OperationLock,
    is_forgotten: bool,
) -> Failure {
    let absent = context.provider.absent(claim);
    if !is_forgotten {
        return absent;
    }
    let canceled = || context.canceled();
    let forgotten = context
        .store
        .upgrade(lock, &claim.lease_id, Wait::until_canceled(&canceled))
        .and_then(|()| context.store.remove(claim));
    match forgotten {
        Ok(()) => Failure {
            message: format!("{}; local claim forgotten, command not run", absent.message),
            hints: vec!["crabbox run without --id makes a new one".to_owned()],
            ..absent
        },
        Err(other) => absent.and(&other),
    }
}

/// What is told of a lease that was asked for when its time was over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    outcome: &'static str,
    instead: &'static str,
}

/// To `--id`.
pub(super) const REUSE: Told = Told {
    outcome: "command not run",
    instead: "crabbox run without --id makes a new one",
};

/// To the request that chose its id.
pub(super) const REPLAY: Told = Told {
    outcome: "its id is never used again",
    instead: "choose another id",
};

/// A lease that its provider says has expired, although its time here is not over, goes as one whose time is.
pub(super) fn ended(
    context: Context<'_>,
    claim: &Claim,
    lock: &mut OperationLock,
    failure: Failure,
    told: Told,
) -> Failure {
    let provider = context.provider;
    let goes = provider.spec().expired == ExpiredLease::Remove
        && provider.manual_removal_reason(claim).is_none();
    if failure.code != Code::Expired || !goes {
        return failure;
    }
    let canceled = || context.canceled();
    let id = &claim.lease_id;
    let now = context
        .store
        .upgrade(lock, id, Wait::until_canceled(&canceled))
        .and_then(|()| context.store.read(id));
    match now {
        Ok(Some(now)) if now.state != State::Releasing => {
            let message = format!("{}; {}", failure.message, told.outcome);
            remove_expired(context, &now, Failure { message, ..failure }, told)
        }
        Ok(_) => failure,
        Err(other) => failure.and(&other),
    }
}

/// Whether a claim that was written to since is still about the sandbox that was verified, and as usable.
fn same_sandbox(verified: &Claim, now: &Claim) -> bool {
    let facts = |claim: &Claim| {
        let mut labels = claim.labels.clone();
        labels.remove(SYNCED);
        labels.remove(LISTED);
        let owner = claim.repo_root.clone();
        (
            claim.provider.clone(),
            claim.provider_scope.clone(),
            claim.state,
            owner,
            labels,
        )
    };
    facts(verified) == facts(now)
}

/// A use, unless only its time has changed, and by too little to move a deadline.
fn unless_little_later(claim: &Claim, used: Claim) -> Claim {
    let mut otherwise = used.clone();
    otherwise.last_used_at = claim.last_used_at;
    let only_later = otherwise == *claim;
    let little = Duration::from_secs(claim.idle_timeout_seconds / 60);
    let later = used.last_used_at.duration_since(claim.last_used_at);
    match only_later && later.unsigned_abs() <= little {
        true => claim.clone(),
        false => used,
    }
}

/// A lease that was to go with its run, and stays. It was in use until now.
pub(super) fn keep(context: Context<'_>, lease: &Lease) -> Result<(), Failure> {
    let keep = |claim: &Claim| {
        let idle = claim.idle_timeout_seconds;
        let mut kept = binding::touch(&claim.kept(), Timestamp::now(), idle);
        kept.labels.extend(sync_labels(lease));
        Ok(kept)
    };
    context.store.update(&lease.claim.lease_id, keep).map(drop)
}

/// The end of a use, which may have been a long one. What another process has written to the claim since stays.
pub(super) fn used(context: Context<'_>, lease: &Lease) -> Result<(), Failure> {
    let touch = |claim: &Claim| {
        let idle = claim.idle_timeout_seconds;
        let mut used = binding::touch(claim, Timestamp::now(), idle);
        used.labels.extend(sync_labels(lease));
        Ok(unless_little_later(claim, used))
    };
    match context.store.update(&lease.claim.lease_id, touch) {
        Err(failure) if failure.code == Code::NotFound => Ok(()),
        updated => updated.map(drop),
    }
}

fn sync_labels(lease: &Lease) -> impl Iterator<Item = (String, String)> {
    let synced = lease.synced.clone();
    let listed = lease.listed.map(|at| at.to_string());
    let named = |name: &str, value: Option<String>| value.map(|value| (name.to_owned(), value));
    [named(SYNCED, synced), named(LISTED, listed)]
        .into_iter()
        .flatten()
}

fn is_to_be_removed(context: Context<'_>, claim: &Claim) -> bool {
    claim.state == State::Ready && has_expired(context, claim)
}

pub(super) fn usable(context: Context<'_>, claim: &Claim, told: Told) -> Result<(), Failure> {
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
        // Only its user ends it, and its files can only be had by using it.
        if let Some(why) = context.provider.manual_removal_reason(claim) {
            let stop = context.provider.stop_command(claim);
            let line = format!(
                "warning: lease {lease} reached its TTL expiry and stays, because {why}; when you have them: {stop}"
            );
            context.report.line(&line);
            return Ok(());
        }
        let expired = past_expiry(claim, told);
        if is_to_be_removed(context, claim) {
            return Err(remove_expired(context, claim, expired, told));
        }
        return Err(expired.hint("crabbox cleanup").hint(told.instead));
    }
    Ok(())
}

fn past_expiry(claim: &Claim, told: Told) -> Failure {
    let lease = &claim.lease_id;
    let message = format!("lease {lease} reached its TTL expiry; {}", told.outcome);
    Failure::new(Code::Expired, message)
}

/// Whether an earlier request with the same id, which did not come to its end, can still be finished.
pub(super) fn resumable(context: Context<'_>, claim: &Claim) -> Result<(), Failure> {
    match has_expired(context, claim) {
        true => {
            let expired = past_expiry(claim, REPLAY);
            Err(remove_expired(context, claim, expired, REPLAY))
        }
        false => Ok(()),
    }
}

/// Whether the provider's sandbox ended with the lease's time to live.
pub(super) fn has_expired(context: Context<'_>, claim: &Claim) -> bool {
    let removes = context.provider.spec().expired == ExpiredLease::Remove;
    removes && claim.is_expired(Timestamp::now())
}

fn remove_expired(context: Context<'_>, claim: &Claim, expired: Failure, told: Told) -> Failure {
    match stop::release(context, claim) {
        Ok(Released::Gone | Released::Forgotten) => expired.hint(told.instead),
        Ok(Released::Missing(other)) | Err(other) => {
            let stop = context.provider.stop_command(claim);
            expired.and(&other).hint(stop)
        }
    }
}

/// The end of a lease that this process created. A claim that another process has changed since is left alone.
pub(super) fn give_back(context: Context<'_>, lease: &Lease) -> Result<(), Failure> {
    let claim = &lease.claim;
    if context.store.read(&claim.lease_id)?.as_ref() != Some(claim) {
        return Err(changed(claim));
    }
    deadline::cleanup(context.cancel, |cancel| {
        stop::remove(context, claim, cancel)
    })?;
    context.store.remove(claim)
}

#[cfg(test)]
mod tests;

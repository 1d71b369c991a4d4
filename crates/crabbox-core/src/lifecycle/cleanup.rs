//! The end of leases whose time is over.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::Context;
use super::exclusive::{self, Attempt};
use super::prune;
use super::stop::{self, Released};
use crate::Failure;
use crate::claims::{Claim, Creator, State, Wait, sweep};
use crate::provider::{BusyLease, EXPIRED, MISSING, Provider, Use};

/// What other processes say of who has the lease.
const COMMAND: &str = "crabbox cleanup";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    No,
    Yes,
}

/// What a sweep did. One failure does not keep the others from their end.
#[derive(Debug, Default)]
pub struct Cleaned {
    pub swept: Vec<Swept>,
    /// Sandboxes, with their claims.
    pub removed: usize,
    /// Claims, with their sandboxes or alone.
    pub claims_removed: usize,
    pub checked: usize,
    pub failures: Vec<Failure>,
}

/// What became of one claim, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    pub subject: Subject,
    pub action: Action,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Claim(Box<Claim>),
    /// A damaged claim file.
    File(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Delete,
    WouldDelete,
    /// Only the claim, because the user knows that the sandbox is gone.
    Forget,
    Skip,
}

pub fn cleanup(context: Context<'_>, dry_run: DryRun) -> Result<Cleaned, Failure> {
    let scan = context.store.scan()?;
    let lost = prune::lost_claims(context, &scan.claims);
    let mut cleaned = Cleaned::default();
    for problem in scan.problems {
        cleaned.swept.push(Swept {
            subject: Subject::File(problem.file),
            action: Action::Skip,
            reason: problem.message,
        });
    }
    let mut busy = Vec::new();
    for claim in scan
        .claims
        .into_iter()
        .filter(|claim| context.is_ours(claim))
    {
        if context.canceled() {
            break;
        }
        cleaned.checked += 1;
        let is_lost = lost.contains(&claim.lease_id);
        let swept = match is_lost && !claim.is_foreign() {
            true => prune::prune_one(context, &claim, dry_run).map(Some),
            false => sweep_one(context, &claim, dry_run),
        };
        match swept.transpose() {
            Some(swept) => cleaned.note(context, claim, swept),
            None => busy.push(claim),
        }
    }
    // Their commands may take long: the others are done by now.
    for claim in busy {
        let swept = sweep_when_free(context, &claim);
        cleaned.note(context, claim, swept);
    }
    Ok(cleaned)
}

impl Cleaned {
    fn note(
        &mut self,
        context: Context<'_>,
        claim: Claim,
        swept: Result<(Action, String), Failure>,
    ) {
        let swept = swept.map_err(|failure| stop::unresolved(context, &claim, failure));
        let (action, reason) = swept.unwrap_or_else(|failure| {
            let reason = failure.to_string();
            self.failures.push(failure);
            (Action::Skip, reason)
        });
        self.removed += usize::from(action == Action::Delete);
        self.claims_removed += usize::from(matches!(action, Action::Delete | Action::Forget));
        self.swept.push(Swept {
            subject: Subject::Claim(Box::new(claim)),
            action,
            reason,
        });
    }
}

/// What was done with one lease; `None` where a command in it has to be waited for.
fn sweep_one(
    context: Context<'_>,
    claim: &Claim,
    dry_run: DryRun,
) -> Result<Option<(Action, String)>, Failure> {
    let reason = match due(context, claim)? {
        Due::Yes(reason) => reason,
        Due::No(why) => return Ok(Some((Action::Skip, why))),
    };
    if dry_run == DryRun::Yes {
        return Ok(Some((Action::WouldDelete, reason.to_owned())));
    }
    let skip = |why: &str| Ok(Some((Action::Skip, why.to_owned())));
    let _lock = match exclusive::try_lock(context, claim, COMMAND)? {
        Attempt::Locked(lock) => lock,
        Attempt::InUse(_) if context.provider.spec().busy == BusyLease::Wait => return Ok(None),
        // The process that uses it has renewed it, or will.
        Attempt::InUse(_) => return skip("in use"),
        Attempt::Changed => return skip("changed meanwhile"),
    };
    release(context, claim, reason).map(Some)
}

/// The command that was waited for may have renewed the lease, or ended it.
fn sweep_when_free(context: Context<'_>, claim: &Claim) -> Result<(Action, String), Failure> {
    let canceled = || context.canceled();
    let tell = |line: &str| context.report.line(line);
    let wait = Wait::until_canceled(&canceled).with_notice(&tell);
    let _lock = context.store.operation(&claim.lease_id, COMMAND, wait)?;
    let now = context.store.read(&claim.lease_id)?;
    let Some(now) = now.filter(|now| context.is_ours(now)) else {
        return Ok((Action::Skip, "released meanwhile".to_owned()));
    };
    match due(context, &now)? {
        Due::Yes(reason) => release(context, &now, reason),
        Due::No(why) => Ok((Action::Skip, why)),
    }
}

/// Whether a lease is to go, and why or why not.
enum Due {
    Yes(&'static str),
    No(String),
}

fn due(context: Context<'_>, claim: &Claim) -> Result<Due, Failure> {
    // Before anything is said of it: a preview must not promise to delete a sandbox that is not ours.
    let sandbox = context.verify(claim, Use::Inspect)?;
    let missing = sandbox.fact(MISSING);
    if let Some(why) = missing.filter(|why| !why.is_empty()) {
        return Ok(Due::No(why.to_owned()));
    }
    // It knows nothing of our rules, and its user did not ask for them.
    if claim.is_foreign() {
        let stop = context.provider.stop_command(claim);
        return Ok(Due::No(format!("kept by another program; {stop}")));
    }
    let reason = match (reason(claim), missing) {
        (Some(reason), _) => reason,
        (None, Some(_)) => "missing",
        (None, None) if sandbox.fact(EXPIRED).is_some() => "expired",
        (None, None) => return Ok(Due::No(why_not(claim).to_owned())),
    };
    // A release that the user began is finished.
    if claim.state != State::Releasing
        && let Some(why) = context.provider.manual_removal_reason(claim)
    {
        let stop = context.provider.stop_command(claim);
        return Ok(Due::No(format!("{why}; {stop}")));
    }
    Ok(Due::Yes(reason))
}

fn release(context: Context<'_>, claim: &Claim, reason: &str) -> Result<(Action, String), Failure> {
    Ok(match stop::release(context, claim)? {
        Released::Gone => (Action::Delete, reason.to_owned()),
        Released::Forgotten => (Action::Forget, reason.to_owned()),
        Released::Missing(failure) => (Action::Skip, failure.to_string()),
    })
}

impl Swept {
    /// For people, in the words that the provider has for a lease.
    pub fn line(&self, provider: &dyn Provider) -> String {
        let subject = match &self.subject {
            Subject::Claim(claim) => provider.swept_subject(claim),
            Subject::File(name) => format!("file={name}"),
        };
        format!("{} {subject} reason={}", self.action, self.reason)
    }
}

/// For people.
impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Claim(claim) => write!(f, "{} lease={}", self.action, claim.lease_id)?,
            Subject::File(name) => write!(f, "{} file={name}", self.action)?,
        }
        write!(f, " reason={}", self.reason)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delete => "delete",
            Self::WouldDelete => "would delete",
            Self::Forget => "remove",
            Self::Skip => "skip",
        })
    }
}

fn reason(claim: &Claim) -> Option<&'static str> {
    if sweep::is_orphan(claim, &Creator::liveness) {
        return Some("its creator died");
    }
    // By a process that was killed or failed: one that is still at it holds the lock.
    if claim.state == State::Releasing {
        return Some("release interrupted");
    }
    claim.due(Timestamp::now()).map(|reason| reason.as_str())
}

fn why_not(claim: &Claim) -> &'static str {
    match claim.deadline() {
        Some(_) => "idle timeout not reached",
        None => "idle timeout disabled",
    }
}

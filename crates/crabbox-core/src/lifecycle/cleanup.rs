//! The end of leases whose time is over.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::Context;
use super::exclusive::{self, Attempt};
use super::prune;
use super::stop::{self, Released};
use crate::Failure;
use crate::claims::{Claim, Creator, State, sweep};
use crate::provider::{MISSING, Provider, Use};

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
            true => prune::prune_one(context, &claim, dry_run),
            false => sweep_one(context, &claim, dry_run),
        };
        let swept = swept.map_err(|failure| stop::unresolved(context, &claim, failure));
        let (action, reason) = swept.unwrap_or_else(|failure| {
            let reason = failure.to_string();
            cleaned.failures.push(failure);
            (Action::Skip, reason)
        });
        cleaned.removed += usize::from(action == Action::Delete);
        cleaned.claims_removed += usize::from(matches!(action, Action::Delete | Action::Forget));
        cleaned.swept.push(Swept {
            subject: Subject::Claim(Box::new(claim)),
            action,
            reason,
        });
    }
    Ok(cleaned)
}

/// What was done with one lease.
fn sweep_one(
    context: Context<'_>,
    claim: &Claim,
    dry_run: DryRun,
) -> Result<(Action, String), Failure> {
    let skip = |why: &str| Ok((Action::Skip, why.to_owned()));
    // Before anything is said of it: a preview must not promise to delete a sandbox that is not ours.
    let sandbox = context.verify(claim, Use::Inspect)?;
    let missing = sandbox.fact(MISSING);
    if let Some(why) = missing.filter(|why| !why.is_empty()) {
        return skip(why);
    }
    // It knows nothing of our rules, and its user did not ask for them.
    if claim.is_foreign() {
        let stop = context.provider.stop_command(claim);
        return skip(&format!("kept by another program; {stop}"));
    }
    let reason = match (reason(claim), missing) {
        (Some(reason), _) => reason,
        (None, Some(_)) => "missing",
        (None, None) => return skip(why_not(claim)),
    };
    // A release that the user began is finished.
    if claim.state != State::Releasing
        && let Some(why) = context.provider.manual_removal_reason(claim)
    {
        let stop = context.provider.stop_command(claim);
        return skip(&format!("{why}; {stop}"));
    }
    if dry_run == DryRun::Yes {
        return Ok((Action::WouldDelete, reason.to_owned()));
    }
    let _lock = match exclusive::try_lock(context, claim, "crabbox cleanup")? {
        Attempt::Locked(lock) => lock,
        // The process that uses it has renewed it, or will.
        Attempt::InUse(_) => return skip("in use"),
        Attempt::Changed => return skip("changed meanwhile"),
    };
    match stop::release(context, claim)? {
        Released::Gone => Ok((Action::Delete, reason.to_owned())),
        Released::Forgotten => Ok((Action::Forget, reason.to_owned())),
        Released::Missing(failure) => skip(&failure.to_string()),
    }
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

//! The end of leases whose time is over.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::alone::{self, Alone};
use super::{Context, stop};
use crate::Failure;
use crate::claims::{Claim, Creator, State, sweep};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    No,
    Yes,
}

/// What a sweep did. One failure does not keep the others from their end.
#[derive(Debug, Default)]
pub struct Cleaned {
    pub swept: Vec<Swept>,
    pub removed: usize,
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
    /// A file that is no claim.
    File(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Delete,
    WouldDelete,
    Skip,
}

pub fn cleanup(context: Context<'_>, dry_run: DryRun) -> Result<Cleaned, Failure> {
    let scan = context.store.scan()?;
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
        .filter(|claim| claim.provider == context.name())
    {
        if context.canceled() {
            break;
        }
        cleaned.checked += 1;
        let (action, reason) = sweep_one(context, &claim, dry_run).unwrap_or_else(|failure| {
            let reason = failure.to_string();
            cleaned.failures.push(failure);
            (Action::Skip, reason)
        });
        cleaned.removed += usize::from(action == Action::Delete);
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
    let Some(reason) = reason(claim) else {
        return skip(why_not(claim));
    };
    // Whose end was begun by its user is not kept for that user.
    if claim.state != State::Releasing
        && let Some(why) = context.provider.only_by_hand(claim)
    {
        let stop = context.provider.stop_command(claim);
        return skip(&format!("{why}; {stop}"));
    }
    if dry_run == DryRun::Yes {
        return Ok((Action::WouldDelete, reason.to_owned()));
    }
    let _lock = match alone::take(context, claim, "crabbox cleanup")? {
        Alone::Taken(lock) => lock,
        // Whoever uses it now has renewed it, or will.
        Alone::InUse(_) => return skip("in use"),
        Alone::Changed => return skip("changed meanwhile"),
    };
    stop::release(context, claim)?;
    Ok((Action::Delete, reason.to_owned()))
}

/// For people.
impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Delete => "delete",
            Action::WouldDelete => "would delete",
            Action::Skip => "skip",
        };
        match &self.subject {
            Subject::Claim(claim) => write!(f, "{action} lease={}", claim.lease_id)?,
            Subject::File(name) => write!(f, "{action} file={name}")?,
        }
        write!(f, " reason={}", self.reason)
    }
}

fn reason(claim: &Claim) -> Option<&'static str> {
    if sweep::is_orphan(claim, &Creator::liveness) {
        return Some("its creator died");
    }
    // By one that was killed or failed: whoever is still at it holds the lock.
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

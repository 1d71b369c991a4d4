//! The end of leases whose time is over.

use jiff::Timestamp;

use super::{Context, stop};
use crate::Failure;
use crate::claims::{Claim, Creator, Wait, sweep};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    No,
    Yes,
}

/// What a sweep did. One failure does not keep the others from their end.
#[derive(Debug, Default)]
pub struct Cleaned {
    pub lines: Vec<String>,
    pub removed: usize,
    pub checked: usize,
    pub failures: Vec<Failure>,
}

pub fn cleanup(context: Context<'_>, dry_run: DryRun) -> Result<Cleaned, Failure> {
    let scan = context.store.scan()?;
    let mut cleaned = Cleaned::default();
    for problem in &scan.problems {
        let line = format!("skip file={} reason={}", problem.file, problem.message);
        cleaned.lines.push(line);
    }
    for claim in scan
        .claims
        .iter()
        .filter(|claim| claim.provider == context.name())
    {
        if context.canceled() {
            break;
        }
        cleaned.checked += 1;
        match sweep_one(context, claim, dry_run) {
            Ok(line) => {
                cleaned.removed += usize::from(line.starts_with("delete "));
                cleaned.lines.push(line);
            }
            Err(failure) => {
                let line = format!("skip lease={} reason={failure}", claim.lease_id);
                cleaned.lines.push(line);
                cleaned.failures.push(failure);
            }
        }
    }
    if dry_run == DryRun::No {
        cleaned.lines.push(format!(
            "{} cleanup removed={} checked={}",
            context.name(),
            cleaned.removed,
            cleaned.checked
        ));
    }
    Ok(cleaned)
}

/// What is to be said of one lease, after it was done.
fn sweep_one(context: Context<'_>, claim: &Claim, dry_run: DryRun) -> Result<String, Failure> {
    let lease = &claim.lease_id;
    let Some(reason) = reason(claim) else {
        return Ok(format!("skip lease={lease} reason={}", why_not(claim)));
    };
    if let Some(why) = context.provider.only_by_hand(claim) {
        let stop = context.provider.spec().stop_command(claim);
        return Ok(format!("skip lease={lease} reason={why}; {stop}"));
    }
    if dry_run == DryRun::Yes {
        return Ok(format!("would delete lease={lease} reason={reason}"));
    }
    // Whoever uses it now has renewed it, or will.
    let Ok(_lock) = context
        .store
        .operation(lease, "crabbox cleanup", Wait::not_at_all())
    else {
        return Ok(format!("skip lease={lease} reason=in use"));
    };
    match context.store.read(lease)? {
        Some(again) if again == *claim => {}
        Some(_) | None => return Ok(format!("skip lease={lease} reason=changed meanwhile")),
    }
    stop::release(context, claim)?;
    Ok(format!("delete lease={lease} reason={reason}"))
}

fn reason(claim: &Claim) -> Option<&'static str> {
    if sweep::is_orphan(claim, &Creator::fate) {
        return Some("its creator died");
    }
    claim.due(Timestamp::now()).map(|reason| reason.as_str())
}

fn why_not(claim: &Claim) -> &'static str {
    match claim.deadline() {
        Some(_) => "idle timeout not reached",
        None => "idle timeout disabled",
    }
}

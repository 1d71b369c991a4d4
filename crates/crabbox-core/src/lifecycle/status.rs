//! One lease, now or when it is ready.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Context;
use super::list::with_claim_state;
use crate::claims::Claim;
use crate::provider::{Observed, Phase};
use crate::{Code, Failure};

/// A label of what was observed: why the provider cannot say more.
const ERROR: &str = "error";
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// What a look is given even if it begins at the deadline.
const MIN_LOOK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    Once,
    UntilReady(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub claim: Claim,
    pub observed: Observed,
    pub idle_for: Duration,
}

/// The last look, and whether it is what was waited for.
pub fn status(
    context: Context<'_>,
    identifier: &str,
    watch: Watch,
) -> Result<(Status, Result<(), Failure>), Failure> {
    let deadline = match watch {
        Watch::Once => None,
        Watch::UntilReady(timeout) => Some(Instant::now() + timeout),
    };
    let Some(deadline) = deadline else {
        return look(context, identifier).map(|now| (now, Ok(())));
    };
    loop {
        match look_until(context, identifier, deadline) {
            Ok(now) => match now.observed.phase {
                Phase::Ready => return Ok((now, Ok(()))),
                Phase::Over | Phase::Unknown => {
                    let failure = terminal(identifier, &now.observed);
                    return Ok((now, Err(failure)));
                }
                Phase::NotYet | Phase::Absent if Instant::now() >= deadline => {
                    return Ok((now, Err(late(identifier))));
                }
                Phase::NotYet | Phase::Absent => {}
            },
            Err(failure) if !is_passing(&failure) => return Err(failure),
            Err(failure) if Instant::now() >= deadline => {
                return Err(Failure {
                    causes: vec![failure.to_string()],
                    hints: failure.hints,
                    ..late(identifier)
                });
            }
            // The next look may be answered.
            Err(_) => {}
        }
        let next = next_look(Instant::now(), deadline);
        if let Some(reason) = context.cancel.sleep_until(next) {
            return Err(reason.canceled("canceled while waiting"));
        }
    }
}

/// The provider gave no answer, which says nothing about the lease.
fn is_passing(failure: &Failure) -> bool {
    matches!(failure.code, Code::Provider | Code::Timeout)
}

fn terminal(identifier: &str, observed: &Observed) -> Failure {
    let lease = identifier.escape_debug();
    let state = &observed.state;
    let message = format!("lease {lease} reached terminal state {state} before ready");
    let mut failure = Failure::new(Code::Timeout, message);
    failure.causes.extend(observed.labels.get(ERROR).cloned());
    failure
}

/// Never after the deadline.
fn next_look(now: Instant, deadline: Instant) -> Instant {
    deadline.min(now + POLL_INTERVAL)
}

fn late(identifier: &str) -> Failure {
    let lease = identifier.escape_debug();
    let message = format!("timed out waiting for {lease} to become ready");
    Failure::new(Code::Timeout, message)
}

/// A look that hangs does not outlast the wait, except for the time that any look needs.
fn look_until(
    context: Context<'_>,
    identifier: &str,
    deadline: Instant,
) -> Result<Status, Failure> {
    let cancel = context
        .cancel
        .until(deadline.max(Instant::now() + MIN_LOOK_TIMEOUT));
    let bounded = Context {
        cancel: &cancel,
        ..context
    };
    look(bounded, identifier)
}

fn look(context: Context<'_>, identifier: &str) -> Result<Status, Failure> {
    let claim = context.find(identifier)?;
    let now = Timestamp::now();
    let observed = context
        .provider
        .observe(std::slice::from_ref(&claim), context.cancel)?
        .pop()
        .map(|observed| with_claim_state(context, &claim, observed, now));
    match observed {
        Some(observed) if observed.phase != Phase::Absent => Ok(Status {
            idle_for: claim.idle_for(now),
            claim,
            observed,
        }),
        Some(_) | None => {
            let stop = context.provider.stop_command(&claim);
            Err(context.provider.absent(&claim).hint(stop))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sleep_is_longer_than_the_time_that_is_left() {
        let now = Instant::now();
        for (left, sleep) in [(0, 0), (1, 1), (1999, 1999), (2000, 2000), (300_000, 2000)] {
            let at = |ms| now + Duration::from_millis(ms);
            assert_eq!(next_look(now, at(left)), at(sleep), "{left}");
        }
    }
}

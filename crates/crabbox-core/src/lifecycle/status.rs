//! One lease, now or when it is ready.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Context;
use super::list::in_its_state;
use crate::claims::Claim;
use crate::provider::{Observed, Phase};
use crate::{Code, Failure};

const POLL: Duration = Duration::from_secs(2);

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

pub fn status(context: Context<'_>, identifier: &str, watch: Watch) -> Result<Status, Failure> {
    let deadline = match watch {
        Watch::Once => None,
        Watch::UntilReady(patience) => Some(Instant::now() + patience),
    };
    loop {
        let now = look(context, identifier)?;
        let Some(deadline) = deadline else {
            return Ok(now);
        };
        let lease = &now.claim.lease_id;
        match now.observed.phase {
            Phase::Ready => return Ok(now),
            Phase::Over | Phase::Unknown => {
                let state = &now.observed.state;
                let message = format!("lease {lease} reached terminal state {state} before ready");
                return Err(Failure::new(Code::Timeout, message));
            }
            Phase::NotYet | Phase::Absent => {}
        }
        if Instant::now() >= deadline {
            let message = format!("timed out waiting for {lease} to become ready");
            return Err(Failure::new(Code::Timeout, message));
        }
        let next = next_look(Instant::now(), deadline);
        if context.cancel.sleep_until(next).is_some() {
            return Err(Failure::new(Code::Canceled, "canceled while waiting"));
        }
    }
}

/// Never after the deadline.
fn next_look(now: Instant, deadline: Instant) -> Instant {
    deadline.min(now + POLL)
}

fn look(context: Context<'_>, identifier: &str) -> Result<Status, Failure> {
    let claim = context.find(identifier)?;
    let now = Timestamp::now();
    let observed = context
        .provider
        .observe(std::slice::from_ref(&claim), context.cancel)?
        .pop()
        .map(|observed| in_its_state(context, &claim, observed, now));
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

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
            Phase::Over => {
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
        if context
            .cancel
            .sleep_until(deadline.min(Instant::now() + POLL))
            .is_some()
        {
            return Err(Failure::new(Code::Canceled, "canceled while waiting"));
        }
    }
}

fn look(context: Context<'_>, identifier: &str) -> Result<Status, Failure> {
    let claim = context.find(identifier)?;
    let now = Timestamp::now();
    let observed = context
        .provider
        .observe(std::slice::from_ref(&claim), context.cancel)?
        .pop()
        .map(|observed| in_its_state(&claim, observed, now));
    match observed {
        Some(observed) if observed.phase != Phase::Absent => Ok(Status {
            idle_for: claim.idle_for(now),
            claim,
            observed,
        }),
        Some(_) | None => {
            let stop = context.provider.spec().stop_command(&claim);
            Err(context.provider.absent(&claim).hint(stop))
        }
    }
}

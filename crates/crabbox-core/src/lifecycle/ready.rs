//! Waiting until commands can run in a sandbox.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Context;
use super::run::canceled;
use crate::claims::Claim;
use crate::process::Cancel;
use crate::provider::{Labels, Readiness};
use crate::timing::format_ms;
use crate::{Code, Failure};

/// Returns labels for the claim. The provider's timeout and the end of the lease are limits, whichever comes first.
pub(super) fn wait(context: Context<'_>, claim: &Claim) -> Result<Labels, Failure> {
    let started = Instant::now();
    let deadline = limit(context, claim).and_then(|limit| started.checked_add(limit));
    let cancel = match deadline {
        Some(deadline) => context.cancel.until(deadline),
        None => context.cancel.clone(),
    };
    let mut waiting_for = String::new();
    loop {
        let (stage, retry_after) = match poll(context, claim, &cancel) {
            Ok(Readiness::Ready(labels)) => return Ok(labels),
            Ok(Readiness::NotYet {
                waiting_for,
                retry_after,
            }) => (waiting_for, retry_after),
            // The provider was still asking when the time was over.
            Err(failure) if failure.code == Code::Timeout && is_over(deadline) => {
                let late = late(claim, started, &waiting_for);
                return Err(Failure {
                    causes: vec![failure.to_string()],
                    hints: failure.hints,
                    ..late
                });
            }
            Err(failure) => return Err(failure),
        };
        waiting_for = stage;
        if is_over(deadline) {
            return Err(late(claim, started, &waiting_for));
        }
        let next = next_poll(Instant::now(), retry_after, deadline);
        if let Some(reason) = context.cancel.sleep_until(next) {
            return Err(canceled(reason));
        }
    }
}

fn poll(context: Context<'_>, claim: &Claim, cancel: &Cancel) -> Result<Readiness, Failure> {
    let ready = context.provider.poll_ready(claim, cancel);
    match context.cancel.reason() {
        Some(reason) => Err(canceled(reason)),
        None => ready,
    }
}

fn limit(context: Context<'_>, claim: &Claim) -> Option<Duration> {
    let left = claim.expires_at.map(|end| {
        let left = end.duration_since(Timestamp::now());
        Duration::try_from(left).unwrap_or(Duration::ZERO)
    });
    let own = context.provider.ready_timeout();
    own.into_iter().chain(left).min()
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Never after the deadline.
fn next_poll(now: Instant, retry_after: Duration, deadline: Option<Instant>) -> Instant {
    let next = now + retry_after;
    deadline.map_or(next, |deadline| deadline.min(next))
}

fn late(claim: &Claim, started: Instant, waiting_for: &str) -> Failure {
    let stage = match waiting_for {
        "" => String::new(),
        stage => format!(" (waiting for {stage})"),
    };
    let message = format!(
        "lease {} was not ready within {}{stage}",
        claim.lease_id,
        format_ms(started.elapsed())
    );
    Failure::new(Code::Timeout, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pause_is_longer_than_the_time_that_is_left() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let second = Duration::from_secs(1);
        assert_eq!(next_poll(now, second, None), at(1000));
        assert_eq!(next_poll(now, second, Some(at(300))), at(300));
        assert_eq!(next_poll(now, second, Some(at(3000))), at(1000));
    }
}

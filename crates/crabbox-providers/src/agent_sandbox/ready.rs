//! The wait for a new lease: what each look at it may say, and when the next one is due.
//!
//! Two stages have time limits of their own, until a Sandbox is bound and until its pod is ready. A look that fails while
//! the API server restarts counts towards the limit of the stage and is tried again; every other failure ends the wait.

use std::time::{Duration, Instant};

use crabbox_core::claims::{Claim, LeaseId};
use crabbox_core::process::Cancel;
use crabbox_core::provider::Readiness;
use crabbox_core::timing::format_ms;
use crabbox_core::{Code, Failure};

use super::chain::{self, Stage, State};
use super::objects::Seen;
use super::proof::over_failure;
use super::{AgentSandbox, labels, lock};

/// How long an API server that comes back may deny what is allowed.
const RESTART_TIMEOUT: Duration = Duration::from_secs(15);

/// How the denial of what every look asks for is told.
const GET_CLAIMS: &str = "get sandboxclaims ";

/// After so many looks a claim is watched, for so long at a time.
const WATCH_FROM: u32 = 6;
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Between a watch and the next look, for a server that ends each watch at once.
const WATCH_DELAY: Duration = Duration::from_millis(50);

/// How far the readiness of a lease has come.
#[derive(Debug, Clone)]
pub(super) struct ReadyWait {
    lease: LeaseId,
    stage: Stage,
    /// What each stage has taken so far, and until when.
    times: StageTimes,
    at: Instant,
    looks: u32,
    pub(super) sandbox: Option<String>,
    /// When the cluster last did not answer.
    unanswered: Option<Instant>,
    /// When it last did.
    answered: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Default)]
struct StageTimes {
    sandbox: Duration,
    pod: Duration,
}

impl StageTimes {
    pub(super) fn of(&mut self, stage: Stage) -> &mut Duration {
        match stage {
            Stage::Sandbox => &mut self.sandbox,
            Stage::Pod => &mut self.pod,
        }
    }
}

/// The readiness poll of a lease: how often it was looked at, and the time left.
struct PollState {
    looks: u32,
    /// Of the stage's time; `None` where it has no limit.
    left: Option<Duration>,
}

impl AgentSandbox {
    pub(super) fn poll(&self, claim: &Claim, cancel: &Cancel) -> Result<Readiness, Failure> {
        if let Some(chain) = self.recent_proof(claim) {
            return Ok(Readiness::Ready(chain.labels()));
        }
        let (seen, state) = match self.look(claim, cancel) {
            Ok(looked) => looked,
            // The cluster does not answer for a moment.
            Err(failure) if self.is_temporary(claim, &failure) => {
                let why = failure.to_string();
                let next = self.count_look(claim, Stage::Sandbox, &why, None)?;
                self.note_unanswered(&failure);
                let pause = chain::poll_interval(next.looks.max(9));
                return Ok(Readiness::NotYet {
                    waiting_for: why,
                    retry_after: next.left.map_or(pause, |left| left.min(pause)),
                });
            }
            Err(failure) => return Err(failure),
        };
        match state {
            Some(State::Ready(chain)) => Ok(Readiness::Ready(chain.labels())),
            Some(State::Over(over, why)) => Err(over_failure(claim, over, &why)),
            Some(State::Waiting(stage, why)) => {
                let next = self.count_look(claim, stage, &why, Some(&seen))?;
                Ok(Readiness::NotYet {
                    waiting_for: why,
                    retry_after: self.retry_delay(claim, stage, &seen, &next, cancel),
                })
            }
            Some(State::LookAt { .. } | State::Select(_)) | None => Err(self.missing(claim)),
        }
    }

    /// Whether the next look may find what this one could not. An API server that has just come back denies what its
    /// authorizer has not read yet: also what it allowed a moment ago, where no look fell into the time that it was away.
    fn is_temporary(&self, claim: &Claim, failure: &Failure) -> bool {
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < RESTART_TIMEOUT);
        let wait = self.waiting(claim);
        match failure.code {
            Code::Provider => true,
            Code::Denied => {
                // Who may create a claim may look at it, as far as anyone can tell before the first look.
                let created = *lock(&self.created);
                let answered = wait.as_ref().and_then(|wait| wait.answered).or(created);
                let was_allowed = failure.message.contains(GET_CLAIMS);
                let unanswered = wait.and_then(|wait| wait.unanswered);
                is_recent(unanswered) || was_allowed && is_recent(answered)
            }
            _ => false,
        }
    }

    fn note_unanswered(&self, failure: &Failure) {
        if let (Code::Provider, Some(wait)) = (failure.code, lock(&self.wait).as_mut()) {
            wait.unanswered = Some(Instant::now());
        }
    }

    pub(super) fn waiting(&self, claim: &Claim) -> Option<ReadyWait> {
        let wait = lock(&self.wait).clone()?;
        (wait.lease == claim.lease_id).then_some(wait)
    }

    /// The stage's own time limit. A look that failed (`seen` is `None`) changes no stage: its time counts all the same.
    fn count_look(
        &self,
        claim: &Claim,
        stage: Stage,
        why: &str,
        seen: Option<&Seen>,
    ) -> Result<PollState, Failure> {
        let now = Instant::now();
        let mut wait = self.waiting(claim).unwrap_or_else(|| ReadyWait {
            lease: claim.lease_id.clone(),
            stage,
            times: StageTimes::default(),
            at: now,
            looks: 0,
            sandbox: None,
            unanswered: None,
            answered: None,
        });
        *wait.times.of(wait.stage) += now.duration_since(wait.at);
        wait.at = now;
        wait.looks += 1;
        if let Some(seen) = seen {
            wait.answered = Some(now);
            wait.stage = stage;
            let name = labels::claim_name(claim);
            let sandbox = seen.claim(&name).map(|one| one.status.sandbox.name.clone());
            wait.sandbox = sandbox.filter(|name| !name.is_empty());
        }
        let (looks, stage) = (wait.looks, wait.stage);
        let spent = *wait.times.of(stage);
        *lock(&self.wait) = Some(wait);
        let (limit, what, class) = match stage {
            Stage::Sandbox => (
                self.config.sandbox_timeout,
                "Sandbox",
                "sandbox_ready_timeout",
            ),
            Stage::Pod => (self.config.pod_timeout, "pod", "pod_ready_timeout"),
        };
        match limit {
            Some(limit) if spent >= limit => {
                let limit = format_ms(limit);
                let message = format!(
                    "the {what} of lease {} was not ready within {limit} (class={class}): waiting for {why}",
                    claim.lease_id
                );
                Err(Failure::new(Code::Timeout, message))
            }
            Some(limit) => Ok(PollState {
                looks,
                left: Some(limit - spent),
            }),
            None => Ok(PollState { looks, left: None }),
        }
    }

    /// A claim that takes long is watched where that is allowed, and else looked at now and then: never for longer than the
    /// stage has left.
    fn retry_delay(
        &self,
        claim: &Claim,
        stage: Stage,
        seen: &Seen,
        next: &PollState,
        cancel: &Cancel,
    ) -> Duration {
        let limit = |time: Duration| next.left.map_or(time, |left| left.min(time));
        let polled = limit(chain::poll_interval(next.looks));
        let watchable = stage == Stage::Sandbox && !*lock(&self.unwatchable);
        let name = labels::claim_name(claim);
        let (Some(object), Ok(kubectl)) = (seen.claim(&name), self.kubectl()) else {
            return polled;
        };
        if next.looks < WATCH_FROM || !watchable {
            return polled;
        }
        let version = &object.metadata.resource_version;
        match kubectl.watch_claim(&name, version, limit(WATCH_TIMEOUT), cancel) {
            // Something has changed, or the time is over.
            true => WATCH_DELAY,
            false => {
                *lock(&self.unwatchable) = true;
                polled
            }
        }
    }
}

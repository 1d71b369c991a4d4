//! The proof that a lease's pod is the one that its claim means, made before each use.
//!
//! One look reads the SandboxClaim and, where they are known, its Sandbox and pod in the same request; [`Expected::state`]
//! judges what it found by UIDs and owner references, and says what else must be read. A proved chain may be used again for
//! [`PROOF_TIMEOUT`], which saves the operations of one run a request each.

use std::time::{Duration, Instant};

use crabbox_core::claims::{Claim, LeaseId};
use crabbox_core::process::Cancel;
use crabbox_core::provider::{EXPIRED, Labels, Verified};
use crabbox_core::{Code, Failure};

use super::chain::{self, Chain, Over, Stage, State};
use super::kubectl::{pod_object, sandbox_object};
use super::objects::Seen;
use super::{AgentSandbox, labels, lock};

/// How old a proof may be when it is used, from its answer on.
const PROOF_TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Debug, Clone)]
pub(super) struct Proof {
    lease: LeaseId,
    chain: Chain,
    at: Instant,
}

impl AgentSandbox {
    /// What the proof before an operation found.
    pub(super) fn proved(&self, sandbox: &Verified<'_>) -> Result<Chain, Failure> {
        Chain::of(|key| sandbox.fact(key).map(str::to_owned)).ok_or_else(|| {
            let message = format!("lease {} was not proved", sandbox.claim().lease_id);
            Failure::new(Code::NotOwned, message)
        })
    }

    /// After anything that takes long, the next use is proved anew.
    pub(super) fn forget_proof(&self) {
        *lock(&self.proof) = None;
    }

    pub(super) fn recent_proof(&self, claim: &Claim) -> Option<Chain> {
        let proof = lock(&self.proof).clone()?;
        let recent = proof.at.elapsed() <= PROOF_TIMEOUT && proof.lease == claim.lease_id;
        recent.then_some(proof.chain)
    }

    /// One look at everything that belongs to a lease, and another one where the first shows what else to look at.
    pub(super) fn look(
        &self,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<(Seen, Option<State>), Failure> {
        let kubectl = self.kubectl()?;
        let name = labels::claim_name(claim);
        let known = labels::get(claim, labels::SANDBOX).map(str::to_owned);
        let known = known.or_else(|| self.waiting(claim).and_then(|wait| wait.sandbox));
        let mut below = Vec::new();
        if let Some(sandbox) = &known {
            let pod = labels::get(claim, labels::POD).unwrap_or(sandbox);
            below.extend([sandbox_object(sandbox), pod_object(pod)]);
        }
        let mut seen = kubectl.get_with_claim(&name, &below, cancel)?;
        let expected = self.expected(claim);
        // Three more looks at most: at a Sandbox and pod, at the pod that an annotation names, and by the selector.
        for _ in 0..4 {
            let Some(object) = seen.claim(&name) else {
                return Ok((seen, None));
            };
            let more = match expected.state(object, &seen)? {
                State::LookAt { sandbox, pod } => {
                    let below = [sandbox_object(&sandbox), pod_object(&pod)];
                    let again = kubectl.get_with_claim(&name, &below, cancel)?;
                    if again.sandbox(&sandbox).is_none() {
                        let why = format!("Sandbox {sandbox}");
                        return Ok((seen, Some(State::Waiting(Stage::Sandbox, why))));
                    }
                    seen = Seen::default();
                    again
                }
                State::Select(selector) if !selector.is_empty() => {
                    kubectl.select_pods(&selector, cancel)?
                }
                State::Select(_) => break,
                state => {
                    self.remember_proof(claim, &state);
                    return Ok((seen, Some(state)));
                }
            };
            let before = seen.pods.len();
            seen.merge(more);
            if before > 0 && seen.pods.len() == before {
                break;
            }
        }
        let why = "exactly one pod of the Sandbox".to_owned();
        Ok((seen, Some(State::Waiting(Stage::Pod, why))))
    }

    /// Remembers a whole chain for what follows at once.
    fn remember_proof(&self, claim: &Claim, state: &State) {
        *lock(&self.proof) = match state {
            State::Ready(chain) => Some(Proof {
                lease: claim.lease_id.clone(),
                chain: (**chain).clone(),
                at: Instant::now(),
            }),
            _ => None,
        };
    }

    /// The proof that commands go where they should.
    pub(super) fn prove(&self, claim: &Claim, cancel: &Cancel) -> Result<Chain, Failure> {
        if let Some(chain) = self.recent_proof(claim) {
            return Ok(chain);
        }
        let (_, state) = self.look(claim, cancel)?;
        match state {
            Some(State::Ready(chain)) => Ok(*chain),
            Some(State::Over(over, why)) => Err(over_failure(claim, over, &why)),
            Some(State::Waiting(_, why)) => {
                let message = format!("lease {} is not ready: waiting for {why}", claim.lease_id);
                Err(Failure::new(Code::NotFound, message))
            }
            Some(State::LookAt { .. } | State::Select(_)) | None => Err(self.missing(claim)),
        }
    }

    /// For what changes or removes only the SandboxClaim.
    pub(super) fn prove_claim(&self, claim: &Claim, cancel: &Cancel) -> Result<Labels, Failure> {
        let name = labels::claim_name(claim);
        let Some(object) = self.kubectl()?.get_claim(&name, cancel)? else {
            return Ok(self.missing_fact(claim));
        };
        self.expected(claim).check(&object)?;
        let mut facts = Labels::from([(labels::CLAIM_UID.to_owned(), object.metadata.uid.clone())]);
        if let Some(why) = chain::expired(&object) {
            facts.insert(EXPIRED.to_owned(), why);
        }
        Ok(facts)
    }
}

pub(super) fn over_failure(claim: &Claim, over: Over, why: &str) -> Failure {
    let lease = &claim.lease_id;
    match over {
        Over::Expired => {
            let message = format!("lease {lease} has expired: {why}");
            Failure::new(Code::Expired, message)
        }
        Over::Failed => {
            let message = format!("lease {lease} will not be ready: {why}");
            Failure::new(Code::NotFound, message)
        }
    }
}

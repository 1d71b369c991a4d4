//! A SandboxClaim that is not there: what that proves, and what is said of it.

use crabbox_core::claims::{Claim, State as ClaimState};
use crabbox_core::provider::{Labels, MISSING, Provider};
use crabbox_core::{Code, Failure};

use super::{AgentSandbox, labels};

impl AgentSandbox {
    pub(super) fn missing(&self, claim: &Claim) -> Failure {
        let name = labels::claim_name(claim);
        let what = format!("SandboxClaim {name:?} is missing in Kubernetes, or not accessible");
        let failed = |why: &str| Failure::new(Code::NotFound, format!("{what}{why}"));
        if self.may_forget(claim) || was_being_deleted(claim) {
            return failed("");
        }
        if claim.is_fixed() {
            let id = &claim.lease_id;
            return failed("; local claim retained because its id was chosen").hint(format!(
                "confirm that it is gone in the intended cluster, then use crabbox claims forget {id}"
            ));
        }
        failed("; local claim retained because forgetMissing=false").hint(format!(
            "confirm that it is gone in the intended cluster, then use {}",
            self.forget_command(claim)
        ))
    }

    /// `crabbox stop` that forgets what is missing.
    fn forget_command(&self, claim: &Claim) -> String {
        let stop = self.stop_command(claim);
        let id = claim.lease_id.as_str();
        match stop.strip_suffix(id) {
            Some(before) => format!("{before}--agent-sandbox-forget-missing {id}"),
            None => format!("{stop} (with --agent-sandbox-forget-missing)"),
        }
    }

    pub(super) fn may_forget(&self, claim: &Claim) -> bool {
        self.config.forget_missing && !claim.is_fixed()
    }

    /// What is said of a SandboxClaim that is not there. The one of a fixed lease whose deletion was begun, by its UID and
    /// after it was seen, is gone: only the wait for its pods was cut short.
    pub(super) fn missing_fact(&self, claim: &Claim) -> Labels {
        let why = match self.may_forget(claim) || was_being_deleted(claim) {
            true => "",
            false => {
                "missing-or-inaccessible; set agentSandbox forgetMissing after confirming that it is gone"
            }
        };
        Labels::from([(MISSING.to_owned(), why.to_owned())])
    }
}

pub(super) fn was_being_deleted(claim: &Claim) -> bool {
    let seen = labels::get(claim, labels::CLAIM_UID).is_some();
    claim.is_fixed() && claim.state == ClaimState::Releasing && seen
}

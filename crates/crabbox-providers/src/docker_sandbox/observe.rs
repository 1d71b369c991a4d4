//! What the list of an engine says of the sandboxes of claims.

use std::collections::BTreeMap;

use crabbox_core::claims::Claim;
use crabbox_core::provider::{Observed, Phase};

use super::engine::EngineMismatch;
use super::name::sandbox_name;
use super::parse::Listed;
use super::{DockerSandbox, SANDBOX};

/// The states of a sandbox that only another engine knows, and of one whose engine no longer exists.
const OTHER_ENGINE: &str = "other-engine";
const ENGINE_MISSING: &str = "engine-missing";

impl DockerSandbox {
    pub(super) fn observe_one(&self, claim: &Claim, all: &[Listed]) -> Observed {
        let name = sandbox_name(claim);
        let listed = all.iter().find(|one| one.name == name);
        let mismatch = self.mismatch(claim).map(|mismatch| mismatch.kind);
        let (state, phase) = match (listed, mismatch) {
            (_, Some(EngineMismatch::StateDir | EngineMismatch::Program)) => {
                (OTHER_ENGINE, Phase::Unknown)
            }
            (Some(listed), None | Some(EngineMismatch::ProgramGone)) => return seen(listed),
            (None, Some(EngineMismatch::ProgramGone)) => (ENGINE_MISSING, Phase::Unknown),
            (None, None) => ("missing", Phase::Absent),
        };
        Observed {
            state: state.to_owned(),
            phase,
            labels: BTreeMap::from([(SANDBOX.to_owned(), name.to_owned())]),
        }
    }
}

/// The engine stops an idle sandbox, and starts it for the next command: stopped is not over.
pub(super) fn seen(listed: &Listed) -> Observed {
    let phase = match listed.state.as_str() {
        "running" | "ready" | "started" | "active" | "stopped" => Phase::Ready,
        "expired" | "failed" | "released" | "stopped_with_code" | "terminated" => Phase::Over,
        _ => Phase::NotYet,
    };
    let mut labels = BTreeMap::new();
    for (key, value) in [
        (SANDBOX, &listed.name),
        ("agent", &listed.agent),
        ("workspace", &listed.workspace),
        ("isolation", &listed.backend),
    ] {
        if !value.is_empty() {
            labels.insert(key.to_owned(), value.clone());
        }
    }
    Observed {
        state: listed.state.clone(),
        phase,
        labels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_13_a_stopped_sandbox_can_run_commands() {
        let listed = |state: &str| Listed {
            id: "i".into(),
            name: "n".into(),
            state: state.into(),
            agent: String::new(),
            workspace: String::new(),
            backend: String::new(),
        };
        assert_eq!(seen(&listed("stopped")).phase, Phase::Ready);
        assert_eq!(seen(&listed("running")).phase, Phase::Ready);
        assert_eq!(seen(&listed("failed")).phase, Phase::Over);
        assert_eq!(seen(&listed("starting")).phase, Phase::NotYet);
    }
}

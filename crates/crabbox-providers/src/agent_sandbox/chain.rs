//! The chain from a lease to its container, and whether commands can run in it: decided from one look, without asking.
//!
//! SandboxClaim, Sandbox, pod and container are each pinned by what cannot be reused: three UIDs and a container id. A
//! name proves nothing.

use std::time::Duration;

use crabbox_core::claims::Claim;
use crabbox_core::provider::Labels;
use crabbox_core::{Code, Failure};
use jiff::Timestamp;

use super::labels;
use super::objects::{
    CLAIM_GROUP, CORE_GROUP, ClaimObject, Condition, PodObject, SandboxObject, Seen, condition,
};

/// Annotations and labels on the objects.
pub(super) const PROVIDER: &str = "crabbox.dev/provider";
pub(super) const LEASE_ID: &str = "crabbox.dev/lease-id";
pub(super) const SLUG: &str = "crabbox.dev/slug";
pub(super) const SCOPE: &str = "crabbox.dev/provider-scope";
pub(super) const NONCE: &str = "crabbox.dev/recovery-nonce";
const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";
const POD_NAME: &str = "agents.x-k8s.io/pod-name";
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The controller's reasons after which a claim never becomes ready by itself.
const TERMINAL: [&str; 6] = [
    "InvalidMetadata",
    "EnvVarsInjectionRejected",
    "VolumeClaimTemplatesError",
    "InvalidConfiguration",
    "TemplateNotFound",
    "WarmPoolNotFound",
];
const EXPIRED: [&str; 2] = ["ClaimExpired", "SandboxExpired"];

/// Where a command can run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) sandbox: String,
    pub(super) sandbox_uid: String,
    pub(super) pod: String,
    pub(super) pod_uid: String,
    pub(super) pod_ip: String,
    pub(super) container: String,
    pub(super) container_id: String,
}

/// What a look says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Ready(Box<Chain>),
    /// Of which stage, and what it waits for.
    Waiting(Stage, String),
    /// The look did not show these: look again with them.
    LookAt {
        sandbox: String,
        pod: String,
    },
    /// The pod has none of the names that it should have.
    Select(String),
    /// It will never be ready.
    Over(Over, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Sandbox,
    Pod,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Expired,
    Failed,
}

/// What a local claim must find in Kubernetes.
pub(super) struct Expected<'a> {
    pub(super) claim: &'a Claim,
    /// The fingerprint.
    pub(super) scope: &'a str,
    pub(super) warm_pool: &'a str,
    /// Configured, or empty.
    pub(super) container: &'a str,
}

impl Expected<'_> {
    /// That a SandboxClaim is the one of the lease: UID, labels, scope, nonce, pool and lifetime.
    pub(super) fn check(&self, object: &ClaimObject) -> Result<(), Failure> {
        let meta = &object.metadata;
        let refuse = |what: &str| {
            let message = format!(
                "SandboxClaim {:?} is not the one of lease {}: {what}",
                meta.name, self.claim.lease_id
            );
            Err(Failure::new(Code::NotOwned, message))
        };
        match labels::get(self.claim, labels::CLAIM_UID) {
            Some(uid) if *uid != meta.uid => return refuse("its UID is another one"),
            Some(_) => {}
            // Its creation was never answered: the nonce alone tells that it is ours.
            None if meta.uid.is_empty() => return refuse("it has no UID"),
            None => {}
        }
        let label = |key: &str| meta.labels.get(key).map_or("", String::as_str);
        let note = |key: &str| meta.annotations.get(key).map_or("", String::as_str);
        if label(PROVIDER) != super::SPEC.name {
            return refuse("its provider label differs");
        }
        if label(LEASE_ID) != self.claim.lease_id.as_str() {
            return refuse("its lease label differs");
        }
        if note(SCOPE) != self.scope {
            return refuse("its provider scope differs");
        }
        if labels::get(self.claim, labels::NONCE).is_some_and(|nonce| nonce != note(NONCE)) {
            return refuse("its nonce differs");
        }
        let pool = labels::get(self.claim, labels::WARM_POOL).unwrap_or(self.warm_pool);
        if object.spec.warm_pool_ref.name != pool {
            return refuse("it points at another warm pool");
        }
        let lifecycle = &object.spec.lifecycle;
        let shutdown = lifecycle
            .shutdown_time
            .as_deref()
            .map(str::parse::<Timestamp>);
        let shutdown = match shutdown {
            None => None,
            Some(Ok(time)) => Some(time),
            Some(Err(_)) => return refuse("its shutdown time cannot be read"),
        };
        if shutdown != self.claim.expires_at {
            return refuse("its shutdown time differs from the lease's TTL expiry");
        }
        if shutdown.is_some() && lifecycle.shutdown_policy != "Retain" {
            return refuse("its shutdown policy is not Retain");
        }
        Ok(())
    }

    /// Whether commands can run, in a chain that belongs together and, once pinned, never changes.
    pub(super) fn state(&self, object: &ClaimObject, seen: &Seen) -> Result<State, Failure> {
        self.check(object)?;
        let ready = condition(&object.status.conditions, "Ready");
        if let Some(over) = claim_over(object, ready) {
            return Ok(over);
        }
        if object.metadata.deletion_timestamp.is_some() {
            return Ok(State::Over(
                Over::Failed,
                "the SandboxClaim is being deleted".to_owned(),
            ));
        }
        let name = object.status.sandbox.name.as_str();
        if name.is_empty() {
            return Ok(State::Waiting(
                Stage::Sandbox,
                describe("SandboxClaim", ready),
            ));
        }
        self.pinned(labels::SANDBOX, name, "Sandbox")?;
        let Some(sandbox) = seen.sandbox(name) else {
            return Ok(match seen.sandboxes.is_empty() && seen.pods.is_empty() {
                true => look_at(name, name),
                false => State::Waiting(Stage::Sandbox, format!("Sandbox {name} does not exist")),
            });
        };
        self.sandbox_state(object, sandbox, seen)
    }

    fn sandbox_state(
        &self,
        object: &ClaimObject,
        sandbox: &SandboxObject,
        seen: &Seen,
    ) -> Result<State, Failure> {
        let meta = &sandbox.metadata;
        self.pinned(labels::SANDBOX_UID, &meta.uid, "Sandbox")?;
        let uid = &object.metadata.uid;
        let owned = meta
            .controller()
            .is_some_and(|owner| owner.is(CLAIM_GROUP, "SandboxClaim", uid));
        if !owned || meta.labels.get(CLAIM_UID) != Some(uid) {
            let message = format!(
                "Sandbox {:?} does not belong to the SandboxClaim",
                meta.name
            );
            return Err(Failure::new(Code::NotOwned, message));
        }
        if meta.deletion_timestamp.is_some() {
            let why = format!("Sandbox {} is being deleted", meta.name);
            return Ok(State::Waiting(Stage::Sandbox, why));
        }
        let conditions = &sandbox.status.conditions;
        if let Some(finished) = condition(conditions, "Finished").filter(|one| one.status == "True")
        {
            let why = format!("the Sandbox finished: {}", reason(finished));
            return Ok(State::Over(Over::Failed, why));
        }
        let ready = condition(conditions, "Ready");
        if let Some(expired) = ready.filter(|one| EXPIRED.contains(&one.reason.as_str())) {
            return Ok(State::Over(Over::Expired, reason(expired)));
        }
        // An annotation of older controllers counts, else the pod has the Sandbox's name.
        let named = meta
            .annotations
            .get(POD_NAME)
            .filter(|name| !name.is_empty());
        let pod_name = named.unwrap_or(&meta.name);
        let pod = seen.pod(pod_name).filter(|pod| is_owned(pod, &meta.uid));
        let selected = || seen.pods.iter().filter(|pod| is_owned(pod, &meta.uid));
        let pod = match pod {
            Some(pod) => Some(pod),
            None if selected().count() == 1 => selected().next(),
            None => None,
        };
        let terminal = pod.and_then(pod_over);
        if let Some(why) = terminal {
            return Ok(State::Over(Over::Failed, why));
        }
        if ready.is_none_or(|ready| ready.status != "True") {
            let more = pod
                .and_then(|pod| waiting_container(pod, ""))
                .unwrap_or_default();
            let why = format!("{}{more}", describe("Sandbox", ready));
            return Ok(State::Waiting(Stage::Sandbox, why));
        }
        let Some(pod) = pod else {
            return Ok(match seen.pods.is_empty() && pod_name != &meta.name {
                true => look_at(&meta.name, pod_name),
                false => State::Select(sandbox.status.selector.clone()),
            });
        };
        self.pod_state(sandbox, pod)
    }

    fn pod_state(&self, sandbox: &SandboxObject, pod: &PodObject) -> Result<State, Failure> {
        let meta = &pod.metadata;
        self.pinned(labels::POD, &meta.name, "pod")?;
        self.pinned(labels::POD_UID, &meta.uid, "pod")?;
        if meta.deletion_timestamp.is_some() {
            let why = format!("pod {} is being deleted", meta.name);
            return Ok(State::Waiting(Stage::Pod, why));
        }
        let container = self.container(pod)?;
        let ready = condition(&pod.status.conditions, "Ready");
        let status = pod.status.container_statuses.iter();
        let status = status.clone().find(|status| status.name == container);
        let id = status.map_or("", |status| status.container_id.as_str());
        if ready.is_none_or(|ready| ready.status != "True") || id.is_empty() {
            let more = waiting_container(pod, &container).unwrap_or_default();
            let why = format!("{}{more}", describe("pod", ready));
            return Ok(State::Waiting(Stage::Pod, why));
        }
        self.pinned(labels::CONTAINER_ID, id, "container")?;
        Ok(State::Ready(Box::new(Chain {
            sandbox: sandbox.metadata.name.clone(),
            sandbox_uid: sandbox.metadata.uid.clone(),
            pod: meta.name.clone(),
            pod_uid: meta.uid.clone(),
            pod_ip: pod.status.pod_ip.clone(),
            container,
            container_id: id.to_owned(),
        })))
    }

    /// The pinned one, the configured one, or the pod's default.
    fn container(&self, pod: &PodObject) -> Result<String, Failure> {
        let default = || {
            let noted = pod.metadata.annotations.get(DEFAULT_CONTAINER);
            let first = pod.spec.containers.first().map(|one| one.name.as_str());
            noted.map(String::as_str).or(first).unwrap_or("")
        };
        let name = match (labels::get(self.claim, labels::CONTAINER), self.container) {
            (Some(pinned), _) => pinned,
            (None, "") => default(),
            (None, configured) => configured,
        };
        if pod.spec.containers.iter().any(|one| one.name == name) {
            return Ok(name.to_owned());
        }
        let message = format!("pod {:?} has no container {name:?}", pod.metadata.name);
        Err(Failure::new(Code::NotFound, message).hint("set agentSandbox.container"))
    }

    /// What was pinned when the lease became ready must be what is seen now.
    fn pinned(&self, key: &str, now: &str, what: &str) -> Result<(), Failure> {
        let was = match labels::get(self.claim, key) {
            Some(was) if self.claim.labels.contains_key(labels::POD_UID) => was,
            _ => return Ok(()),
        };
        if was == now {
            return Ok(());
        }
        let restarted = match key == labels::CONTAINER_ID {
            true => "was restarted and has lost its files",
            false => "was replaced",
        };
        let message = format!(
            "the {what} of lease {} {restarted}: it was {was} and is {now}; nothing was sent to it",
            self.claim.lease_id
        );
        Err(Failure::new(Code::NotOwned, message))
    }
}

fn look_at(sandbox: &str, pod: &str) -> State {
    State::LookAt {
        sandbox: sandbox.to_owned(),
        pod: pod.to_owned(),
    }
}

/// Why the controller says that the time of the claim is over.
pub(super) fn expired(object: &ClaimObject) -> Option<String> {
    let ready = condition(&object.status.conditions, "Ready");
    match claim_over(object, ready) {
        Some(State::Over(Over::Expired, why)) => Some(why),
        _ => None,
    }
}

/// The claim's own end. Its reason decides: other fields may lag behind.
fn claim_over(object: &ClaimObject, ready: Option<&Condition>) -> Option<State> {
    let ready = ready.filter(|ready| ready.status != "True");
    let is_in = |list: &[&str], one: &&Condition| list.contains(&one.reason.as_str());
    if let Some(expired) = ready.filter(|one| is_in(&EXPIRED, one)) {
        return Some(State::Over(Over::Expired, reason(expired)));
    }
    if let Some(terminal) = ready.filter(|one| is_in(&TERMINAL, one)) {
        return Some(State::Over(Over::Failed, reason(terminal)));
    }
    let finished = condition(&object.status.conditions, "Finished");
    let finished = finished.filter(|one| one.status == "True")?;
    let why = format!("the Sandbox finished: {}", reason(finished));
    Some(State::Over(Over::Failed, why))
}

fn pod_over(pod: &PodObject) -> Option<String> {
    let phase = pod.status.phase.as_str();
    matches!(phase, "Succeeded" | "Failed").then(|| match pod.status.reason.as_str() {
        "" => format!("the pod's phase is {phase}"),
        reason => format!("the pod's phase is {phase}: {reason}"),
    })
}

fn is_owned(pod: &PodObject, sandbox_uid: &str) -> bool {
    let controller = pod.metadata.controller();
    controller.is_some_and(|owner| owner.is(CORE_GROUP, "Sandbox", sandbox_uid))
}

fn reason(condition: &Condition) -> String {
    match condition.message.as_str() {
        "" => condition.reason.clone(),
        message => format!("{}: {message}", condition.reason),
    }
}

fn describe(what: &str, ready: Option<&Condition>) -> String {
    match ready {
        None => format!("the {what}'s first condition"),
        Some(ready) => format!("the {what} ({})", reason(ready)),
    }
}

/// Why a container does not start, such as an image that cannot be pulled.
fn waiting_container(pod: &PodObject, name: &str) -> Option<String> {
    let mut statuses = pod.status.container_statuses.iter();
    let waiting = statuses.find_map(|status| {
        let waiting = status.state.waiting.as_ref()?;
        (name.is_empty() || status.name == name).then_some((&status.name, waiting))
    });
    if let Some((name, waiting)) = waiting {
        let message = match waiting.message.as_str() {
            "" => String::new(),
            message => format!(": {message}"),
        };
        return Some(format!("; container {name}: {}{message}", waiting.reason));
    }
    let scheduled = condition(&pod.status.conditions, "PodScheduled");
    let unscheduled = scheduled.filter(|one| one.status == "False")?;
    Some(format!("; {}", reason(unscheduled)))
}

impl Chain {
    /// For the local claim.
    pub(super) fn labels(&self) -> Labels {
        let pairs = [
            (labels::SANDBOX, &self.sandbox),
            (labels::SANDBOX_UID, &self.sandbox_uid),
            (labels::POD, &self.pod),
            (labels::POD_UID, &self.pod_uid),
            (labels::POD_IP, &self.pod_ip),
            (labels::CONTAINER, &self.container),
            (labels::CONTAINER_ID, &self.container_id),
        ];
        let mut all: Labels = pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .collect();
        all.insert("container_pinned".to_owned(), "true".to_owned());
        all
    }

    /// The other way: for what follows a proof.
    pub(super) fn of(facts: impl Fn(&str) -> Option<String>) -> Option<Self> {
        Some(Self {
            sandbox: facts(labels::SANDBOX)?,
            sandbox_uid: facts(labels::SANDBOX_UID)?,
            pod: facts(labels::POD)?,
            pod_uid: facts(labels::POD_UID)?,
            pod_ip: facts(labels::POD_IP).unwrap_or_default(),
            container: facts(labels::CONTAINER)?,
            container_id: facts(labels::CONTAINER_ID)?,
        })
    }
}

/// How long until the next look: short at first, since a warm claim is ready in a moment.
pub(super) fn poll_interval(looks: u32) -> Duration {
    Duration::from_millis(match looks {
        0..=3 => 50,
        4..=8 => 150,
        9..=15 => 400,
        _ => 1000,
    })
}

#[cfg(test)]
mod tests;

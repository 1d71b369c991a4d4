//! What is read of Kubernetes objects. Everything else in them is left alone.

use std::collections::BTreeMap;

use crabbox_core::{Code, Failure};
use serde::Deserialize;
use serde_json::Value;

pub(super) const CORE_GROUP: &str = "agents.x-k8s.io";
pub(super) const CLAIM_GROUP: &str = "extensions.agents.x-k8s.io";
pub(super) const VERSION: &str = "v1beta1";

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) owner_references: Vec<Owner>,
    pub(super) deletion_timestamp: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Owner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) controller: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A SandboxClaim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimObject {
    pub(super) metadata: Metadata,
    pub(super) spec: ClaimSpec,
    pub(super) status: ClaimStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimSpec {
    pub(super) warm_pool_ref: Reference,
    pub(super) lifecycle: Lifecycle,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Reference {
    pub(super) name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Lifecycle {
    pub(super) shutdown_time: Option<String>,
    pub(super) shutdown_policy: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimStatus {
    pub(super) conditions: Vec<Condition>,
    pub(super) sandbox: Reference,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SandboxObject {
    pub(super) metadata: Metadata,
    pub(super) status: SandboxStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SandboxStatus {
    pub(super) conditions: Vec<Condition>,
    pub(super) selector: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodObject {
    pub(super) metadata: Metadata,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) containers: Vec<Reference>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    pub(super) phase: String,
    pub(super) reason: String,
    pub(super) conditions: Vec<Condition>,
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    #[serde(rename = "containerID")]
    pub(super) container_id: String,
    pub(super) restart_count: u64,
    pub(super) state: ContainerState,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ContainerState {
    pub(super) waiting: Option<Waiting>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Waiting {
    pub(super) reason: String,
    pub(super) message: String,
}

/// One look at what belongs to one or more claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) claims: Vec<ClaimObject>,
    pub(super) sandboxes: Vec<SandboxObject>,
    pub(super) pods: Vec<PodObject>,
}

impl Seen {
    /// The output of `kubectl get -o json`: nothing, one object, or a list of them.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let mut seen = Self::default();
        for value in serde_json::Deserializer::from_slice(bytes).into_iter::<Value>() {
            seen.add(value.map_err(|error| malformed(&error))?)?;
        }
        Ok(seen)
    }

    fn add(&mut self, value: Value) -> Result<(), Failure> {
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or("");
        let (group, version) = group_of(&value);
        match (kind, group) {
            ("List", _) => {
                let items = value.get("items").and_then(Value::as_array);
                for item in items.into_iter().flatten() {
                    self.add(item.clone())?;
                }
            }
            ("SandboxClaim", CLAIM_GROUP) if version == VERSION => self.claims.push(typed(value)?),
            ("Sandbox", CORE_GROUP) if version == VERSION => self.sandboxes.push(typed(value)?),
            ("Pod", "") => self.pods.push(typed(value)?),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn claim(&self, name: &str) -> Option<&ClaimObject> {
        self.claims.iter().find(|one| one.metadata.name == name)
    }

    pub(super) fn sandbox(&self, name: &str) -> Option<&SandboxObject> {
        self.sandboxes.iter().find(|one| one.metadata.name == name)
    }

    pub(super) fn pod(&self, name: &str) -> Option<&PodObject> {
        self.pods.iter().find(|one| one.metadata.name == name)
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.claims.extend(other.claims);
        self.sandboxes.extend(other.sandboxes);
        self.pods.extend(other.pods);
    }
}

pub(super) fn parse_claim(bytes: &[u8]) -> Result<ClaimObject, Failure> {
    let mut seen = Seen::parse(bytes)?;
    seen.claims.pop().ok_or_else(|| {
        let message = "kubectl printed no SandboxClaim";
        Failure::new(Code::ProviderMalformed, message)
    })
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|error| malformed(&error))
}

fn malformed(error: &dyn std::error::Error) -> Failure {
    Failure::new(Code::ProviderMalformed, "cannot read what kubectl printed").because(error)
}

fn group_of(value: &Value) -> (&str, &str) {
    let text = value.get("apiVersion").and_then(Value::as_str);
    split_version(text.unwrap_or(""))
}

/// Group and version; the core group has no name.
pub(super) fn split_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

pub(super) fn condition<'c>(conditions: &'c [Condition], kind: &str) -> Option<&'c Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

impl Metadata {
    /// The one object that controls this one.
    pub(super) fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

impl Owner {
    /// By group and kind: a stored reference keeps the version of its time.
    pub(super) fn is(&self, group: &str, kind: &str, uid: &str) -> bool {
        split_version(&self.api_version).0 == group && self.kind == kind && self.uid == uid
    }
}

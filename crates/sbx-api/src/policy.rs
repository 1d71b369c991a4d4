//! The network policy over the wire.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/policy/init`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyInit {
    /// `allow-all`, `balanced` or `deny-all`.
    pub preset: String,
}

/// `POST /v1/policy/rules`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    pub decision: RuleDecision,
    /// Only for this sandbox; for all of them when both are absent.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Only for sandboxes whose primary workspace is this directory: a canonical path.
    #[serde(default)]
    pub repo: Option<String>,
    /// Host patterns, addresses, CIDRs.
    pub resources: Vec<String>,
    /// The rule ends by itself.
    #[serde(default)]
    pub for_seconds: Option<u64>,
    /// Only for exact hosts that are allowed: they may resolve to private addresses.
    #[serde(default)]
    pub allow_private: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleDecision {
    Allow,
    Deny,
}

/// `POST /v1/policy/rules/remove`: what matches all that is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRemoval {
    #[serde(default)]
    pub sandbox: Option<String>,
    #[serde(default)]
    pub repo: Option<String>,
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub resources: Vec<String>,
}

/// What was added or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleList {
    pub rules: Vec<PolicyRule>,
    /// Said once: the preset that was taken because none had been chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// Resources that another rule decides in the same way already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub existing: Vec<ExistingResource>,
    /// What is left of rules of which only some resources were removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remaining: Vec<PolicyRule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExistingResource {
    pub resource: String,
    pub rule_id: String,
    /// When that rule ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub expires_at: Option<Timestamp>,
}

/// A rule as `policy ls --json` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyRule {
    pub id: String,
    pub name: String,
    pub policy_id: String,
    /// `global`, `repo:PATH` or `sandbox:NAME`
    pub scope: String,
    /// `all`, `repo:PATH` or `sandbox:NAME`
    pub applies_to: String,
    pub resource_type: String,
    pub decision: RuleDecision,
    pub resources: Vec<String>,
    /// `local`, `scoped`, `preset`, `kit` or `proxy-config`
    pub origin: String,
    pub layer: String,
    /// `active`, or `inactive` once it has expired
    pub status: String,
    pub editable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// `web` when the rule is about HTTP and HTTPS only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<String>,
    /// The hosts of the rule may resolve to private addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_private: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub expires_at: Option<Timestamp>,
    /// Why a group of a preset is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /v1/policy/check`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    #[serde(default)]
    pub sandbox: Option<String>,
    /// For sandboxes of this repository.
    #[serde(default)]
    pub repo: Option<String>,
    /// A host, `host:port`, an address or a URL.
    pub target: String,
}

/// What enforcement would do, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckAnswer {
    pub action: String,
    pub allowed: bool,
    /// `global`, `repo:PATH` or `sandbox:NAME`
    pub context: String,
    /// `implicit`, `explicit`, `address`, `loopback`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_kind: Option<String>,
    pub governance: Governance,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub resource_type: String,
    pub resource_value: String,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_id: Option<String>,
    pub target: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// Where a connection would go.
    pub addresses: Vec<String>,
    /// The command that would change the verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The target does not say what is spoken there, and it matters: the rest of the answer is about HTTP and
    /// HTTPS, and this about any other TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_tcp: Option<OtherTcp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OtherTcp {
    pub allowed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_kind: Option<String>,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Governance {
    pub active: bool,
}

/// `POST /v1/sandboxes/{name}/proxy-config`: the older surface. Nothing given changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyConfigChange {
    /// `allow` or `deny`
    pub policy: Option<String>,
    pub allow_host: Vec<String>,
    pub block_host: Vec<String>,
    pub bypass_host: Vec<String>,
    pub allow_cidr: Vec<String>,
    pub block_cidr: Vec<String>,
    pub bypass_cidr: Vec<String>,
}

/// `GET /v1/sandboxes/{name}/proxy-config`, and the answer to a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProxyConfigState {
    /// The content of the file; absent when there is none.
    #[schema(value_type = Option<Object>)]
    pub config: Option<serde_json::Value>,
}

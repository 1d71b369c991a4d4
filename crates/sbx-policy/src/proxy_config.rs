//! The older per-sandbox file `proxy-config.json`, behind `network proxy`. It is translated into rules on reading,
//! so that there is one decision. Its patterns mean something else than those of `sbx policy`: `*.d` is any depth,
//! and `*` is everything.
//!
//! A file without `policy` only adds its entries to what the global policy says. `deny` also takes away catch-all
//! allows of other origin ([`ProxyConfig::narrow`]): "block all except allowed" must hold under `allow-all` too.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sbx_proto::object::{self, object};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::host::Host;
use crate::pattern::{Pattern, PatternError};
use crate::rule::{Decision, Origin, Rule, Scope, Traffic};

/// Ends the id of the rule that comes of that list.
pub(crate) const BLOCK_CIDR: &str = "block-cidr";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ProxyMode>,
    #[serde(default, deserialize_with = "object")]
    pub network: ProxyNetwork,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyMode {
    /// HTTP and HTTPS to everything that is not blocked. Never other TCP.
    Allow,
    /// Nothing but what is allowed.
    Deny,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyNetwork {
    #[serde(rename = "allowedDomains")]
    pub allowed_domains: Vec<OlderPattern>,
    #[serde(rename = "blockedDomains")]
    pub blocked_domains: Vec<OlderPattern>,
    #[serde(rename = "allowCIDR")]
    pub allow_cidr: Vec<OlderPattern>,
    #[serde(rename = "blockCIDR")]
    pub block_cidr: Vec<OlderPattern>,
    #[serde(rename = "bypassDomains")]
    pub bypass_domains: Vec<OlderPattern>,
    #[serde(rename = "bypassCIDR")]
    pub bypass_cidr: Vec<OlderPattern>,
}

/// A pattern in the older spelling, which is also the one it is written back in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OlderPattern(Pattern);

/// One flag of `network proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    Policy(ProxyMode),
    AllowHost(OlderPattern),
    BlockHost(OlderPattern),
    BypassHost(OlderPattern),
    AllowCidr(OlderPattern),
    BlockCidr(OlderPattern),
    BypassCidr(OlderPattern),
}

#[derive(Debug, Error)]
pub enum ProxyConfigError {
    #[error("the proxy configuration is malformed")]
    Json(#[source] serde_json::Error),
    #[error("the proxy configuration cannot be written")]
    Write(#[source] serde_json::Error),
    #[error("policy `{0}` is neither `allow` nor `deny`")]
    Mode(String),
    #[error("invalid address or network `{entry}` in `{list}`")]
    NotAnAddress { list: &'static str, entry: String },
}

impl ProxyConfig {
    pub fn parse(json: &str) -> Result<Self, ProxyConfigError> {
        let config: Self = object::from_slice(json.as_bytes()).map_err(ProxyConfigError::Json)?;
        let network = &config.network;
        for (list, entries) in [
            ("allowCIDR", &network.allow_cidr),
            ("blockCIDR", &network.block_cidr),
            ("bypassCIDR", &network.bypass_cidr),
        ] {
            entries
                .iter()
                .try_for_each(|entry| check_address(list, entry))?;
        }
        Ok(config)
    }

    pub fn to_json(&self) -> Result<String, ProxyConfigError> {
        serde_json::to_string_pretty(self)
            .map(|json| json + "\n")
            .map_err(ProxyConfigError::Write)
    }

    /// The rules for one sandbox. Ids are stable: they follow from the sandbox and the list.
    pub fn rules(&self, sandbox: &str) -> Vec<Rule> {
        let network = &self.network;
        let make = |part: &str, decision, traffic, resources: Vec<Pattern>| Rule {
            id: format!("proxy-config:{sandbox}:{part}"),
            name: format!("proxy-config-{part}"),
            policy: format!("proxy-config:{sandbox}"),
            scope: Scope::Sandbox(sandbox.to_owned()),
            decision,
            resources,
            origin: Origin::ProxyConfig,
            traffic,
            allow_private: false,
            expires: None,
            expired: false,
            editable: false,
            created: None,
        };
        let (catch_all, hosts): (Vec<_>, Vec<_>) = patterns(&network.allowed_domains)
            .into_iter()
            .partition(Pattern::is_everything);
        let policy = match self.policy {
            Some(ProxyMode::Allow) => vec![Pattern::everything()],
            Some(ProxyMode::Deny) | None => Vec::new(),
        };
        let (allow, deny) = (Decision::Allow, Decision::Deny);
        let mut rules = vec![
            make(
                "blocked-domains",
                deny,
                Traffic::Any,
                patterns(&network.blocked_domains),
            ),
            make(
                BLOCK_CIDR,
                deny,
                Traffic::Any,
                patterns(&network.block_cidr),
            ),
            make("allowed-domains", allow, Traffic::Any, hosts),
            make(
                "allow-cidr",
                allow,
                Traffic::Any,
                patterns(&network.allow_cidr),
            ),
            // `*` among the hosts is the policy `allow` by another name.
            make("allowed-everything", allow, Traffic::Web, catch_all),
            make("policy-allow", allow, Traffic::Web, policy),
        ];
        rules.retain(|rule| !rule.resources.is_empty());
        if self.policy == Some(ProxyMode::Deny) {
            // Like a preset's deny-all it is there to be seen: what it does is the absence of allows.
            rules.push(make("policy-deny", deny, Traffic::Any, Vec::new()));
        }
        rules
    }

    /// Which of other `rules` lose something to this configuration now, see [`ProxyConfig::narrow`].
    pub fn narrowed<'a>(&self, rules: &'a [Rule], now: Timestamp) -> Vec<&'a Rule> {
        let opens_everything = |rule: &&Rule| {
            rule.decision == Decision::Allow
                && !rule.is_expired(now)
                && rule.resources.iter().any(Pattern::is_catch_all)
        };
        match self.policy {
            Some(ProxyMode::Deny) => rules.iter().filter(opens_everything).collect(),
            Some(ProxyMode::Allow) | None => Vec::new(),
        }
    }

    /// What remains of other `rules` under this configuration: with the policy `deny`, allows of everything go.
    pub fn narrow(&self, mut rules: Vec<Rule>) -> Vec<Rule> {
        if self.policy == Some(ProxyMode::Deny) {
            for rule in &mut rules {
                if rule.decision == Decision::Allow {
                    rule.resources.retain(|resource| !resource.is_catch_all());
                }
            }
            rules.retain(|rule| rule.decision == Decision::Deny || !rule.resources.is_empty());
        }
        rules
    }

    /// Whether TLS to this host must never be intercepted.
    pub fn bypasses(&self, host: &Host) -> bool {
        let network = &self.network;
        let mut entries = network.bypass_domains.iter().chain(&network.bypass_cidr);
        entries.any(|entry| entry.0.matches_host(host))
    }

    /// Applies one flag. An entry stands in one of the lists for allowed and blocked only: the last word counts.
    pub fn edit(&mut self, edit: Edit) -> Result<(), ProxyConfigError> {
        let network = &mut self.network;
        match edit {
            Edit::Policy(mode) => self.policy = Some(mode),
            Edit::AllowHost(entry) => {
                shift(
                    entry,
                    &mut network.blocked_domains,
                    &mut network.allowed_domains,
                );
            }
            Edit::BlockHost(entry) => {
                shift(
                    entry,
                    &mut network.allowed_domains,
                    &mut network.blocked_domains,
                );
            }
            Edit::BypassHost(entry) => insert(entry, &mut network.bypass_domains),
            Edit::AllowCidr(entry) => {
                check_address("allowCIDR", &entry)?;
                shift(entry, &mut network.block_cidr, &mut network.allow_cidr);
            }
            Edit::BlockCidr(entry) => {
                check_address("blockCIDR", &entry)?;
                shift(entry, &mut network.allow_cidr, &mut network.block_cidr);
            }
            Edit::BypassCidr(entry) => {
                check_address("bypassCIDR", &entry)?;
                insert(entry, &mut network.bypass_cidr);
            }
        }
        Ok(())
    }
}

impl OlderPattern {
    /// What the entry means in the newer grammar.
    pub fn pattern(&self) -> &Pattern {
        &self.0
    }
}

impl From<Pattern> for OlderPattern {
    fn from(pattern: Pattern) -> Self {
        Self(pattern)
    }
}

impl FromStr for OlderPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let is_star = text == "*" || text.starts_with("*.") || text.starts_with("*:");
        if is_star {
            return format!("*{text}").parse().map(Self);
        }
        text.parse().map(Self)
    }
}

impl fmt::Display for OlderPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newer = self.0.to_string();
        match newer.strip_prefix("**") {
            Some(rest) => write!(f, "*{rest}"),
            None => f.write_str(&newer),
        }
    }
}

impl TryFrom<String> for OlderPattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        text.parse()
    }
}

impl From<OlderPattern> for String {
    fn from(pattern: OlderPattern) -> Self {
        pattern.to_string()
    }
}

impl FromStr for ProxyMode {
    type Err = ProxyConfigError;

    fn from_str(text: &str) -> Result<Self, ProxyConfigError> {
        match text {
            "allow" => Ok(Self::Allow),
            "deny" => Ok(Self::Deny),
            _ => Err(ProxyConfigError::Mode(text.to_owned())),
        }
    }
}

fn patterns(entries: &[OlderPattern]) -> Vec<Pattern> {
    entries.iter().map(|entry| entry.0.clone()).collect()
}

fn check_address(list: &'static str, entry: &OlderPattern) -> Result<(), ProxyConfigError> {
    if entry.0.is_address() {
        return Ok(());
    }
    Err(ProxyConfigError::NotAnAddress {
        list,
        entry: entry.to_string(),
    })
}

fn shift(entry: OlderPattern, from: &mut Vec<OlderPattern>, to: &mut Vec<OlderPattern>) {
    from.retain(|known| *known != entry);
    insert(entry, to);
}

fn insert(entry: OlderPattern, list: &mut Vec<OlderPattern>) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

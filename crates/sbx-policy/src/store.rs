//! The policy file `policy.json`: the chosen preset and the rules that the user added. Reading is strict, because a
//! misspelt deny that is skipped in silence opens the network. Every change is a whole-value operation: on an error
//! nothing has changed.

use jiff::Timestamp;
use sbx_proto::object::{self, objects};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pattern::Pattern;
use crate::presets::{Preset, preset};
use crate::rule::{Decision, Origin, Rule, Scope, Traffic};

const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    version: u32,
    pub preset: Preset,
    pub initialized_at: Timestamp,
    #[serde(deserialize_with = "objects")]
    pub rules: Vec<Rule>,
}

/// A rule to add. Ids come from the caller, which has the randomness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRule {
    pub id: String,
    /// `None`: the id serves as the name.
    pub name: Option<String>,
    pub scope: Scope,
    pub decision: Decision,
    pub resources: Vec<Pattern>,
    /// Only for exact hosts: these may resolve to private addresses.
    pub allow_private: bool,
    pub expires: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// `None` if every resource was there already.
    pub rule: Option<Rule>,
    pub existing: Vec<Existing>,
}

/// A resource that a rule of the same scope and decision has already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing {
    pub resource: Pattern,
    pub rule_id: String,
    /// When that rule ends; no earlier than the new one would.
    pub expires: Option<Timestamp>,
}

/// What to remove. `id` and `resources` combine: only these resources, and only from that rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub scope: Scope,
    pub id: Option<String>,
    pub resources: Vec<Pattern>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    pub rule_id: String,
    pub resources: Vec<Pattern>,
    /// Whether the rule is gone as a whole.
    pub entirely: bool,
}

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the policy file is malformed")]
    Json(#[source] serde_json::Error),
    #[error("the policy file cannot be written")]
    Write(#[source] serde_json::Error),
    #[error("the policy file has version {0}; this program reads version {VERSION}")]
    Version(u32),
    #[error("the rule id `{0}` occurs twice")]
    DuplicateId(String),
    #[error("rule `{0}` has no resources")]
    NoResources(String),
    #[error(
        "`{0}` is not exactly one host: private addresses are allowed for one host only, or by their own rules"
    )]
    PrivateWildcard(Pattern),
    #[error("a deny rule holds for private addresses in any case")]
    PrivateDeny,
    #[error("the global network policy is already initialized to `{0}`")]
    AlreadyInitialized(Preset),
    #[error("rule `{rule_id}` of scope {scope} already says {existing} for `{resource}`")]
    Conflict {
        resource: Pattern,
        existing: Decision,
        scope: Scope,
        rule_id: String,
    },
    #[error("neither a rule id nor a resource is given")]
    NothingToRemove,
    #[error("`{name}` is the name of a rule; its id is `{id}`")]
    NameNotId {
        name: String,
        id: String,
        scope: Scope,
    },
    #[error("rule `{id}` belongs to scope {scope}")]
    OtherScope { id: String, scope: Scope },
    #[error("rule `{id}` is read-only: {why}")]
    ReadOnly { id: String, why: &'static str },
    #[error("no rule `{0}`")]
    NoSuchRule(String),
    #[error("no rule of scope {scope} has the resource `{resource}`")]
    NoSuchResource { resource: Pattern, scope: Scope },
}

impl PolicyFile {
    /// Chooses the preset, once. A second choice is refused, because it would silently change what rules mean.
    pub fn init(
        existing: Option<&Self>,
        preset: Preset,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        match existing {
            Some(file) => Err(StoreError::AlreadyInitialized(file.preset)),
            None => Ok(Self {
                version: VERSION,
                preset,
                initialized_at: now,
                rules: Vec::new(),
            }),
        }
    }

    pub fn parse(json: &str) -> Result<Self, StoreError> {
        let file: Self = object::from_slice(json.as_bytes()).map_err(StoreError::Json)?;
        if file.version != VERSION {
            return Err(StoreError::Version(file.version));
        }
        let mut ids: Vec<&str> = file.rules.iter().map(|rule| rule.id.as_str()).collect();
        ids.sort_unstable();
        let twice = ids.iter().zip(ids.iter().skip(1)).find(|(a, b)| a == b);
        if let Some((id, _)) = twice {
            return Err(StoreError::DuplicateId((*id).to_owned()));
        }
        if let Some(rule) = file.rules.iter().find(|rule| rule.resources.is_empty()) {
            return Err(StoreError::NoResources(rule.id.clone()));
        }
        Ok(file)
    }

    pub fn to_json(&self) -> Result<String, StoreError> {
        serde_json::to_string_pretty(self)
            .map(|json| json + "\n")
            .map_err(StoreError::Write)
    }

    /// The rules that concern a scope, and `repo`, the repository of a sandbox: the user's own first, then the preset's.
    pub fn rules_for(&self, asked: &Scope, repo: Option<&str>) -> Vec<Rule> {
        let own = self
            .rules
            .iter()
            .filter(|rule| rule.scope.concerns(asked, repo));
        own.cloned().chain(preset(self.preset)).collect()
    }

    /// Adds the resources that are new in this scope. A resource that the scope already decides otherwise is
    /// refused: both rules together would mean deny, which is not what the user who adds an allow expects.
    pub fn add_rule(&mut self, new: NewRule, now: Timestamp) -> Result<Added, StoreError> {
        if new.resources.is_empty() {
            return Err(StoreError::NoResources(new.id));
        }
        if self.rules.iter().any(|rule| rule.id == new.id) {
            return Err(StoreError::DuplicateId(new.id));
        }
        new.check_private()?;
        let mut existing = Vec::new();
        let mut fresh: Vec<Pattern> = Vec::new();
        for resource in &new.resources {
            if let Some(known) = self.find_existing(&new, resource, now)? {
                existing.push(known);
            } else if !fresh.contains(resource) {
                fresh.push(resource.clone());
            }
        }
        if fresh.is_empty() {
            return Ok(Added {
                rule: None,
                existing,
            });
        }
        let rule = new.into_rule(fresh, now);
        self.rules.push(rule.clone());
        Ok(Added {
            rule: Some(rule),
            existing,
        })
    }

    pub fn remove(&mut self, removal: &Removal) -> Result<Vec<Removed>, StoreError> {
        if let Some(id) = &removal.id {
            self.check_removable(id, &removal.scope)?;
        } else if removal.resources.is_empty() {
            return Err(StoreError::NothingToRemove);
        }
        let is_meant = |rule: &Rule| match &removal.id {
            Some(id) => rule.id == *id,
            None => rule.scope == removal.scope && rule.editable,
        };
        for resource in &removal.resources {
            let mut meant = self.rules.iter().filter(|rule| is_meant(rule));
            if !meant.any(|rule| rule.resources.contains(resource)) {
                return Err(StoreError::NoSuchResource {
                    resource: resource.clone(),
                    scope: removal.scope.clone(),
                });
            }
        }
        let mut removed = Vec::new();
        for rule in self.rules.iter_mut().filter(|rule| is_meant(rule)) {
            removed.extend(take_resources(rule, &removal.resources));
        }
        self.rules.retain(|rule| !rule.resources.is_empty());
        Ok(removed)
    }

    /// Forgets the rules of a sandbox that is gone, so that a later one of the same name starts clean.
    pub fn remove_sandbox(&mut self, name: &str) -> Vec<Rule> {
        self.extract(|rule| matches!(&rule.scope, Scope::Sandbox(sandbox) if sandbox == name))
    }

    /// Forgets the rules of sandboxes that are not there.
    pub fn keep_sandboxes(&mut self, is_there: impl Fn(&str) -> bool) -> Vec<Rule> {
        self.extract(|rule| matches!(&rule.scope, Scope::Sandbox(sandbox) if !is_there(sandbox)))
    }

    /// Forgets those that were to end before `then`.
    pub fn drop_expired(&mut self, then: Timestamp) -> Vec<Rule> {
        self.extract(|rule| rule.expires.is_some_and(|expires| expires <= then))
    }

    fn extract(&mut self, is_meant: impl Fn(&Rule) -> bool) -> Vec<Rule> {
        let (gone, kept) = std::mem::take(&mut self.rules)
            .into_iter()
            .partition(|rule| is_meant(rule));
        self.rules = kept;
        gone
    }

    fn find_existing(
        &self,
        new: &NewRule,
        resource: &Pattern,
        now: Timestamp,
    ) -> Result<Option<Existing>, StoreError> {
        let mut existing = None;
        for rule in &self.rules {
            let same = rule.scope == new.scope && rule.resources.contains(resource);
            // What others wrote (a kit) is not a conflict: a deny is the user's way to overrule it.
            if !same || !rule.editable || rule.is_expired(now) {
                continue;
            }
            if rule.decision != new.decision {
                return Err(StoreError::Conflict {
                    resource: resource.clone(),
                    existing: rule.decision,
                    scope: new.scope.clone(),
                    rule_id: rule.id.clone(),
                });
            }
            // A rule that ends earlier does not make the new one superfluous.
            let outlasts = match (rule.expires, new.expires) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(known), Some(wanted)) => known >= wanted,
            };
            let opens_as_much = rule.allow_private || !new.allow_private;
            if outlasts && opens_as_much && existing.is_none() {
                existing = Some(Existing {
                    resource: resource.clone(),
                    rule_id: rule.id.clone(),
                    expires: rule.expires,
                });
            }
        }
        Ok(existing)
    }

    fn check_removable(&self, id: &str, scope: &Scope) -> Result<(), StoreError> {
        if preset(self.preset).iter().any(|rule| rule.id == id) {
            return Err(StoreError::ReadOnly {
                id: id.to_owned(),
                why: "it comes with the preset; deny its resources, or reset and choose another preset",
            });
        }
        let Some(rule) = self.rules.iter().find(|rule| rule.id == id) else {
            let named = self.rules.iter().find(|rule| rule.name == id);
            return Err(match named {
                Some(rule) => StoreError::NameNotId {
                    name: id.to_owned(),
                    id: rule.id.clone(),
                    scope: rule.scope.clone(),
                },
                None => StoreError::NoSuchRule(id.to_owned()),
            });
        };
        if rule.scope != *scope {
            return Err(StoreError::OtherScope {
                id: id.to_owned(),
                scope: rule.scope.clone(),
            });
        }
        if !rule.editable {
            return Err(StoreError::ReadOnly {
                id: id.to_owned(),
                why: "it was not added by `policy allow` or `policy deny`",
            });
        }
        Ok(())
    }
}

impl NewRule {
    /// The owner of a name that a wildcard matches could lead it anywhere: only exact hosts may be private.
    fn check_private(&self) -> Result<(), StoreError> {
        if !self.allow_private {
            return Ok(());
        }
        if self.decision == Decision::Deny {
            return Err(StoreError::PrivateDeny);
        }
        match self.resources.iter().find(|one| !one.is_exact_host()) {
            Some(wide) => Err(StoreError::PrivateWildcard(wide.clone())),
            None => Ok(()),
        }
    }

    fn into_rule(self, resources: Vec<Pattern>, now: Timestamp) -> Rule {
        let origin = match self.scope {
            Scope::Global => Origin::Local,
            Scope::Repo(_) | Scope::Sandbox(_) => Origin::Scoped,
        };
        Rule {
            name: self.name.unwrap_or_else(|| self.id.clone()),
            id: self.id,
            policy: self.scope.policy().to_owned(),
            scope: self.scope,
            decision: self.decision,
            resources,
            origin,
            traffic: Traffic::Any,
            allow_private: self.allow_private,
            expires: self.expires,
            expired: false,
            editable: true,
            created: Some(now),
        }
    }
}

/// Takes the given resources, or all if none is given.
fn take_resources(rule: &mut Rule, resources: &[Pattern]) -> Option<Removed> {
    let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut rule.resources)
        .into_iter()
        .partition(|resource| resources.is_empty() || resources.contains(resource));
    rule.resources = kept;
    (!gone.is_empty()).then(|| Removed {
        rule_id: rule.id.clone(),
        resources: gone,
        entirely: rule.resources.is_empty(),
    })
}

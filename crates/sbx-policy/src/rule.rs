//! Rules as they are stored, listed and compiled. A rule is data: what it means is decided in [`crate::Policy`].

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sbx_proto::shell::quoted;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pattern::Pattern;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    Allow,
    Deny,
}

/// Whom a rule concerns. Written `global`, `repo:PATH` or `sandbox:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    Global,
    /// Every sandbox whose primary workspace is this directory: an absolute path without symbolic links.
    Repo(Box<str>),
    Sandbox(String),
}

/// Who made a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The user, for every sandbox.
    Local,
    /// The user, for one sandbox or one repository.
    Scoped,
    Kit,
    Preset,
    /// The older `proxy-config.json` of a sandbox.
    ProxyConfig,
}

/// Which connections a rule speaks about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    #[default]
    Any,
    /// HTTP and HTTPS only: the older policy mode never opened other TCP.
    Web,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub id: String,
    pub name: String,
    /// `local-policy` (global), `local` (per sandbox or repository), `kit:NAME` or `proxy-config:NAME`.
    pub policy: String,
    pub scope: Scope,
    pub decision: Decision,
    pub resources: Vec<Pattern>,
    pub origin: Origin,
    #[serde(default)]
    pub traffic: Traffic,
    /// The hosts that it names exactly may resolve to private, loopback and other refused addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_private: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// It has expired: a clock that is set back does not change that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    pub editable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
}

#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("invalid scope `{0}`: it is `global`, `sandbox:NAME` or `repo:PATH` with an absolute path")]
pub struct BadScope(String);

impl Rule {
    /// A rule counts up to, not including, the moment in which it expires.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expired || self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Decision {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl Origin {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Scoped => "scoped",
            Self::Kit => "kit",
            Self::Preset => "preset",
            Self::ProxyConfig => "proxy-config",
        }
    }
}

impl Scope {
    /// The policy that rules of the user go to in this scope.
    pub fn policy(&self) -> &'static str {
        match self {
            Self::Global => "local-policy",
            Self::Sandbox(_) | Self::Repo(_) => "local",
        }
    }

    /// The scope of a repository, if `path` has the form of a canonical path.
    pub fn repo(path: &str) -> Result<Self, BadScope> {
        let named = |part: &str| !matches!(part, "" | "." | "..");
        match path.strip_prefix('/') {
            Some(rest) if rest.split('/').all(named) => Ok(Self::Repo(path.into())),
            Some(_) | None => Err(BadScope(format!("repo:{path}"))),
        }
    }

    /// Whether rules of this scope concern that one. Those of a sandbox are also concerned by the rules of its
    /// repository, `repo`, if it has one.
    pub fn concerns(&self, asked: &Self, repo: Option<&str>) -> bool {
        match self {
            Self::Global => true,
            Self::Repo(path) => asked == self || Some(&**path) == repo,
            Self::Sandbox(_) => asked == self,
        }
    }

    /// The option of `sbx policy` that means this scope, with a space before it.
    pub fn option(&self) -> String {
        match self {
            Self::Global => String::new(),
            Self::Repo(path) => format!(" --repo {}", quoted(path)),
            Self::Sandbox(name) => format!(" --sandbox {name}"),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global => f.write_str("global"),
            Self::Repo(path) => write!(f, "repo:{path}"),
            Self::Sandbox(name) => write!(f, "sandbox:{name}"),
        }
    }
}

impl FromStr for Scope {
    type Err = BadScope;

    fn from_str(text: &str) -> Result<Self, BadScope> {
        match text.split_once(':') {
            None if text == "global" => Ok(Self::Global),
            Some(("repo", path)) => Self::repo(path),
            Some(("sandbox", name)) if !name.is_empty() => Ok(Self::Sandbox(name.to_owned())),
            None | Some(_) => Err(BadScope(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = BadScope;

    fn try_from(text: String) -> Result<Self, BadScope> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

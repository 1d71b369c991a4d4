//! The answer to a question to the policy, with everything that a log line or a message needs to explain it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;
use crate::rule::{Origin, Scope};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    pub kind: Kind,
    pub rule: Option<RuleRef>,
    pub reason: String,
    /// A rule that names exactly this host lets it lead to addresses that are else refused.
    pub allows_private: bool,
    /// What a rule has to name to allow it: the address that was refused, or what no rule
    /// allows and another rule denies.
    pub opens: Option<Pattern>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Allowed,
    /// A deny rule matches.
    Explicit,
    /// No rule allows it.
    Implicit,
    /// The address is in a refused range and no rule names it.
    Address,
    /// The host, called by a name that only means the sandbox itself or its proxy.
    Loopback,
    /// The target could not be read.
    Malformed,
    /// A DNS question for records that are not answered, whatever the name.
    RecordType,
}

/// The rule that decided, and the one of its resources that matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRef {
    pub id: String,
    pub name: String,
    pub policy: String,
    pub scope: Scope,
    pub origin: Origin,
    pub resource: Pattern,
}

impl Verdict {
    /// What cannot be read is denied: on any doubt the policy says no.
    pub fn malformed(error: &dyn fmt::Display) -> Self {
        Self::denied(Kind::Malformed, error.to_string())
    }

    pub(crate) fn denied(kind: Kind, reason: String) -> Self {
        Self {
            allowed: false,
            kind,
            rule: None,
            reason,
            allows_private: false,
            opens: None,
        }
    }
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Explicit => "explicit",
            Self::Implicit => "implicit",
            Self::Address => "address",
            Self::Loopback => "loopback",
            Self::Malformed => "malformed",
            Self::RecordType => "record-type",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

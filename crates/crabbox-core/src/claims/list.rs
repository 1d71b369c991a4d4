//! `claims list`: what the files say, for programs and for people. No provider is asked.

use jiff::Timestamp;
use serde::Serialize;

use super::claim::{Claim, State};
use super::deadline::{Deadlines, Reason};
use super::problem::Problem;
use super::store::Scan;
use crate::{Code, Failure};

const HEADING: &str = "Local claims (unverified local state; provider backends were not queried)";

/// The value of `claims list --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listing {
    version: u32,
    source: &'static str,
    claims: Vec<Entry>,
    problems: Vec<Problem>,
}

/// One claim. The keys up to `idleTimeoutSeconds` are the original's, and always there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    lease_id: String,
    slug: String,
    provider: String,
    repo_root: String,
    pond: String,
    #[serde(rename = "targetOS")]
    target_os: String,
    windows_mode: String,
    claimed_at: Timestamp,
    last_used_at: Timestamp,
    idle_timeout_seconds: u64,
    ttl_seconds: u64,
    #[serde(flatten)]
    ends: Deadlines,
    state: State,
    keep: bool,
}

impl Listing {
    pub fn new(scan: &Scan) -> Self {
        let mut claims: Vec<_> = scan.claims.iter().map(Entry::of).collect();
        claims.sort_by(|a, b| {
            let key =
                |entry: &Entry| [&entry.lease_id, &entry.provider, &entry.slug].map(String::clone);
            key(a).cmp(&key(b))
        });
        Self {
            version: 1,
            source: "local-claims",
            claims,
            problems: scan.problems.clone(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.problems.is_empty()
    }

    /// What the command ends with after it has shown everything, if anything is damaged.
    pub fn failure(&self) -> Option<Failure> {
        let problems = match self.problems.len() {
            0 => return None,
            1 => "1 problem".to_owned(),
            count => format!("{count} problems"),
        };
        let message = format!("local claims have {problems}");
        Some(Failure::new(Code::State, message))
    }

    /// One block of lines per claim. Values are quoted: they come from files, and go to a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{HEADING}\n");
        if self.claims.is_empty() {
            text.push_str("\nNo claims.\n");
        }
        for entry in &self.claims {
            text.push('\n');
            for (key, value) in entry.lines() {
                text.push_str(&format!("{key}={value:?}\n"));
            }
        }
        for problem in &self.problems {
            let Problem {
                file,
                code,
                message,
            } = problem;
            text.push_str(&format!(
                "\nproblem={:?}\nfile={file:?}\nmessage={message:?}\n",
                code.to_string()
            ));
        }
        text
    }
}

impl Entry {
    fn of(claim: &Claim) -> Self {
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        // The original has this as a field of its own, we as a label.
        let pond = match claim.foreign_text("pond") {
            "" => text(claim.labels.get("pond").map(String::as_str)),
            pond => pond.to_owned(),
        };
        Self {
            lease_id: claim.lease_id.to_string(),
            slug: text(claim.slug.as_ref().map(|slug| slug.as_str())),
            provider: claim.provider.clone(),
            repo_root: text(claim.repo_root.as_ref().map(|root| root.as_str())),
            pond,
            target_os: claim.foreign_text("targetOS").to_owned(),
            windows_mode: claim.foreign_text("windowsMode").to_owned(),
            claimed_at: claim.claimed_at,
            last_used_at: claim.last_used_at,
            idle_timeout_seconds: claim.idle_timeout_seconds,
            ttl_seconds: claim.ttl_seconds,
            ends: claim.deadlines(),
            state: claim.state,
            keep: claim.keep,
        }
    }

    /// What is worth a line: values that are there.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string()).unwrap_or_default();
        let state = match self.state {
            State::Creating => "creating",
            State::Ready => "ready",
            State::Releasing => "releasing",
        };
        let due_reason = match self.ends.due_reason {
            None => "",
            Some(Reason::Idle) => "idle",
            Some(Reason::Ttl) => "ttl",
        };
        let mut lines = vec![
            ("leaseId", self.lease_id.clone()),
            ("slug", self.slug.clone()),
            ("provider", self.provider.clone()),
            ("repoRoot", self.repo_root.clone()),
            ("pond", self.pond.clone()),
            ("targetOS", self.target_os.clone()),
            ("windowsMode", self.windows_mode.clone()),
            ("state", state.to_owned()),
            ("keep", self.keep.to_string()),
            ("claimedAt", self.claimed_at.to_string()),
            ("lastUsedAt", self.last_used_at.to_string()),
            ("idleTimeoutSeconds", self.idle_timeout_seconds.to_string()),
            ("ttlSeconds", self.ttl_seconds.to_string()),
            ("expiresAt", time(self.ends.expires_at)),
            ("dueAt", time(self.ends.due_at)),
            ("dueReason", due_reason.to_owned()),
        ];
        lines.retain(|(_, value)| !value.is_empty());
        lines
    }
}

//! What a provider is to the rest of crabbox: facts in a [`Spec`], and a handful of operations.
//!
//! Everything that is the same for all of them (settings, claims, locks, sync, environment, timing, history, keeping
//! and releasing) is not here. An operation never prints, and never touches a claim.

mod class;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::claims::{Claim, LeaseId, OperationLock};
use crate::command::{Rules, display};
use crate::process::{Cancel, Output, Stdin};
use crate::settings::ProviderTable;
use crate::{Code, Failure};

pub use class::Class;

/// What is known about a provider without asking anybody. Drives discovery, the refusal of flags, and the docs.
#[derive(Debug)]
pub struct Spec {
    pub name: &'static str,
    pub family: &'static str,
    pub kind: &'static str,
    pub category: &'static str,
    pub targets: &'static [&'static str],
    pub features: &'static [&'static str],
    pub runtime: &'static [&'static str],
    pub evidence: &'static [&'static str],
    pub lifecycle: &'static [&'static str],
    pub coordinator: &'static str,
    pub table: ProviderTable,
    /// How its lease ids begin.
    pub lease_prefix: &'static str,
    pub workspace: WorkspaceKind,
    pub command: Rules<'static>,
    pub stop_by: StopBy,
    /// Whether `ports` and `cp` exist.
    pub ports: bool,
    pub copy: bool,
    /// What to use in place of `--class` and `--type`.
    pub instead_of_class: &'static str,
    pub instead_of_type: &'static str,
    /// Variables that hold its credentials: they never go into a sandbox.
    pub credentials: &'static [&'static str],
}

/// How the repository gets into the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceKind {
    /// The provider shares the directory itself.
    Shared,
    /// We send an archive.
    Archive,
}

/// Which name a command for cleaning up shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopBy {
    Slug,
    LeaseId,
}

/// The directory that a command is run for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    pub root: PathBuf,
    /// What the repository is called.
    pub name: String,
}

/// A sandbox that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intended {
    pub lease_id: LeaseId,
    pub scope: String,
    pub labels: BTreeMap<String, String>,
}

/// One command for a sandbox.
#[derive(Debug)]
pub struct Execution<'a> {
    pub argv: Vec<String>,
    pub env: &'a BTreeMap<String, String>,
    /// Where, if not in the provider's usual place.
    pub workdir: Option<&'a str>,
    pub workspace: &'a Workspace,
    pub stdin: Stdin,
    pub terminal: bool,
    pub stdout: Output,
    pub stderr: Output,
}

/// What the provider says about the sandbox of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub state: String,
    pub phase: Phase,
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A command can be run in it now.
    Ready,
    NotYet,
    /// It will never be ready.
    Over,
    /// The provider does not list it.
    Absent,
    /// Whoever could tell was not asked.
    Unknown,
}

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub status: Health,
    pub check: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

/// The detail of a check that tells people what to do about it.
pub const ADVICE: &str = "advice";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Ok,
    Warn,
    Skip,
    Missing,
    Failed,
}

/// A change of published ports, or only their list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortsRequest {
    pub publish: Vec<String>,
    pub unpublish: Vec<String>,
    pub json: bool,
}

/// A copy between here and a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyRequest {
    pub from: CopyEnd,
    pub to: CopyEnd,
    pub follow_links: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyEnd {
    Here(PathBuf),
    Sandbox(String),
}

pub trait Provider: Sync {
    fn spec(&self) -> &'static Spec;

    /// Everything that can be wrong with the settings, without asking anybody.
    fn validate(&self) -> Result<(), Failure>;

    /// A name for a new sandbox. Refuses what could never be made in this place; changes nothing.
    fn intend(&self, workspace: &Workspace) -> Result<Intended, Failure>;

    /// Makes what was intended. Labels for the claim come back. `lock` is the lease's: whatever may go on making the
    /// sandbox after we died holds it too.
    fn create(
        &self,
        claim: &Claim,
        workspace: &Workspace,
        lock: &OperationLock,
        cancel: &Cancel,
    ) -> Result<BTreeMap<String, String>, Failure>;

    /// Where commands run by default.
    fn workdir(&self, workspace: &Workspace) -> PathBuf;

    /// Runs a command to its end. The code is the command's own; when the provider failed instead, that is a failure.
    fn exec(&self, claim: &Claim, exec: Execution<'_>, cancel: &Cancel) -> Result<i32, Failure>;

    /// What became of the sandboxes, in the order of the claims.
    fn observe(&self, claims: &[Claim], cancel: &Cancel) -> Result<Vec<Observed>, Failure>;

    /// What is said of a lease whose sandbox [`Self::observe`] did not find.
    fn absent(&self, claim: &Claim) -> Failure;

    /// Removes the sandbox. `Ok` only when it is proved to be gone. `begin` is called before the first thing that
    /// changes it: a failure without that call leaves the sandbox as it was.
    fn remove(
        &self,
        claim: &Claim,
        begin: &dyn Fn() -> Result<(), Failure>,
        cancel: &Cancel,
    ) -> Result<(), Failure>;

    /// Why nobody but the user may remove this sandbox; `None` when there is no reason.
    fn only_by_hand(&self, _claim: &Claim) -> Option<String> {
        None
    }

    /// Whether a lease is kept after a command that succeeded, and what to say then.
    fn keep_after_success(&self, _claim: &Claim, _stop: &str) -> Option<String> {
        None
    }

    /// Changes nothing.
    fn doctor(&self, cancel: &Cancel) -> Vec<Check>;

    fn ports(
        &self,
        _claim: &Claim,
        _request: &PortsRequest,
        _cancel: &Cancel,
    ) -> Result<Vec<u8>, Failure> {
        Err(self.unsupported("ports; it has no way to publish them"))
    }

    fn copy(
        &self,
        _claim: &Claim,
        _request: &CopyRequest,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        Err(self.unsupported("cp; it has neither native copy nor an SSH lease transport"))
    }

    /// The flags of this command line without which another one would not find the same sandboxes.
    fn again(&self) -> &[String] {
        &[]
    }

    /// The command that removes a lease.
    fn stop_command(&self, claim: &Claim) -> String {
        let id = self.spec().shown_id(claim);
        format!("{} {id}", self.command("stop"))
    }

    /// A command of ours for the same provider, to which its own words are added.
    fn command(&self, name: &str) -> String {
        let mut words = vec!["crabbox", name, "--provider", self.spec().name];
        words.extend(self.again().iter().map(String::as_str));
        display(&words)
    }

    fn unsupported(&self, what: &str) -> Failure {
        let message = format!("provider={} does not support {what}", self.spec().name);
        Failure::new(Code::Unsupported, message)
    }
}

impl Spec {
    /// What a lease is called in commands that are shown.
    pub fn shown_id<'c>(&self, claim: &'c Claim) -> &'c str {
        match (self.stop_by, &claim.slug) {
            (StopBy::Slug, Some(slug)) => slug.as_str(),
            (StopBy::Slug, None) | (StopBy::LeaseId, _) => claim.lease_id.as_str(),
        }
    }
}

impl Check {
    pub fn new(status: Health, check: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            check: check.to_owned(),
            provider: None,
            message: message.into(),
            details: BTreeMap::new(),
        }
    }

    /// With what to do about it, if that is known.
    pub fn of_failure(status: Health, check: &str, failure: &Failure) -> Self {
        let check = Self::new(status, check, failure.to_string());
        match failure.hints.is_empty() {
            true => check,
            false => check.detail(ADVICE, failure.hints.join("; ")),
        }
    }

    /// With the words for programs.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        self.detail("class", class.as_str())
            .detail("hint", class.hint())
    }

    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<String>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }
}

impl Health {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Skip => "skip",
            Self::Missing => "missing",
            Self::Failed => "failed",
        }
    }

    pub fn is_bad(self) -> bool {
        matches!(self, Self::Missing | Self::Failed)
    }
}

impl Workspace {
    pub fn new(root: &Path, name: String) -> Self {
        Self {
            root: root.to_path_buf(),
            name,
        }
    }
}

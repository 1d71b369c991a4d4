//! What a provider is to the rest of crabbox: facts in a [`Spec`], and a handful of operations.
//!
//! Everything that is the same for all providers (settings, claims, locks, sync decisions, environment, timing, history,
//! keeping and releasing) is not here. An operation never prints, and never touches a claim.
//!
//! In the order of a run: [`Provider::validate`], [`Provider::plan`] (both before anything exists), [`Provider::create`],
//! [`Provider::poll_ready`] until it is ready, the calls of [`ArchiveSync`] where the repository is sent,
//! [`Provider::exec`], [`Provider::remove`]. Each call that uses or changes a sandbox takes a [`Verified`] claim, which
//! only the lifecycle makes, by calling [`Provider::verify`] immediately before.

mod archive;
mod build_cache;
mod check;
mod class;
mod notices;
mod spec;
mod verified;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use crate::claims::{Claim, LeaseId, OperationLock};
use crate::command::display;
use crate::git::Env;
use crate::process::{Cancel, Output, Stdin};
use crate::{Code, Failure};

pub use archive::{ArchiveSync, Staged, SyncMode, SyncPhases, Upload};
pub use build_cache::{BuildCache, ClearedCaches};
pub use check::{ADVICE, Check, Health};
pub use class::Class;
pub use notices::{Denials, Notices};
pub use spec::{BusyLease, ExpiredLease, Spec, StopBy, WorkspaceKind};
pub use verified::{EXPIRED, MISSING, Use, Verified, verify};

/// What a lease is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    Warmup,
    Run { sync: bool },
    SyncOnly,
}

/// What the provider says about a sandbox, for the claim.
pub type Labels = BTreeMap<String, String>;

/// What a constructor knows of this machine.
#[derive(Debug, Clone)]
pub struct HostContext {
    /// `PATH`.
    pub path: OsString,
    /// The directory of our own program.
    pub beside: Option<PathBuf>,
    /// Directories that programs in sandboxes write to: no program is searched for there.
    pub checkouts: Vec<PathBuf>,
    /// Where relative paths of the repository's files begin.
    pub root: PathBuf,
    /// Where all other relative paths begin.
    pub cwd: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// The caller's environment.
    pub env: Env,
}

/// The directory that a command is run for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    pub root: PathBuf,
    /// What the repository is called.
    pub name: String,
}

/// A lease that the user wants.
#[derive(Debug, Clone, Copy)]
pub struct NewLease<'a> {
    pub workspace: &'a Workspace,
    /// The id that the user chose, where [`Spec::fixed_lease_id`] allows it.
    pub lease_id: Option<&'a LeaseId>,
    pub ttl: Duration,
    /// Whether nothing of the sandbox is wanted when its run is over, whatever comes of that.
    pub one_shot: bool,
}

/// A sandbox that is about to be created. It is recorded before it is: what [`Provider::create`] needs to find its own
/// sandbox again after it lost the answer (a name, a nonce) belongs in the labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasePlan {
    pub lease_id: LeaseId,
    pub scope: String,
    pub labels: Labels,
}

/// A sandbox that was created, or found again and adopted. It need not be ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Created {
    /// For the claim.
    pub labels: Labels,
    /// The final id, where it follows from what the provider calls the sandbox.
    pub lease_id: Option<LeaseId>,
    /// A line for people, such as that the sandbox was adopted.
    pub notice: Option<String>,
}

/// Why there is no sandbox, and whether there may be one all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateFailure {
    pub failure: Box<Failure>,
    pub left: Left,
}

/// What a failed creation left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The request was refused, or never sent.
    Nothing,
    /// The answer was lost, or only a part was made.
    MaybeSandbox,
}

/// Whether commands can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// With labels for the claim.
    Ready(Labels),
    NotYet {
        /// For the message of a timeout.
        waiting_for: String,
        retry_after: Duration,
    },
}

/// What came of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// The sandbox is proved to be gone.
    Gone,
    /// The provider does not know it, and the user said that this is enough. The text is a warning.
    Forgotten(String),
    /// The provider does not know it, which proves nothing: the claim stays.
    Missing(Failure),
}

/// One command for a sandbox.
#[derive(Debug)]
pub struct Execution<'a> {
    pub argv: Vec<String>,
    pub env: &'a BTreeMap<String, String>,
    /// `None` is the provider's default.
    pub workdir: Option<&'a str>,
    pub workspace: &'a Workspace,
    pub stdin: Stdin,
    /// Whether the user asked for stdin, and does not only happen to have one.
    pub interactive: bool,
    pub terminal: bool,
    /// For a child process, or through a [`crate::process::Relay`] for output that the provider reads itself.
    pub stdout: Output,
    pub stderr: Output,
}

/// What the provider says about the sandbox of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub state: String,
    pub phase: Phase,
    pub labels: Labels,
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
    /// The engine or server that could tell was not asked.
    Unknown,
}

/// How a run ended, as far as keeping its lease goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    Succeeded,
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

    /// What runs commands, as people call it.
    fn runner(&self) -> String {
        self.spec().name.to_owned()
    }

    /// How a message begins that says what failed: with the provider's name, or for people with what runs commands.
    fn called(&self) -> String {
        self.spec().name.to_owned()
    }

    /// Where the provider's own lines for people go.
    fn listen(&mut self, _notices: Notices) {}

    /// Whether a command gets the caller's terminal without being asked for. What it writes there is recorded as well.
    fn gives_terminal(&self, _cancel: &Cancel) -> bool {
        false
    }

    /// Everything that can be wrong with the settings. Asks no other program.
    fn validate(&self) -> Result<(), Failure>;

    /// Why this provider, as it is configured, has nothing to do with a lease: it is of another cluster or account. Such
    /// leases are not listed, swept or cleaned up.
    fn scope_mismatch(&self, _claim: &Claim) -> Option<Failure> {
        None
    }

    /// Names a new sandbox. Refuses what could never be created from this directory; changes nothing.
    fn plan(&self, request: &NewLease<'_>) -> Result<LeasePlan, Failure>;

    /// Whether a new lease lives long enough for what it is needed for. Asked before anything is created.
    fn check_lifetime(&self, _ttl: Duration, _demand: Demand) -> Result<(), Failure> {
        Ok(())
    }

    /// The same of a lease whose sandbox exists.
    fn check_time_left(&self, _claim: &Claim, _demand: Demand) -> Result<(), Failure> {
        Ok(())
    }

    /// What of a lease whose id the user chose is not what these settings ask for, besides the scope.
    fn request_difference(
        &self,
        _claim: &Claim,
        _cancel: &Cancel,
    ) -> Result<Option<&'static str>, Failure> {
        Ok(None)
    }

    /// Creates what was planned and recorded. `lock` is the lease's operation lock: a child process that may go on
    /// creating the sandbox after we died has to hold it too.
    fn create(
        &self,
        claim: &Claim,
        workspace: &Workspace,
        lock: &OperationLock,
        cancel: &Cancel,
    ) -> Result<Created, CreateFailure>;

    /// How long a sandbox may take to become ready; `None`: the provider sets no limit. The lease's end is one in any case.
    fn ready_timeout(&self) -> Option<Duration> {
        None
    }

    /// Whether commands can run in the sandbox now. Also asked of a lease that is used again, so that a paused sandbox
    /// can be resumed. A sandbox that will never be ready is a failure.
    fn poll_ready(&self, _claim: &Claim, _cancel: &Cancel) -> Result<Readiness, Failure> {
        Ok(Readiness::Ready(Labels::new()))
    }

    /// Proves that the sandbox is the one of the claim, before it is used in this way, and what of it the operation that
    /// follows needs to know. Called by the lifecycle only, see [`verify`].
    fn verify(&self, claim: &Claim, intent: Use, cancel: &Cancel) -> Result<Labels, Failure>;

    /// How the repository is sent, if [`Spec::workspace`] says that it is.
    fn archive(&self) -> Option<&dyn ArchiveSync> {
        None
    }

    /// Where commands run by default.
    fn workdir(&self, workspace: &Workspace) -> PathBuf;

    /// Runs a command to its end. The code is the command's own; when the provider failed instead, that is a failure.
    fn exec(
        &self,
        sandbox: &Verified<'_>,
        exec: Execution<'_>,
        cancel: &Cancel,
    ) -> Result<i32, Failure>;

    /// What the network policy has denied the sandbox since then.
    fn denials(
        &self,
        _claim: &Claim,
        _workspace: &Workspace,
        _since: Timestamp,
        _cancel: &Cancel,
    ) -> Result<Denials, Failure> {
        Ok(Denials::default())
    }

    /// What became of the sandboxes, in the order of the claims.
    fn observe(&self, claims: &[Claim], cancel: &Cancel) -> Result<Vec<Observed>, Failure>;

    /// Whether the claim records that the sandbox existed. One that is not found any more is gone then, and not still to come.
    fn was_seen(&self, _claim: &Claim) -> bool {
        false
    }

    /// What is said of a lease whose sandbox [`Self::observe`] did not find.
    fn absent(&self, claim: &Claim) -> Failure;

    /// Removes the sandbox. `begin` is called before the first request that changes it: a failure without that call
    /// leaves the sandbox as it was.
    fn remove(
        &self,
        sandbox: &Verified<'_>,
        begin: &dyn Fn() -> Result<(), Failure>,
        cancel: &Cancel,
    ) -> Result<Removal, Failure>;

    /// Why only the user may remove this sandbox; `None` when there is no reason.
    fn manual_removal_reason(&self, _claim: &Claim) -> Option<String> {
        None
    }

    /// Whether a new lease is kept after its run although that was not asked for, and what to say then.
    fn keep_after_run(&self, _claim: &Claim, _end: RunEnd, _stop: &str) -> Option<String> {
        None
    }

    /// What the sandbox is called, for the lines of a run: `sandbox=NAME`, and whatever else it has.
    fn names(&self, claim: &Claim) -> String {
        format!("sandbox={}", claim.sandbox().unwrap_or("-"))
    }

    /// The same where it is told for the first time.
    fn names_when_leased(&self, claim: &Claim) -> String {
        let sandbox = claim.sandbox().unwrap_or("-");
        format!("sandbox={sandbox} name={sandbox}")
    }

    /// What of it is removed, for the lines of `stop`.
    fn removed_name(&self, claim: &Claim) -> String {
        format!("sandbox={}", claim.sandbox().unwrap_or("-"))
    }

    /// Changes nothing.
    fn doctor(&self, cancel: &Cancel) -> Vec<Check>;

    /// The same, where it is known how many leases there are.
    fn doctor_counting(&self, _leases: usize, cancel: &Cancel) -> Vec<Check> {
        self.doctor(cancel)
    }

    /// The same for the program or server of a lease, which may be another one.
    fn doctor_for(&self, _claim: &Claim, cancel: &Cancel) -> Vec<Check> {
        self.doctor(cancel)
    }

    fn ports(
        &self,
        _sandbox: &Verified<'_>,
        _request: &PortsRequest,
        _cancel: &Cancel,
    ) -> Result<Vec<u8>, Failure> {
        Err(self.unsupported("ports; it has no way to publish them"))
    }

    fn copy(
        &self,
        _sandbox: &Verified<'_>,
        _request: &CopyRequest,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        Err(self.unsupported("cp; it has neither native copy nor an SSH lease transport"))
    }

    /// What a line of `cleanup` calls a lease.
    fn swept_subject(&self, claim: &Claim) -> String {
        format!("lease={}", claim.lease_id)
    }

    /// The build caches of all repositories.
    fn build_caches(&self, _cancel: &Cancel) -> Result<Vec<BuildCache>, Failure> {
        Err(self.unsupported("cache; it keeps no build cache"))
    }

    /// Removes the build cache of one repository or all, but for those that sandboxes write to.
    fn clear_build_caches(
        &self,
        _workspace: Option<&Path>,
        _cancel: &Cancel,
    ) -> Result<ClearedCaches, Failure> {
        Err(self.unsupported("cache; it keeps no build cache"))
    }

    /// The command that stops a sandbox which is not a lease of ours.
    fn stop_sandbox_command(&self, _sandbox: &str) -> Option<String> {
        None
    }

    /// The flags of this command line without which another one would not find the same sandboxes.
    fn repeat_flags(&self) -> &[String] {
        &[]
    }

    /// A variable that says of the route what no flag can say, with its value.
    fn repeat_variable(&self) -> Option<(&str, &str)> {
        None
    }

    /// The command that removes a lease.
    fn stop_command(&self, claim: &Claim) -> String {
        let id = self.spec().shown_id(claim);
        format!("{} {id}", self.command("stop"))
    }

    /// A command of ours for the same provider, to which its arguments are added.
    fn command(&self, name: &str) -> String {
        let mut words = vec!["crabbox", name, "--provider", self.spec().name];
        words.extend(self.repeat_flags().iter().map(String::as_str));
        match self.repeat_variable() {
            Some((name, value)) => format!("{name}={} {}", display(&[value]), display(&words)),
            None => display(&words),
        }
    }

    fn unsupported(&self, what: &str) -> Failure {
        let message = format!("provider={} does not support {what}", self.spec().name);
        Failure::new(Code::Unsupported, message)
    }
}

impl CreateFailure {
    /// Of a request that was refused or never sent.
    pub fn nothing_created(failure: Failure) -> Self {
        Self {
            failure: Box::new(failure),
            left: Left::Nothing,
        }
    }
}

/// In doubt there may be a sandbox.
impl From<Failure> for CreateFailure {
    fn from(failure: Failure) -> Self {
        Self {
            failure: Box::new(failure),
            left: Left::MaybeSandbox,
        }
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

//! The wire contract of `sandboxd`: what the command line (and any other local program of the same user)
//! sends and receives as JSON over the Unix socket. Types only; no I/O.
//!
//! Every request carries [`VERSION_HEADER`]; a daemon of another version answers 409 and says so.

pub mod policy;
mod ports;
pub mod vm;

use std::collections::BTreeMap;

use jiff::Timestamp;
use sbx_proto::object::{object, objects};
use serde::{Deserialize, Serialize};

pub use ports::{PortChange, PortChanges, PortMapping, Protocol, Transport};
use utoipa::ToSchema;

/// Name of the request header that carries the client's version.
pub const VERSION_HEADER: &str = "sbx-version";
/// The version of client and daemon; they must be equal.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The versions of Docker's own `sbx` whose command line this one answers like.
pub const CONTRACT: &str = "0.31.3 0.39";

/// Every answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong, for people.
    pub message: String,
    /// A stable word for programs.
    pub code: ErrorCode,
    /// The next command to type, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 400: the request is not understood or not allowed.
    BadRequest,
    /// 404: no such sandbox or route.
    NotFound,
    /// 409: the name is taken, a session is open, the sandbox is changing.
    Conflict,
    /// 409: client and daemon are of different versions.
    VersionMismatch,
    /// 413: the body is larger than what is accepted.
    TooLarge,
    /// 501: comes with a later version.
    NotYet,
    /// 500: the engine failed.
    Engine,
}

/// `GET /v1/version`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonInfo {
    pub version: String,
    pub pid: u32,
    #[schema(value_type = String)]
    pub started_at: Timestamp,
    pub socket: String,
    pub log: String,
}

/// `POST /v1/sandboxes`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// `<agent>-<directory>` when absent.
    #[serde(default)]
    pub name: Option<String>,
    pub agent: String,
    /// Absolute paths; the first is the primary one, in which commands begin. Without any they begin in
    /// `/home/agent/workspace`, a directory of the sandbox's own.
    #[serde(deserialize_with = "objects")]
    pub workspaces: Vec<WorkspaceRequest>,
    /// Stored in the sandbox, for every command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What the caller's own environment says about tools and identity.
    #[serde(deserialize_with = "object")]
    pub caller: Caller,
    /// `linux/amd64` style; must be this machine's.
    #[serde(default)]
    pub platform: Option<String>,
    /// Hosts that this sandbox may not reach, whatever other rules say.
    #[serde(default)]
    pub deny_network: Vec<String>,
    /// How long it stays up without a command; 0 is for ever. As the settings say when absent.
    #[serde(default)]
    pub idle_seconds: Option<u64>,
    /// Ports to publish, as `[[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL]`.
    #[serde(default)]
    pub publish: Vec<String>,
    /// Keep what tools cache inside for the next sandbox of the same primary workspace that asks for it.
    #[serde(default)]
    pub cache: bool,
    /// Let programs inside commit in workspaces that are linked git worktrees.
    #[serde(default)]
    pub git_write: bool,
    /// Removed when it stops, whether or not its creator is still there.
    #[serde(default)]
    pub temporary: bool,
    /// What it may use at most; what is absent is as usual.
    #[serde(default)]
    pub limits: Limits,
    /// Those of the limits that are enforced where possible; another one that cannot be enforced is an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_preferred: Vec<LimitKind>,
    /// The saved template to make it from; `host`, this machine's own system, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// A limit, by the name of its flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    Cpus,
    Memory,
    Pids,
    Disk,
}

impl LimitKind {
    /// As in the flags of `sbx create`, without hyphens.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpus => "cpus",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Disk => "disk",
        }
    }
}

/// What all processes of a sandbox may use together. In an answer, what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Of the sandbox's own files, without the workspaces and the build cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

/// `GET /v1/sandboxes/{name}/usage`: what a sandbox uses now. All but the disk is 0 of one that does not run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// CPU time of its processes since it was started, in microseconds.
    pub cpu_micros: u64,
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
    /// What its own files take on disk, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceRequest {
    pub path: String,
    /// The path as the user gave it, made absolute: where a link in it leads is checked. Absent when that is `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<String>,
    /// Where it is to be inside, an absolute path; at `path` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default)]
    pub readonly: bool,
}

/// The few things of the caller's environment that a sandbox carries in. Nothing else of it is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Caller {
    pub home: String,
    /// The caller's PATH: the tool chains on it are made visible.
    #[serde(default)]
    pub path: String,
    /// Variables that tell where tool chains are (`RUSTUP_HOME`, `PYENV_ROOT`, ...) and git's configuration
    /// (`GIT_CONFIG_GLOBAL`, `XDG_CONFIG_HOME`, ...), locale, time zone.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Who commits inside. Without it and `git_email` the daemon asks git, with the caller's configuration and that
    /// of the primary workspace.
    #[serde(default)]
    pub git_name: Option<String>,
    #[serde(default)]
    pub git_email: Option<String>,
}

/// What `POST /v1/sandboxes` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Created {
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// Sent once, to the client that created it: the network policy that was taken because none had been chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// `GET /v1/sandboxes`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    pub sandboxes: Vec<Sandbox>,
}

/// `GET /v1/summaries`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SummaryList {
    pub sandboxes: Vec<Summary>,
}

/// What a list shows of a sandbox: a fraction of all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Summary {
    pub name: String,
    pub id: String,
    pub agent: String,
    pub status: Status,
    pub backend: Backend,
    /// The privilege mode: `root`, `subordinate` or `single`.
    pub mode: String,
    pub workspaces: Vec<Workspace>,
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>)]
    pub last_used_at: Option<Timestamp>,
    /// Commands that run now.
    pub sessions: u32,
    pub limits: Limits,
    /// Published ports; those of one that does not run are published at the next start.
    pub ports: Vec<PortMapping>,
}

impl From<Sandbox> for Summary {
    fn from(sandbox: Sandbox) -> Self {
        Self {
            name: sandbox.name,
            id: sandbox.id,
            agent: sandbox.agent,
            status: sandbox.status,
            backend: sandbox.backend,
            mode: sandbox.mode,
            workspaces: sandbox.workspaces,
            created_at: sandbox.created_at,
            last_used_at: sandbox.last_used_at,
            sessions: sandbox.sessions,
            limits: sandbox.limits,
            ports: sandbox.ports,
        }
    }
}

/// A sandbox as every reading call shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    pub name: String,
    pub id: String,
    pub agent: String,
    pub status: Status,
    pub template: String,
    pub backend: Backend,
    /// The privilege mode: `root`, `subordinate` or `single`.
    pub mode: String,
    pub workspaces: Vec<Workspace>,
    /// Names only: values may be secret.
    pub env: Vec<String>,
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>)]
    pub started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>)]
    pub stopped_at: Option<Timestamp>,
    #[schema(value_type = Option<String>)]
    pub last_used_at: Option<Timestamp>,
    /// Why it is not running: `user`, `idle`, `daemon stop`, `crashed`, ...
    pub stop_reason: Option<String>,
    /// When it will stop by itself.
    #[schema(value_type = Option<String>)]
    pub stop_at: Option<Timestamp>,
    /// Stays up without a command (`run -d`).
    pub keep_alive: bool,
    /// How long it stays up without a command, where it has a time of its own; 0 is for ever.
    #[serde(default)]
    pub idle_seconds: Option<u64>,
    /// Whether what tools cache inside is kept, for one that asked for it: `kept`, or `busy` when another sandbox of
    /// the repository had the cache at its last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheState>,
    /// Removed when it stops (`run --rm`).
    #[serde(default)]
    pub temporary: bool,
    /// Commands that run now.
    pub sessions: u32,
    #[serde(default)]
    pub limits: Limits,
    pub mounts: Vec<Mount>,
    /// Published ports; those of one that does not run are published at the next start.
    #[serde(default)]
    pub ports: Vec<PortMapping>,
    /// As of the last start; absent before the first.
    pub network: Option<Network>,
    /// What this backend and mode give and do not give, in words.
    pub isolation: Vec<String>,
    /// Anything the user should know: host changed since create, limits not enforced.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Creating,
    Running,
    Stopped,
    Removing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    Namespace,
    Microvm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    Kept,
    Busy,
}

/// The build cache of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildCache {
    /// The primary workspace of its sandboxes.
    pub workspace: String,
    /// Owner of the workspace.
    pub uid: u32,
    /// After the last use; absent until then.
    pub bytes: Option<u64>,
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    #[schema(value_type = String)]
    pub used_at: Timestamp,
    /// The sandbox that writes to it now.
    pub sandbox: Option<String>,
}

/// `POST /v1/caches/clear`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearCaches {
    /// Only the cache of this workspace, a canonical path.
    #[serde(default)]
    pub workspace: Option<String>,
}

/// A template that was saved from a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedTemplate {
    pub id: String,
    pub repository: String,
    pub tag: String,
    /// The agent of that sandbox.
    pub flavor: String,
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    /// On disk, in bytes, without the templates that it is made from.
    pub size: u64,
    /// The name of that sandbox.
    pub sandbox: String,
}

impl SavedTemplate {
    pub fn name(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }
}

/// `GET /v1/templates`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    pub images: Vec<SavedTemplate>,
}

/// `POST /v1/templates`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaveTemplate {
    pub sandbox: String,
    /// `NAME[:TAG]`; `latest` is meant when there is no tag.
    pub tag: String,
    /// Of the sandbox that is meant; 404 when another one has the name.
    #[serde(default)]
    pub id: Option<String>,
}

/// What `POST /v1/templates` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedNow {
    pub template: SavedTemplate,
    pub warnings: Vec<String>,
}

/// `POST /v1/templates/remove`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveTemplate {
    /// `NAME[:TAG]`, or the beginning of an id that no other one has.
    pub template: String,
}

/// What `POST /v1/templates/remove` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedTemplate {
    pub template: SavedTemplate,
    /// Made from it. They go on, and its files are kept for them.
    pub sandboxes: Vec<String>,
}

/// What `POST /v1/caches/clear` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClearedCaches {
    pub cleared: Vec<BuildCache>,
    /// Left alone: a sandbox writes to them.
    pub busy: Vec<BuildCache>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspace {
    pub path: String,
    /// Where it is inside, if not at `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub readonly: bool,
    /// Mounted after the sandbox was made: never the primary one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub added: bool,
    /// What the sandbox, which runs, does not have yet, but will from its next start on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingMount>,
    /// The directory no longer exists.
    pub missing: bool,
}

/// What becomes of a workspace with the next start of its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PendingMount {
    Mount,
    Unmount,
}

/// `POST /v1/sandboxes/{name}/unmount`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnmountRequest {
    /// The workspace's path on the host, or its place inside.
    pub path: String,
}

/// What `POST /v1/sandboxes/{name}/mount` and `/unmount` answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountChange {
    /// The one that was mounted or unmounted. With `pending`, the running sandbox has not changed.
    pub workspace: Workspace,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// If the sandbox does not run, the change holds from its next start on.
    pub running: bool,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    pub target: String,
    pub source: String,
    pub readonly: bool,
    pub kind: MountKind,
}

/// How a sandbox's network is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Network {
    pub redirect: Redirect,
}

/// How what programs send to the world gets to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Redirect {
    /// By rules of nf_tables: programs inside have every port for themselves.
    Nft,
    /// Without nf_tables: from a few well-known ports, on which programs inside then cannot listen.
    Ports,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MountKind {
    Workspace,
    /// Covers what the `.sbxignore` of a workspace names.
    Mask,
    Template,
    Toolchain,
    Cache,
    Git,
}

/// `POST /v1/sandboxes/{name}/start`: starts it if it is not running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Started {
    /// Where its init listens, relative to the state directory.
    pub exec_socket: String,
    /// False when it was running already.
    pub started: bool,
    pub warnings: Vec<String>,
    /// Sent once, to the client that started it: the network policy that was taken because none had been chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// `POST /v1/sandboxes/{name}/keep`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeepRequest {
    pub keep_alive: bool,
    /// Removed when it stops, whether or not its creator is still there.
    #[serde(default)]
    pub temporary: bool,
    /// Of the sandbox that is meant: another one may have its name by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// What `DELETE /v1/sandboxes/{name}` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// What could not be done in the workspaces, which stay.
    pub warnings: Vec<String>,
}

/// `POST /v1/daemon/shutdown`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownRequest {
    /// `daemon restart` leaves them running, `daemon stop` does not.
    pub stop_sandboxes: bool,
}

/// `GET /v1/settings` and `POST /v1/settings/reload`: what only the daemon knows of its settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettingsState {
    /// By key, the values that variables of the daemon's environment gave it. They beat `settings.json`.
    pub environment: BTreeMap<String, String>,
    /// Keys that have another value by now, which the next daemon will follow.
    pub restart_needed: Vec<String>,
}

/// `GET` and `PUT /v1/daemon/log-level`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLevels {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub general: String,
    pub proxy: String,
}

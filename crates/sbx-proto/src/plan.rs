//! What the daemon hands to the single-threaded setup helper: every decision already made, as data.
//!
//! The helper is the same executable, started from a sealed copy with an empty environment and a Unix
//! socket as its stdin. It receives one [`Plan`] (with the descriptors that [`Boot`] names), applies it
//! without deciding anything, and answers with [`Outcome`] messages.

use serde::{Deserialize, Serialize};

use crate::OsBytes;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub protocol: u32,
    pub ids: Ids,
    /// Needed in [`Mode::Subordinate`].
    #[serde(default)]
    pub mappers: Option<Mappers>,
    pub job: Job,
}

/// Where `newuidmap` and `newgidmap` lie, which are not in the same place everywhere. The helper has no PATH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mappers {
    pub uid: OsBytes,
    pub gid: OsBytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Job {
    /// Make the sandbox and stay in it as its init.
    Boot(Box<Boot>),
    /// Do something with files that belong to the sandbox's ids, as root of its user namespace, and end.
    Task(Task),
    /// Hand files of the sandbox's ids over to the agent, as its init would have done, and end.
    HandOver(HandOver),
    /// Mount a workspace into a sandbox that runs. The descriptors of [`RUNNING_DESCRIPTORS`] come with the plan.
    Attach(Box<Attach>),
    /// Take one away from a sandbox that runs. The same descriptors come with the plan.
    Detach(Detach),
    /// Try everything that a boot needs of the kernel, leave nothing, and end.
    Probe,
}

/// Work for [`Job::Task`]. What a task does is known to the engine, not to this crate's users inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Task {
    /// Remove everything below `path` and `path` itself; a missing path is not an error.
    RemoveTree { path: OsBytes },
    /// Say how much everything below `path` takes on disk.
    Measure { path: OsBytes },
    /// Build the host template's layers in `path`; `spec` is the engine's own JSON.
    BuildTemplate { path: OsBytes, spec: String },
    /// Copy the layers of a sandbox that does not run.
    CopyLayers(CopyLayers),
}

/// What becomes a saved template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyLayers {
    /// The directory with `NAME/upper` of every overlay, or the image of a file system that is one.
    pub from: OsBytes,
    /// `from` is an image. In root mode only.
    pub disk: bool,
    /// An empty directory, which gets a `NAME` of each.
    pub to: OsBytes,
    /// Overlays that are left out: their names begin so.
    pub skip: String,
    /// What is the sandbox's alone, as paths inside.
    pub omit: Vec<OsBytes>,
    /// Cut out of `bundles`.
    pub certificate: String,
    pub bundles: Vec<OsBytes>,
}

/// For the workspaces of an init that was killed before it could do this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The writable ones. Something else than what was shared is left alone.
    pub workspaces: Vec<Source>,
    /// What the sandbox could only read, and the workspaces themselves: left alone wherever they lie in another one, whose
    /// owner need not be theirs.
    pub excluded: Vec<Node>,
    /// As [`Boot::made_at`].
    pub made_at: i64,
    /// After which it is given up.
    pub limit_ms: u32,
}

/// Descriptors that come with [`Job::Attach`] and [`Job::Detach`], in this order: the outer user and mount namespace, and
/// the inner ones, in which commands run.
pub const RUNNING_DESCRIPTORS: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    pub source: Source,
    /// Where inside.
    pub target: OsBytes,
    /// It may be mounted there already.
    pub again: bool,
    /// The pid of the sandbox's init. Only host root may compare the namespaces with those of that process.
    pub init: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    pub target: OsBytes,
    /// What has to be mounted there. A file may have been replaced on the host, which takes the mount away.
    pub node: Option<Node>,
    /// As [`Attach::init`].
    pub init: i32,
}

/// A file or directory, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub device: u64,
    pub inode: u64,
}

/// How ids inside relate to ids outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    pub mode: Mode,
    pub uid: Vec<IdRange>,
    pub gid: Vec<IdRange>,
}

/// The privilege mode of a sandbox: what the machine lets this caller do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The caller is root: a range of ids of the sandbox's own, never host uid 0.
    Root,
    /// An ordinary user with subordinate ids, mapped by `newuidmap` and `newgidmap`.
    Subordinate,
    /// An ordinary user with nothing but the own id, which is the agent inside.
    Single,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// Descriptors that come with a boot plan, in this order: the exec listener, the two output logs, the program
/// that [`Step::Install`] puts into the sandbox. After them, files of control groups that every command joins by
/// writing `0`.
pub const BOOT_DESCRIPTORS: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    /// The sandbox's uuid; init sends it to every client that connects.
    pub id: String,
    pub hostname: String,
    pub sources: Vec<Source>,
    /// Applied in order, below the new root.
    pub steps: Vec<Step>,
    /// Environment of every command; a request adds to it.
    pub env: Vec<(OsBytes, OsBytes)>,
    /// Working directory of commands that name none.
    pub workdir: OsBytes,
    /// Writable workspaces, by their path inside. No setuid bit may appear below them, and files of other
    /// ids than the agent's are handed over to it.
    pub workspaces: Vec<OsBytes>,
    /// Linked git worktrees in which commits are allowed.
    #[serde(default)]
    pub git: Vec<GitWorktree>,
    /// When the sandbox was made, in nanoseconds of the Unix epoch: what was last changed before is not handed over.
    pub made_at: i64,
    pub limits: Limits,
}

/// A linked git worktree whose index, HEAD and reflogs init keeps the same inside and on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitWorktree {
    /// The worktree's own directory, inside: a mount of the sandbox's own.
    pub directory: OsBytes,
    /// The same on the host: a source that no step mounts.
    pub host: usize,
    /// The directory `logs` of its repository, inside.
    pub logs: OsBytes,
    pub host_logs: usize,
}

/// How much a sandbox may have of what the kernel counts per user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Files below `/proc/sys/user` and their values in the outer user namespace.
    pub user: Vec<(String, u64)>,
    /// Of every command.
    pub open_files: OpenFiles,
    /// Processes and threads of all commands together.
    pub processes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenFiles {
    pub soft: u64,
    pub hard: u64,
}

/// Something of the host that becomes part of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub path: OsBytes,
    pub ids: SourceIds,
    pub access: Access,
    /// Include what is mounted below the path.
    pub recursive: bool,
    /// What the path has to lead to still, if that was looked at.
    pub node: Option<Node>,
}

/// How the ids of a source's files look inside. Anything but `Plain` needs root's idmapped mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum SourceIds {
    /// As the sandbox's user namespace shows them.
    Plain,
    /// Shifted by the sandbox's map: what root owns outside, root owns inside.
    Shifted,
    /// The owner's files are the agent's inside; ids of the sandbox's range stay what they are.
    Owner { uid: u32, gid: u32 },
    /// As in the sandbox that they were made in, whose root had this id on the host.
    Range { base: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
    /// A device node: without `nodev`, and read-only, which is about its inode and not about the device.
    Device,
    /// A layer of the root file system: setuid programs work.
    Layer,
    /// The path is that of an image of an ext4 file system, which is mounted as such a layer. In root mode only.
    Disk,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Step {
    /// Overlay of `lowers` (indices into the sources, uppermost first) below `upper/dir/{upper,work}`, where
    /// `upper` is the index of a source as well.
    Overlay {
        target: OsBytes,
        lowers: Vec<usize>,
        /// The number of a whiteout layer above the lowers.
        whiteouts: Option<usize>,
        /// Sources above both, uppermost first: layers of saved templates.
        saved: Vec<usize>,
        upper: usize,
        dir: String,
        /// Who owns the top directory of a new upper layer.
        owner: Owner,
        /// What is written is not synced, neither at fsync(2) inside nor at the end: the layer is not to outlive a crash of
        /// the machine.
        #[serde(default)]
        volatile: bool,
    },
    /// A source at `target`, which is made if it is missing.
    Bind {
        target: OsBytes,
        source: usize,
    },
    /// A layer that hides these paths in the layers below it, whatever is there or comes to be there. They are
    /// numbered in their order. Directories on the way belong to `owner`, those in `agents` to the agent: overlay takes
    /// that from the uppermost layer.
    Whiteouts {
        hidden: Vec<OsBytes>,
        agents: Vec<OsBytes>,
        owner: Owner,
    },
    /// A directory as [`Step::Bind`] shows it, with a whiteout layer above it.
    BindHidden {
        target: OsBytes,
        source: usize,
        whiteouts: usize,
    },
    Tmpfs {
        target: OsBytes,
        mode: u32,
    },
    Proc {
        target: OsBytes,
    },
    /// The sandbox's own view of sysfs, read-only.
    Sysfs {
        target: OsBytes,
    },
    Devpts {
        target: OsBytes,
    },
    Dir {
        target: OsBytes,
        mode: u32,
        owner: Owner,
    },
    Symlink {
        target: OsBytes,
        to: OsBytes,
    },
    /// Another name of a workspace: a link, where `target` does not lead to anything yet.
    Alias {
        target: OsBytes,
        to: OsBytes,
    },
    /// The program that came with the plan as a setuid root file, in place of what is there.
    Install {
        target: OsBytes,
    },
    /// Programs trust the certificate: it is a file of its own, and part of each bundle that exists; of the first
    /// one, when none does.
    Trust {
        certificate: String,
        file: OsBytes,
        bundles: Vec<OsBytes>,
    },
    /// What was mounted at `target` can be written no more; skipped where something else covers it.
    Close {
        target: OsBytes,
    },
    /// Nothing at `target` can be read; skipped where it does not exist.
    Mask {
        target: OsBytes,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    Root,
    Agent,
}

/// The step of a boot at which the new init opens its `/dev/null`, which is the host's.
pub const OPEN_NULL: &str = "open `/dev/null` inside";

/// What the helper tells the daemon. One message, then the helper ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Outcome {
    /// The init runs and serves. Its pid in the daemon's pid namespace; a pidfd comes with the message.
    Booted { pid: i32 },
    /// The task is done.
    Done,
    /// The answer to [`Task::Measure`].
    Measured { bytes: u64 },
    /// The answer to [`Job::Attach`]: programs inside see it. If it can be written, a mount of it comes with the message
    /// that is attached nowhere, for [`Request::Share`](crate::exec::Request::Share).
    Attached,
    /// The answer to [`Job::Attach`] and [`Job::Detach`]: nothing has changed, because it cannot while the sandbox runs.
    NotNow { why: String },
    /// Nothing is left of the attempt.
    Failed {
        /// What was being done, in words.
        step: String,
        /// The error number, when the kernel gave one.
        errno: Option<i32>,
        message: String,
    },
}

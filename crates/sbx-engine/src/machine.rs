//! The interface between the lifecycle of a sandbox and what runs it.
//!
//! A record makes two choices: its [`Template`], what the file system of the sandbox is made from, and its
//! [`Backend`], what runs it. [`Machines`] dispatches on them. The rest of the engine gets a [`Machine`], which is the
//! same for every backend:
//!
//! - a [`Link`]: the control connection to the sandbox's init on `exec.sock`, the socket on which clients exec,
//! - the listeners for egress ([`Link::listeners`]),
//! - an end: [`Link::sender`] asks for a shutdown, [`Process`] is killed and waited for.
//!
//! What is specific to Linux namespaces, privilege modes above all, stays in [`namespace`].

pub mod control;
pub mod egress;
pub mod ingress;
pub mod inside;
pub(crate) mod leftover;
pub mod namespace;
mod orphan;
pub(crate) mod process;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sbx_api::{LimitKind, Limits, Mount, Usage};
use sbx_proto::OsBytes;
use sbx_proto::exec::Role;
use sbx_proto::plan::Ids;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::sandbox::record::{InitProcess, Record, WorkspaceRecord};
use crate::sandbox::tag::Tag;
use crate::saved::Meta;
use crate::state::{EXEC_SOCKET, SandboxDir, StateDir};
use crate::workspace::Writable;
use control::{ControlError, Event, Link};
use egress::Certificate;
use namespace::Namespace;
use namespace::limits::Decided;

/// What the user's settings say of the backend. Only the backend looks into it.
pub use namespace::ModeOverride;
use process::Process;

/// How long an init has to report its commands when a daemon takes it over.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(5);

/// What runs a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    #[default]
    Namespace,
}

impl From<Backend> for sbx_api::Backend {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Namespace => Self::Namespace,
        }
    }
}

/// What the file system of a sandbox is made from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Template {
    /// The host's own operating system.
    #[default]
    Host,
    /// The same with what another sandbox changed of it.
    Saved {
        /// Its name when the sandbox was made. Another one may have it by now.
        tag: Tag,
        id: String,
    },
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Saved { tag, .. } => tag.fmt(f),
        }
    }
}

/// A running sandbox as the rest of the engine sees it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) link: Link,
    pub(crate) process: Process,
}

/// A machine that was started just now.
#[derive(Debug)]
pub(crate) struct Booted {
    pub(crate) machine: Machine,
    /// For the record, so that the next daemon finds the same process.
    pub(crate) init: InitProcess,
}

/// A sandbox whose template is ready.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Version of the template.
    pub(crate) fingerprint: String,
    /// Where the caller's tools and caches really are: (path, real path).
    pub(crate) sources: Vec<(OsBytes, OsBytes)>,
    /// What of the host is visible, for `inspect`.
    pub(crate) mounts: Vec<Mount>,
    pub(crate) warnings: Vec<String>,
    disk: Disk,
}

/// Whether a running sandbox could be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    Now,
    /// Nothing has changed, for this reason. The next start does it.
    NotNow(String),
}

/// What the backend boots from.
#[derive(Debug)]
enum Disk {
    Namespace(namespace::template::HostLayout),
}

/// What a backend asks about the other sandboxes while it prepares one.
pub(crate) struct Surroundings<'a> {
    /// What programs in sandboxes can write.
    pub(crate) writable: &'a dyn Fn() -> Vec<Writable>,
    /// The caller's build cache of Go is shown too.
    pub(crate) go_build_cache: bool,
    /// Notes the version that the sandbox starts with, before templates that are not in use are removed.
    pub(crate) set_started_with: &'a dyn Fn(&str),
    /// Versions of templates that any sandbox uses.
    pub(crate) fingerprints: &'a dyn Fn() -> BTreeSet<String>,
}

/// What a backend says about a sandbox, for people.
#[derive(Debug)]
pub(crate) struct Description {
    /// The privilege mode.
    pub(crate) mode: &'static str,
    /// What it isolates, and what it does not.
    pub(crate) isolation: Vec<String>,
}

/// All backends of a daemon.
#[derive(Debug)]
pub struct Machines {
    namespace: Arc<Namespace>,
}

impl Machines {
    pub fn new(namespace: Namespace) -> Self {
        Self {
            namespace: Arc::new(namespace),
        }
    }

    /// The backend of new sandboxes.
    pub(crate) fn default_backend(&self) -> Backend {
        Backend::Namespace
    }

    /// Ids that no other sandbox has; `used` is what [`id_range`] says of the others.
    pub(crate) fn assign_ids(
        &self,
        backend: Backend,
        used: &[u32],
        dir: &SandboxDir,
    ) -> Result<Ids, EngineError> {
        match backend {
            Backend::Namespace => self.namespace.assign_ids(used, dir),
        }
    }

    /// Looks up what [`Machines::assign_ids`] needs, which may take a while.
    pub(crate) fn prepare_ids(&self, backend: Backend) {
        match backend {
            Backend::Namespace => self.namespace.prepare_ids(),
        }
    }

    /// The ids of a record before [`Machines::assign_ids`].
    pub(crate) fn no_ids(&self, backend: Backend) -> Ids {
        match backend {
            Backend::Namespace => self.namespace.no_ids(),
        }
    }

    /// What will be enforced of the limits that were asked for, with the usual ones. What cannot be is an error, unless
    /// it is only preferred.
    pub(crate) fn limits(
        &self,
        backend: Backend,
        asked: &Limits,
        preferred: &[LimitKind],
    ) -> Result<Decided, EngineError> {
        match backend {
            Backend::Namespace => self.namespace.limits(asked, preferred),
        }
    }

    /// What the processes of a sandbox use now.
    pub(crate) fn usage(&self, record: &Record, dir: &SandboxDir) -> Usage {
        match record.backend {
            Backend::Namespace => Namespace::usage(record, dir),
        }
    }

    /// What its own files take on disk.
    pub(crate) fn disk_usage(&self, record: &Record, dir: &SandboxDir) -> Result<u64, EngineError> {
        match record.backend {
            Backend::Namespace => self.namespace.disk_usage(record, dir),
        }
    }

    /// What a user should know about how this backend shows a sandbox.
    pub(crate) fn warnings(&self, backend: Backend) -> Option<String> {
        match backend {
            Backend::Namespace => self.namespace.group_warning(),
        }
    }

    /// The same about one workspace.
    pub(crate) fn workspace_warnings(
        &self,
        backend: Backend,
        workspace: &WorkspaceRecord,
    ) -> Vec<String> {
        match backend {
            Backend::Namespace => self.namespace.workspace_warnings(workspace),
        }
    }

    /// Makes sure that the template is built, and decides what the sandbox shows of it. `workspaces` are those of this
    /// start.
    pub(crate) fn prepare(
        &self,
        state: &StateDir,
        record: &Record,
        workspaces: &[WorkspaceRecord],
        surroundings: &Surroundings<'_>,
    ) -> Result<Prepared, EngineError> {
        match (record.backend, &record.template.name) {
            (Backend::Namespace, Template::Host | Template::Saved { .. }) => self
                .namespace
                .prepare(state, record, workspaces, surroundings),
        }
    }

    /// Starts a machine. When it fails, nothing runs.
    pub(crate) fn boot(
        &self,
        record: &Record,
        dir: &SandboxDir,
        prepared: &Prepared,
        authority: Certificate,
    ) -> Result<Booted, EngineError> {
        let (init, process) = match &prepared.disk {
            Disk::Namespace(layout) => self.namespace.boot(record, dir, layout, authority)?,
        };
        let connected = init
            .map_err(|error| ControlError::Io(error).into())
            .and_then(|init| {
                let link = Link::connect(dir.path(), &record.id, Role::Daemon)?;
                Ok::<_, EngineError>((init, link))
            });
        match connected {
            Ok((init, link)) => Ok(Booted {
                machine: Machine { link, process },
                init,
            }),
            Err(error) => {
                process.end();
                remove_exec_socket(dir);
                Err(error)
            }
        }
    }

    /// Copies what a sandbox that does not run changed of its template to an empty directory, without what is its alone.
    /// Returns what that takes on disk.
    pub(crate) fn copy_layers(
        &self,
        record: &Record,
        dir: &SandboxDir,
        to: &Path,
        authority: &Certificate,
    ) -> Result<u64, EngineError> {
        match record.backend {
            Backend::Namespace => self.namespace.copy_layers(record, dir, to, authority),
        }
    }

    /// That a new sandbox could be made from a saved template.
    pub(crate) fn check_saved(&self, backend: Backend, template: &Meta) -> Result<(), EngineError> {
        match backend {
            Backend::Namespace => self.namespace.check_saved(template),
        }
    }

    /// Gives files that root of the sandbox created in its workspaces to their owner, when no machine runs. An error
    /// when a workspace is gone or was replaced; the others are done all the same.
    pub(crate) fn hand_over(
        &self,
        record: &Record,
        state: &Path,
        limit: Duration,
    ) -> Result<(), EngineError> {
        if !record.hand_over_due {
            return Ok(());
        }
        match record.backend {
            Backend::Namespace => self.namespace.hand_over(record, state, limit),
        }
    }

    /// Mounts a workspace into the sandbox, which runs.
    pub(crate) fn attach(
        &self,
        record: &Record,
        dir: &SandboxDir,
        workspace: &WorkspaceRecord,
    ) -> Result<Changed, EngineError> {
        match record.backend {
            Backend::Namespace => self.namespace.attach(record, dir, workspace),
        }
    }

    /// Takes one away from it.
    pub(crate) fn detach(
        &self,
        record: &Record,
        dir: &SandboxDir,
        workspace: &WorkspaceRecord,
    ) -> Result<Changed, EngineError> {
        match record.backend {
            Backend::Namespace => self.namespace.detach(record, dir, workspace),
        }
    }

    /// Removes what the sandbox stored, when no machine runs. The record, which says what is to be removed, stays.
    /// `origin` is where the sandbox was while it ran.
    pub(crate) fn remove_storage(
        &self,
        record: &Record,
        dir: &SandboxDir,
        origin: &SandboxDir,
    ) -> Result<(), EngineError> {
        match record.backend {
            Backend::Namespace => self.namespace.remove_storage(dir, origin, &record.ids),
        }
    }

    /// The same for a sandbox whose record cannot be read, and with it the backend.
    pub(crate) fn remove_unknown_storage(&self, dir: &SandboxDir) -> Result<(), EngineError> {
        self.namespace.remove_unknown_storage(dir)
    }

    /// Gives up what a sandbox has of the machine beside its files, which are removed with all others.
    pub(crate) fn release(&self, dir: &SandboxDir) {
        self.namespace.release(dir);
    }

    /// What a sandbox has of the machine beside its files is its own also where its directory was moved. False when
    /// another one has it by now.
    pub(crate) fn claim_again(&self, record: &Record, dir: &SandboxDir) -> bool {
        match record.backend {
            Backend::Namespace => self.namespace.claim_again(&record.ids, dir),
        }
    }

    /// Gives up what sandboxes below a directory had of the machine that are not there. No sandbox may be under way.
    pub(crate) fn release_unused(&self, sandboxes: &Path) {
        self.namespace.release_unused(sandboxes);
    }

    /// Removes a file or tree of the state directory, parts of which may belong to ids of sandboxes.
    pub(crate) fn remove_tree(&self, path: &Path) -> Result<(), EngineError> {
        self.namespace.remove_tree(path)
    }

    /// Ends what is kept ready for the next boot.
    pub(crate) fn close(&self) {
        self.namespace.close();
    }
}

impl Machine {
    /// Takes a running machine over from an earlier daemon; with it the number of its commands.
    pub(crate) fn adopt(record: &Record, dir: &SandboxDir) -> Result<(Self, u32), EngineError> {
        let mut link = Link::connect(dir.path(), &record.id, Role::Daemon)?;
        // Known before the auto-stop deadline is looked at: that one counts only when no command runs.
        let running = match link.next(Some(ADOPT_TIMEOUT))? {
            Event::Commands { running } => running,
            Event::Quiet => return Err(ControlError::TimedOut.into()),
            Event::Busy | Event::MountLost | Event::HandedOver | Event::Gone => {
                return Err(ControlError::Ended.into());
            }
        };
        let process = record.init.as_ref().and_then(Process::find);
        let process = process.ok_or(ControlError::Ended)?;
        Ok((Self { link, process }, running))
    }
}

/// The range of host ids that only this sandbox may have, if its backend has such ranges.
pub(crate) fn id_range(record: &Record) -> Option<u32> {
    match record.backend {
        Backend::Namespace => namespace::ids::base(&record.ids),
    }
}

/// How a sandbox is isolated. Needs no daemon.
pub(crate) fn describe(record: &Record) -> Description {
    match record.backend {
        Backend::Namespace => namespace::describe(&record.ids, record.network, &record.limits),
    }
}

/// The privilege mode alone.
pub(crate) fn mode(record: &Record) -> &'static str {
    match record.backend {
        Backend::Namespace => namespace::mode_name(record.ids.mode),
    }
}

/// How a workspace is shown among the mounts of a sandbox.
pub(crate) fn workspace_mount(backend: Backend, workspace: &WorkspaceRecord) -> Mount {
    match backend {
        Backend::Namespace => namespace::plan::workspace_mount(workspace),
    }
}

/// Removes the socket of a machine that has ended.
pub(crate) fn remove_exec_socket(dir: &SandboxDir) {
    match fs::remove_file(dir.path().join(EXEC_SOCKET)) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(%error, dir = %dir.path().display(), "cannot remove a socket"),
    }
}

#[cfg(test)]
mod tests;

//! A record as the API shows it.

use std::path::Path;

use sbx_api::{Backend, CacheState, Limits, PendingMount, Sandbox, Status, Summary, Workspace};
use sbx_proto::OsBytes;

use crate::error::chain;
use crate::lifecycle::ports::mappings;
use crate::machine;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{Pending, Record, RecordError, WorkspaceRecord};
use crate::state::socket::listens;
use crate::state::{EXEC_SOCKET, SandboxDir};
use crate::workspace::hints::Mounts;

/// `sessions` are the commands that run now.
pub(crate) fn sandbox(record: Record, sessions: u32, mounts: &Mounts) -> Sandbox {
    let description = machine::describe(&record);
    let workspaces = workspaces(record.status, &record.workspaces, mounts);
    Sandbox {
        name: record.name.into(),
        id: record.id,
        agent: record.agent,
        status: record.status,
        template: record.template.name.to_string(),
        backend: record.backend.into(),
        mode: description.mode.into(),
        workspaces,
        env: record.env.into_keys().collect(),
        created_at: record.created_at,
        started_at: record.started_at,
        stopped_at: record.stopped_at,
        last_used_at: record.last_used_at,
        stop_reason: record.stop_reason,
        stop_at: record.stop_at,
        keep_alive: record.keep_alive,
        idle_seconds: record.idle_seconds,
        cache: record.cache.as_ref().map(|cache| match cache.held {
            Some(_) => CacheState::Kept,
            None if record.status == Status::Running => CacheState::Busy,
            None => CacheState::Kept,
        }),
        temporary: record.temporary,
        sessions,
        limits: record.limits,
        mounts: record.mounts,
        ports: mappings(&record.ports),
        isolation: description.isolation,
        network: record.network,
        warnings: record.warnings,
    }
}

/// The same in short, without its workspaces: to look at those takes the file system, and the caller holds a lock.
pub(crate) fn summary(record: &Record, sessions: u32) -> Summary {
    Summary {
        name: record.name.to_string(),
        id: record.id.clone(),
        agent: record.agent.clone(),
        status: record.status,
        backend: record.backend.into(),
        mode: machine::mode(record).into(),
        workspaces: Vec::new(),
        created_at: record.created_at,
        last_used_at: record.last_used_at,
        sessions,
        limits: record.limits,
        ports: mappings(&record.ports),
    }
}

/// What becomes of one with the next start has become of it where the sandbox does not run.
pub(crate) fn workspaces(
    status: Status,
    all: &[WorkspaceRecord],
    mounts: &Mounts,
) -> Vec<Workspace> {
    let runs = status == Status::Running;
    let is_there = |it: &&WorkspaceRecord| runs || it.pending != Some(Pending::Unmount);
    let shown = all.iter().filter(is_there);
    shown
        .map(|workspace| Workspace {
            pending: workspace.pending.filter(|_| runs).map(Into::into),
            ..one(workspace, mounts)
        })
        .collect()
}

/// One of its workspaces.
pub(crate) fn workspace(workspace: &WorkspaceRecord) -> Workspace {
    one(workspace, &Mounts::now())
}

fn one(workspace: &WorkspaceRecord, mounts: &Mounts) -> Workspace {
    let text = |path: &OsBytes| path.as_os_str().to_string_lossy().into_owned();
    Workspace {
        path: text(&workspace.path),
        target: workspace.target.as_ref().map(text),
        readonly: workspace.readonly,
        added: workspace.added,
        pending: workspace.pending.map(Into::into),
        missing: is_missing(mounts, workspace.path.as_path()),
    }
}

impl From<Pending> for PendingMount {
    fn from(pending: Pending) -> Self {
        match pending {
            Pending::Mount => Self::Mount,
            Pending::Unmount => Self::Unmount,
        }
    }
}

/// As far as can be told without waiting: a server that is out of reach must not keep the list of all sandboxes back.
fn is_missing(mounts: &Mounts, path: &Path) -> bool {
    !mounts.may_hang(path) && path.symlink_metadata().is_err()
}

/// A sandbox whose record cannot be read is still shown: it can be removed, and it takes its name.
pub fn damaged(name: SandboxName, dir: &SandboxDir, error: &RecordError) -> Sandbox {
    let status = if listens(dir.path(), EXEC_SOCKET) {
        Status::Running
    } else {
        Status::Stopped
    };
    Sandbox {
        name: name.into(),
        id: String::new(),
        agent: String::new(),
        status,
        template: String::new(),
        backend: Backend::Namespace,
        mode: String::new(),
        workspaces: Vec::new(),
        env: Vec::new(),
        created_at: jiff::Timestamp::UNIX_EPOCH,
        started_at: None,
        stopped_at: None,
        last_used_at: None,
        stop_reason: Some("damaged".into()),
        stop_at: None,
        keep_alive: false,
        idle_seconds: None,
        cache: None,
        temporary: false,
        sessions: 0,
        limits: Limits::default(),
        mounts: Vec::new(),
        ports: Vec::new(),
        network: None,
        isolation: Vec::new(),
        warnings: vec![chain(error)],
    }
}

#[cfg(test)]
mod tests {
    use sbx_proto::plan::Mode;

    use super::*;
    use crate::sandbox::record::tests::example;

    #[test]
    fn values_of_the_environment_are_not_shown() {
        let shown = sandbox(example("ab", Mode::Root), 2, &Mounts::now());
        assert_eq!(shown.env, ["TOKEN"]);
        assert_eq!(shown.sessions, 2);
        assert!(shown.workspaces[0].missing);
        let json = serde_json::to_string(&shown).unwrap();
        assert!(!json.contains("secret"), "{json}");
    }
}

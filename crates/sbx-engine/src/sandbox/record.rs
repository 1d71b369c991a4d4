//! What is known about a sandbox across restarts: one JSON file, written before anything that it describes
//! exists and removed after everything is gone.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sbx_api::{Caller, LimitKind, Limits, Mount, Network, Status};
use sbx_proto::OsBytes;
use sbx_proto::plan::{Ids, Node};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::machine::{Backend, Template};
use crate::sandbox::name::SandboxName;
use crate::sandbox::ports::PortRecord;
use crate::state::{Durability, RECORD, SandboxDir, write_atomic};

pub const VERSION: u32 = 1;
/// A record is a few kilobytes; anything else was not written by us.
const MAX_SIZE: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub version: u32,
    pub name: SandboxName,
    pub id: String,
    pub agent: String,
    pub status: Status,
    /// The first is the primary one.
    pub workspaces: Vec<WorkspaceRecord>,
    /// Repositories of workspaces that are linked git worktrees, as found at `create`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub git: Vec<GitShare>,
    pub env: BTreeMap<String, String>,
    /// Needed again at every start: the template follows the caller's tool chains.
    pub caller: Caller,
    /// Where the caller's tools and caches really were when they were first shown. One that leads elsewhere later
    /// is not shown any more.
    #[serde(default)]
    pub sources: Vec<(OsBytes, OsBytes)>,
    /// What runs it. Records of earlier versions do not say: there was one backend.
    #[serde(default)]
    pub backend: Backend,
    /// Which ids it has on the host. Only the backend looks into them.
    pub ids: Ids,
    pub template: TemplateRecord,
    /// Present while an init may run.
    pub init: Option<InitProcess>,
    /// An init ran and did not say that it handed root's files in the workspaces over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hand_over_due: bool,
    /// As of the last start.
    #[serde(default)]
    pub network: Option<Network>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub stopped_at: Option<Timestamp>,
    pub last_used_at: Option<Timestamp>,
    pub stop_reason: Option<String>,
    pub keep_alive: bool,
    /// How long it stays up without a command, if not as the settings say; 0 is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Present if what tools cache inside is to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// Removed when it stops, whether or not its creator is still there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
    /// What the backend enforces.
    #[serde(default)]
    pub limits: Limits,
    /// Those without which it is not to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_required: Vec<LimitKind>,
    /// When it stops by itself, unless a command starts before.
    pub stop_at: Option<Timestamp>,
    /// As of the last start.
    pub mounts: Vec<Mount>,
    /// Published ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRecord>,
    pub warnings: Vec<String>,
}

/// A sandbox's part in the build cache of its repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheUse {
    /// The cache that it alone writes to, from its start to its stop.
    pub held: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceRecord {
    pub path: OsBytes,
    /// How the user named it, where symbolic links lead from there to `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<OsBytes>,
    /// Where it is inside, if not at `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<OsBytes>,
    /// Files and directories in it that are masked, by paths below it. What was masked once stays so: the patterns can be
    /// changed from inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked: Vec<OsBytes>,
    /// Those that were masked once and are not there now. They are masked again when they come back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked_absent: Vec<OsBytes>,
    pub readonly: bool,
    /// Mounted after the sandbox was made. Such a one is never the primary one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub added: bool,
    /// What the running sandbox does not have yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
    pub kind: WorkspaceKind,
    /// The owner on the host, whose files are the agent's inside.
    pub uid: u32,
    pub gid: u32,
    /// As of the last start. Records of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// What becomes of a workspace with the next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pending {
    Mount,
    Unmount,
}

/// The repository of a workspace that is a linked git worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitShare {
    pub workspace: OsBytes,
    /// The repository's directory (`GIT_COMMON_DIR`).
    pub common: OsBytes,
    /// The worktree's own directory in it (`GIT_DIR`).
    pub admin: GitDirectory,
    /// What is mounted of it; the first is `common`.
    pub directories: Vec<GitDirectory>,
    /// Commits are allowed (`--git-write`).
    pub write: bool,
    /// At the last start all of it was as it had been.
    pub shared: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitDirectory {
    pub path: OsBytes,
    pub readonly: bool,
    pub uid: u32,
    pub gid: u32,
    pub identity: Option<Identity>,
}

impl WorkspaceRecord {
    /// Its path inside.
    pub fn place(&self) -> &Path {
        self.target.as_ref().unwrap_or(&self.path).as_path()
    }
}

/// Which directory or file it is, whatever its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    /// Devices are numbered anew at every boot.
    pub boot_id: String,
}

impl Identity {
    pub fn node(&self) -> Node {
        Node {
            device: self.device,
            inode: self.inode,
        }
    }

    /// As far as can be told.
    pub fn is(&self, other: &Self) -> bool {
        let comparable = self.boot_id == other.boot_id;
        self.inode == other.inode && (self.device == other.device || !comparable)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceKind {
    Directory,
    File,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateRecord {
    #[serde(default)]
    pub name: Template,
    /// Of the host's files when the sandbox was made; absent until then.
    pub fingerprint: Option<String>,
    /// At the last start: what the mounts of a running sandbox refer to.
    pub started_with: Option<String>,
}

/// Names one process for ever, also after its pid was used again or the machine restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitProcess {
    pub pid: i32,
    /// Clock ticks since boot.
    pub start_time: u64,
    pub boot_id: String,
}

#[derive(Debug, Error)]
pub enum RecordError {
    #[error("no record `{path}`")]
    Missing { path: PathBuf },
    #[error("cannot read or write `{path}`")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("record `{path}` is damaged")]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("record `{path}` has format {version}; this program knows format {VERSION}")]
    Version { path: PathBuf, version: u32 },
    #[error("record `{path}` is of another sandbox: `{name}`")]
    WrongName { path: PathBuf, name: SandboxName },
}

impl Record {
    pub fn read(dir: &SandboxDir) -> Result<Self, RecordError> {
        let path = dir.record();
        let bytes = read_small(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => RecordError::Missing { path: path.clone() },
            _ => RecordError::Io {
                path: path.clone(),
                source,
            },
        })?;
        let damaged = |source| RecordError::Damaged {
            path: path.clone(),
            source,
        };
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(damaged)?;
        // Looked at first: a record of a later format has fields that this one refuses.
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if let Some(version) = version
            && version != u64::from(VERSION)
        {
            let version = u32::try_from(version).unwrap_or(u32::MAX);
            return Err(RecordError::Version { path, version });
        }
        let record: Self = serde_json::from_value(value).map_err(damaged)?;
        if dir.path().file_name() != Some(record.name.as_str().as_ref()) {
            return Err(RecordError::WrongName {
                path,
                name: record.name,
            });
        }
        Ok(record)
    }

    pub fn write(&self, dir: &SandboxDir, durability: Durability) -> Result<(), RecordError> {
        let path = dir.record();
        let bytes = serde_json::to_vec_pretty(self).map_err(|source| RecordError::Damaged {
            path: path.clone(),
            source,
        })?;
        write_atomic(dir.path(), RECORD, &bytes, durability)
            .map_err(|source| RecordError::Io { path, source })
    }

    /// Nothing of it runs any more.
    pub fn set_stopped(&mut self, reason: String, now: Timestamp) {
        self.status = Status::Stopped;
        self.init = None;
        self.stop_at = None;
        self.keep_alive = false;
        if let Some(cache) = &mut self.cache {
            cache.held = None;
        }
        self.stopped_at = Some(now);
        self.stop_reason = Some(reason);
    }

    /// The parts of git repositories that the last start shared, as workspaces of their own.
    pub(crate) fn git_directories(&self) -> Vec<WorkspaceRecord> {
        let mut found: Vec<WorkspaceRecord> = Vec::new();
        for directory in self.shared_git().flat_map(|share| &share.directories) {
            // Two worktrees of one repository have most of them in common.
            if found.iter().all(|known| known.path != directory.path) {
                found.push(directory.as_workspace());
            }
        }
        found
    }

    pub(crate) fn shared_git(&self) -> impl Iterator<Item = &GitShare> {
        self.git.iter().filter(|share| share.shared)
    }

    /// All that programs inside see of the host at its own path, and that is theirs.
    pub(crate) fn shared_directories(&self) -> Vec<WorkspaceRecord> {
        let mut all = self.workspaces.clone();
        all.extend(self.git_directories());
        all
    }

    /// Where commands begin, and whose repository it is.
    pub(crate) fn primary(&self) -> Option<&WorkspaceRecord> {
        self.workspaces.first().filter(|first| !first.added)
    }

    /// The cache that the sandbox writes to.
    pub(crate) fn held_cache(&self) -> Option<&str> {
        self.cache.as_ref()?.held.as_deref()
    }

    pub fn set_running(&mut self, init: InitProcess, now: Timestamp) {
        self.status = Status::Running;
        self.init = Some(init);
        self.hand_over_due = true;
        self.started_at = Some(now);
        self.stopped_at = None;
        self.stop_reason = None;
    }
}

impl GitDirectory {
    fn as_workspace(&self) -> WorkspaceRecord {
        WorkspaceRecord {
            path: self.path.clone(),
            given: None,
            target: None,
            masked: Vec::new(),
            masked_absent: Vec::new(),
            readonly: self.readonly,
            added: false,
            pending: None,
            kind: WorkspaceKind::Directory,
            uid: self.uid,
            gid: self.gid,
            identity: self.identity.clone(),
        }
    }
}

fn read_small(path: &PathBuf) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(MAX_SIZE)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use sbx_proto::plan::{IdRange, Mode};

    use super::*;
    use crate::sandbox::tag::Tag;
    use crate::state::StateDir;

    /// For tests to which ids do not matter.
    pub(crate) fn any_example(name: &str) -> Record {
        example(name, Mode::Single)
    }

    /// A record with nothing special about it, for tests of other modules too.
    pub(crate) fn example(name: &str, mode: Mode) -> Record {
        let whole = vec![IdRange {
            inside: 0,
            outside: 0x2000_0000,
            count: 65_536,
        }];
        Record {
            version: VERSION,
            name: SandboxName::parse(name).unwrap(),
            id: "00000000-0000-4000-8000-000000000001".into(),
            agent: "shell".into(),
            status: Status::Stopped,
            workspaces: vec![WorkspaceRecord {
                path: "/w/project".into(),
                given: None,
                target: None,
                masked: Vec::new(),
                masked_absent: Vec::new(),
                readonly: false,
                added: false,
                pending: None,
                kind: WorkspaceKind::Directory,
                uid: 501,
                gid: 502,
                identity: None,
            }],
            git: Vec::new(),
            env: BTreeMap::from([("TOKEN".into(), "secret".into())]),
            caller: Caller {
                home: "/home/u".into(),
                ..Caller::default()
            },
            sources: Vec::new(),
            backend: Backend::Namespace,
            ids: Ids {
                mode,
                uid: whole.clone(),
                gid: whole,
            },
            template: TemplateRecord {
                name: Template::Host,
                fingerprint: Some("f1".into()),
                started_with: Some("f1".into()),
            },
            init: None,
            hand_over_due: false,
            network: None,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            stopped_at: None,
            last_used_at: None,
            stop_reason: None,
            keep_alive: false,
            idle_seconds: None,
            cache: None,
            limits: Limits::default(),
            limits_required: Vec::new(),
            temporary: false,
            stop_at: None,
            mounts: Vec::new(),
            ports: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn dir(root: &Path, name: &str) -> SandboxDir {
        let state = StateDir::locate(root, Some(root)).unwrap();
        let dir = state.sandbox(&SandboxName::parse(name).unwrap());
        std::fs::create_dir_all(dir.path()).unwrap();
        dir
    }

    #[test]
    fn a_record_survives_the_disk() {
        let temp = tempfile::tempdir().unwrap();
        let dir = dir(temp.path(), "ab");
        assert!(matches!(
            Record::read(&dir),
            Err(RecordError::Missing { .. })
        ));
        let mut record = example("ab", Mode::Root);
        record.set_running(
            InitProcess {
                pid: 7,
                start_time: 8,
                boot_id: "b".into(),
            },
            Timestamp::UNIX_EPOCH,
        );
        record.write(&dir, Durability::Soon).unwrap();
        assert_eq!(Record::read(&dir).unwrap(), record);
    }

    #[test]
    fn a_record_without_a_backend_has_the_first_one() {
        let record = example("ab", Mode::Root);
        let mut value = serde_json::to_value(&record).unwrap();
        assert_eq!(value["backend"], "namespace");
        assert_eq!(value["template"]["name"], "host");
        let fields = value.as_object_mut().unwrap();
        fields.remove("backend").unwrap();
        let template = fields.get_mut("template").unwrap();
        template.as_object_mut().unwrap().remove("name").unwrap();
        assert_eq!(serde_json::from_value::<Record>(value).unwrap(), record);
    }

    #[test]
    fn devices_tell_apart_within_one_boot_only() {
        let identity = |device, inode, boot_id: &str| Identity {
            device,
            inode,
            boot_id: boot_id.into(),
        };
        let known = identity(1, 2, "b");
        for (other, same) in [
            (identity(1, 2, "b"), true),
            (identity(3, 2, "b"), false),
            (identity(1, 3, "b"), false),
            (identity(3, 2, "c"), true),
            (identity(1, 3, "c"), false),
        ] {
            assert_eq!(known.is(&other), same, "{other:?}");
        }
    }

    #[test]
    fn a_record_of_an_earlier_version_knows_no_identities() {
        let record = example("ab", Mode::Root);
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("identity"), "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn damaged_and_newer_records_are_named() {
        let temp = tempfile::tempdir().unwrap();
        let dir = dir(temp.path(), "ab");
        let write = |text: &str| {
            write_atomic(dir.path(), RECORD, text.as_bytes(), Durability::Soon).unwrap()
        };
        write("{\"version\":1,");
        assert!(matches!(
            Record::read(&dir),
            Err(RecordError::Damaged { .. })
        ));
        write("{\"version\":2,\"novel\":true}");
        assert!(matches!(
            Record::read(&dir),
            Err(RecordError::Version { version: 2, .. })
        ));
        example("other", Mode::Root)
            .write(&dir, Durability::Soon)
            .unwrap();
        assert!(matches!(
            Record::read(&dir),
            Err(RecordError::WrongName { .. })
        ));
    }

    #[test]
    fn templates_of_earlier_and_later_versions() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        let mut record = any_example("ab");
        let dir = state.sandbox(&record.name);
        std::fs::create_dir_all(dir.path()).unwrap();
        record.template.name = Template::Saved {
            tag: Tag::parse("my-template").unwrap(),
            id: "0".into(),
        };
        record.write(&dir, Durability::Soon).unwrap();
        assert_eq!(Record::read(&dir).unwrap(), record);
        let mut text: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.record()).unwrap()).unwrap();
        let mut read_with = |name: serde_json::Value| {
            text["template"]["name"] = name;
            let text = serde_json::to_vec(&text).unwrap();
            write_atomic(dir.path(), RECORD, &text, Durability::Soon).unwrap();
            Record::read(&dir).map(|record| record.template.name)
        };
        assert_eq!(read_with("host".into()).unwrap(), Template::Host);
        for later in [
            "guest".into(),
            serde_json::json!({"image": {"digest": "x"}}),
            serde_json::json!({"saved": {"tag": "a:b", "id": "0", "more": 1}}),
            serde_json::json!({"saved": {"tag": "../a", "id": "0"}}),
        ] {
            let read = read_with(later);
            assert!(matches!(read, Err(RecordError::Damaged { .. })), "{read:?}");
        }
    }
}

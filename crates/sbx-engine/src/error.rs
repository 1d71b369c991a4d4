//! Why the engine could not do what it was asked, with the code and the hint that a client shows.

use std::io;
use std::path::{Path, PathBuf};

use sbx_api::ErrorCode;
use thiserror::Error;

use crate::lifecycle::mounts::MountError;
use crate::lifecycle::ports::PortError;
use crate::machine::control::ControlError;
use crate::machine::namespace::helper::SetupError;
use crate::machine::namespace::ids::IdsError;
use crate::machine::namespace::limits::LimitError;
use crate::machine::namespace::template::TemplateError;
use crate::policy::PolicyBookError;
use crate::sandbox::name::{NameError, SandboxName};
use crate::sandbox::record::RecordError;
use crate::sandbox::tag::TagError;
use crate::state::remove_tree::RemoveError;
use crate::state::{StateError, full_disk_hint};
use crate::workspace::WorkspaceError;
use crate::workspace::worktree::NotWritable;

#[derive(Debug, Error)]
pub enum EngineError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error(transparent)]
    Git(#[from] NotWritable),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Ids(#[from] IdsError),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("cannot serve the sandbox's network: {0}")]
    Egress(String),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Remove(#[from] RemoveError),
    #[error(transparent)]
    Policy(Box<PolicyBookError>),
    #[error("no sandbox `{0}`")]
    NotFound(String),
    #[error("sandbox `{0}` already exists")]
    Exists(SandboxName),
    #[error("sandbox `{name}` already exists, for workspace `{workspace}`")]
    ExistsElsewhere {
        name: SandboxName,
        workspace: String,
    },
    #[error("`{}` is in the way: it is not a sandbox, but has the name `{name}`", .path.display())]
    InTheWay { name: SandboxName, path: PathBuf },
    #[error("sandbox `{name}` has {sessions} running command(s)")]
    Busy { name: SandboxName, sessions: u32 },
    #[error("sandbox `{0}` has been used since; it stays")]
    UsedSince(SandboxName),
    #[error("sandbox `{0}` is being removed")]
    Removing(SandboxName),
    #[error("cannot stop sandbox `{0}`: its processes do not end")]
    Unstoppable(SandboxName),
    #[error("the daemon is stopping")]
    Closed,
    #[error("`--cache` keeps what belongs to a repository, and no workspace was given")]
    CacheOfNothing,
    #[error("agent `{0}` comes with a later version; this one has `shell`")]
    LaterAgent(String),
    #[error("unknown agent {0:?}; this version has `shell`")]
    UnknownAgent(String),
    #[error("invalid agent name: 1 to 255 bytes without control characters are allowed")]
    AgentName,
    #[error("platform `{wanted}` cannot run here: this machine is `{host}`")]
    Platform { wanted: String, host: String },
    #[error(transparent)]
    Tag(#[from] TagError),
    #[error("no template `{0}`")]
    NoTemplate(String),
    #[error("several templates have an id that begins with `{0}`")]
    AmbiguousTemplate(String),
    #[error("template `{tag}` cannot be read")]
    UnreadableTemplate {
        tag: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "template `{tag}` cannot be used here: it was saved in {saved} mode, and sandboxes are made in {here} mode"
    )]
    TemplateMode {
        tag: String,
        saved: &'static str,
        here: &'static str,
    },
    #[error(
        "template `{0}` cannot be used here: the subordinate ids of this user were others when it was saved"
    )]
    TemplateIds(String),
    #[error(
        "cannot save sandbox `{name}`: it is made from {count} templates that were saved one from the other, and that is the most"
    )]
    ManyTemplates { name: SandboxName, count: usize },
    #[error("cannot save a running sandbox: `{0}`")]
    SaveRunning(SandboxName),
    #[error("invalid environment variable name {0:?}")]
    EnvName(String),
    #[error("the value of environment variable `{0}` contains a NUL byte")]
    EnvValue(String),
    #[error("cannot prepare `{path}`")]
    Prepare {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("sandbox `{name}` cannot be read, so it can only be removed")]
    Damaged {
        name: SandboxName,
        #[source]
        source: RecordError,
    },
    #[error("sandbox `{0}` could not be read when the daemon started, but can be read now")]
    Repaired(SandboxName),
}

impl From<PolicyBookError> for EngineError {
    fn from(error: PolicyBookError) -> Self {
        Self::Policy(Box::new(error))
    }
}

impl EngineError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Name(_)
            | Self::Workspace(_)
            | Self::Git(_)
            | Self::Platform { .. }
            | Self::UnknownAgent(_)
            | Self::AgentName
            | Self::Limit(LimitError::Unenforceable { .. } | LimitError::Invalid { .. })
            | Self::CacheOfNothing
            | Self::Tag(_)
            | Self::AmbiguousTemplate(_)
            | Self::TemplateMode { .. }
            | Self::TemplateIds(_)
            | Self::ManyTemplates { .. }
            | Self::EnvName(_)
            | Self::EnvValue(_) => ErrorCode::BadRequest,
            Self::NotFound(_) | Self::NoTemplate(_) => ErrorCode::NotFound,
            Self::Port(e) => match e {
                PortError::Spec(_)
                | PortError::NotHere(_)
                | PortError::NotPublished { .. }
                | PortError::Privileged(_) => ErrorCode::BadRequest,
                PortError::InUse(_) | PortError::Taken { .. } | PortError::Stopped(_) => {
                    ErrorCode::Conflict
                }
                PortError::Listen { .. } | PortError::Serve(_) => ErrorCode::Engine,
            },
            Self::Mount(MountError::Primary { .. } | MountError::NotMounted { .. }) => {
                ErrorCode::BadRequest
            }
            Self::Mount(MountError::Already { .. } | MountError::Busy { .. }) => {
                ErrorCode::Conflict
            }
            Self::Policy(e) => e.code(),
            Self::Exists(_)
            | Self::ExistsElsewhere { .. }
            | Self::InTheWay { .. }
            | Self::Busy { .. }
            | Self::UsedSince(_)
            | Self::Removing(_)
            | Self::SaveRunning(_)
            | Self::Closed => ErrorCode::Conflict,
            Self::LaterAgent(_) => ErrorCode::NotYet,
            Self::State(_)
            | Self::Record(_)
            | Self::Ids(_)
            | Self::Limit(LimitError::Group(_) | LimitError::Disk(_))
            | Self::Template(_)
            | Self::UnreadableTemplate { .. }
            | Self::Setup(_)
            | Self::Control(_)
            | Self::Egress(_)
            | Self::Remove(_)
            | Self::Unstoppable(_)
            | Self::Prepare { .. }
            | Self::Damaged { .. }
            | Self::Repaired(_) => ErrorCode::Engine,
        }
    }

    /// What the kernel said to a step of making or changing a machine.
    pub(crate) fn failed_setup(&self) -> Option<rustix::io::Errno> {
        match self {
            Self::Setup(SetupError::Failed { errno, .. }) => {
                errno.map(rustix::io::Errno::from_raw_os_error)
            }
            _ => None,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Workspace(e) => e.hint(),
            Self::Git(e) => e.hint(),
            Self::State(e) => e.hint().map(str::to_owned),
            Self::Setup(e) => e.hint().map(str::to_owned),
            Self::Policy(e) => e.hint(),
            Self::Port(e) => e.hint(),
            Self::Mount(e) => Some(e.hint()),
            Self::NotFound(_) => Some("sbx ls".into()),
            Self::Exists(name) => Some(format!("sbx run --name {name}, or sbx rm {name}")),
            Self::ExistsElsewhere { .. } => Some("choose another name with --name".into()),
            Self::InTheWay { .. } => {
                Some("move it away, or choose another name with --name".into())
            }
            Self::Busy { name, .. } => Some(format!("sbx rm --force {name}")),
            Self::Damaged { name, .. } => Some(format!("sbx rm --force {name}")),
            Self::Repaired(_) => Some("sbx daemon restart".into()),
            Self::Ids(e) => Some(e.hint().to_owned()),
            Self::Limit(e) => Some(e.hint()),
            Self::Template(e) => {
                (e.hint()).or_else(|| Some(full_disk_hint(e).unwrap_or("sbx diagnose").into()))
            }
            Self::Unstoppable(_) => Some("sbx diagnose".into()),
            Self::Name(e) => Some(e.hint()),
            Self::Tag(e) => Some(e.hint()),
            Self::NoTemplate(_) | Self::AmbiguousTemplate(_) => Some("sbx template ls".into()),
            Self::SaveRunning(name) => Some(format!("sbx stop {name}")),
            Self::UnreadableTemplate { tag, .. } => {
                Some(format!("sbx template rm {tag}, and save it again"))
            }
            Self::TemplateMode { .. } | Self::TemplateIds(_) => {
                Some("save it again, from a sandbox that is made now".into())
            }
            Self::ManyTemplates { .. } => {
                Some("do the same in a new sandbox without `--template`, and save that one".into())
            }
            Self::Platform { host, .. } => {
                Some(format!("leave it out, or say `--platform {host}`"))
            }
            Self::Record(_) | Self::Remove(_) | Self::Prepare { .. } => {
                full_disk_hint(self).map(str::to_owned)
            }
            Self::Control(_)
            | Self::Egress(_)
            | Self::Removing(_)
            | Self::UsedSince(_)
            | Self::CacheOfNothing
            | Self::Closed
            | Self::LaterAgent(_)
            | Self::UnknownAgent(_)
            | Self::AgentName
            | Self::EnvName(_)
            | Self::EnvValue(_) => None,
        }
    }
}

/// What a file or directory of the sandbox could not be made or changed for.
pub(crate) fn prepare_error(path: &Path, source: io::Error) -> EngineError {
    EngineError::Prepare {
        path: path.display().to_string(),
        source,
    }
}

/// The error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

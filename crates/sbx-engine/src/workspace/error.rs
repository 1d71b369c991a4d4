//! Why a directory or file cannot be shared, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use sbx_proto::shell::quoted;
use thiserror::Error;

use super::ignore;
use crate::sandbox::name::SandboxName;
use crate::state::marker;

#[derive(Debug, Error)]
pub enum WorkspaceError {
    #[error("workspace `{}` is not an absolute path", .0.display())]
    Relative(PathBuf),
    #[error("workspace `{}` does not exist", .0.display())]
    Missing(PathBuf),
    #[error("the file `{}`, which is shared read-only, no longer exists", .0.display())]
    FileGone(PathBuf),
    #[error("workspace `{}` now resolves to another directory or file", .0.display())]
    Moved(PathBuf),
    #[error("workspace `{}` has changed its owner since the sandbox was created", .0.display())]
    OtherOwner(PathBuf),
    #[error(
        "workspace `{}`, which lies in a writable one, is another directory or file than when the sandbox last started",
        .0.display()
    )]
    Replaced(PathBuf),
    #[error(
        "workspace `{}` leads through the link `{}`, which sandbox `{sandbox}` can make and change, to `{}`",
        .path.display(), .link.display(), .to.display()
    )]
    Planted {
        path: PathBuf,
        link: PathBuf,
        /// The one that has the link in a writable workspace.
        sandbox: SandboxName,
        to: PathBuf,
    },
    #[error(
        "read-only workspace `{}` leads through the link `{}`, which can be changed from inside the writable workspace \
         `{}`: only `{}` would be read-only",
        .path.display(), .link.display(), .writable.display(), .to.display()
    )]
    ReadOnlyLink {
        path: PathBuf,
        link: PathBuf,
        writable: PathBuf,
        to: PathBuf,
    },
    #[error("workspace `{}` holds secrets or settings", .0.display())]
    Private(PathBuf),
    #[error("cannot look at workspace `{}`", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Ignore(#[from] ignore::IgnoreError),
    #[error("`{}` of workspace `{}` masks `{}`, which is shared", ignore::NAME, .path.display(), .shared.display())]
    MasksShared { path: PathBuf, shared: PathBuf },
    #[error("`{}` of workspace `{}` masks `{}`, which workspace `{}` shows too", ignore::NAME, .path.display(), .mask.display(), .other.display())]
    MaskedElsewhere {
        path: PathBuf,
        mask: PathBuf,
        other: PathBuf,
    },
    #[error("invalid mount target `{}`: {why}", .target.display())]
    Target { target: PathBuf, why: &'static str },
    #[error("mount target `{}` of workspace `{}` overlaps with workspace `{}`", .target.display(), .path.display(), .other.display())]
    TargetOverlap {
        path: PathBuf,
        target: PathBuf,
        other: PathBuf,
    },
    #[error(
        "read-only workspace `{}` lies in the writable workspace `{}`, through which it could be written",
        .path.display(), .writable.display()
    )]
    WritableElsewhere { path: PathBuf, writable: PathBuf },
    #[error("primary workspace `{}` is not a directory", .0.display())]
    PrimaryNotDirectory(PathBuf),
    #[error("workspace `{}` is a file, which can only be shared read-only", .0.display())]
    WritableFile(PathBuf),
    #[error("workspace `{}` is neither a directory nor a file", .0.display())]
    Special(PathBuf),
    #[error("you have no permission to {what} workspace `{}`", .path.display())]
    Closed {
        path: PathBuf,
        what: &'static str,
        /// It is the caller's, who can open it.
        own: bool,
    },
    #[error("workspace `{}` is given twice", .0.display())]
    Twice(PathBuf),
    #[error("workspace `/` would hand the whole machine to the sandbox")]
    Root,
    #[error("workspace `{}` would hide the sandbox's own {}", .0.display(), .0.display())]
    System(PathBuf),
    #[error("workspace `{}` shows the host's kernel", .0.display())]
    Kernel(PathBuf),
    #[error(
        "workspace `{}` shows the state directory `{}`, and with it the daemon's socket",
        .path.display(), .state.display()
    )]
    State { path: PathBuf, state: PathBuf },
    #[error(
        "workspace `{}` shows the state directory `{}`, and with it the daemon's socket: by a mount it can be seen at `{}` too",
        .path.display(), .state.display(), .name.display()
    )]
    StateMount {
        path: PathBuf,
        state: PathBuf,
        /// Where the workspace shows it, or a part of it.
        name: PathBuf,
    },
    #[error(
        "workspace `{}` shows another state directory of sbx, `{}`, and with it the sockets of its sandboxes",
        .path.display(), .state.display()
    )]
    OtherState { path: PathBuf, state: PathBuf },
    #[error(
        "`{}` is mounted in workspace `{}` and shows the host's kernel ({kind})",
        .point.display(), .path.display()
    )]
    KernelMount {
        path: PathBuf,
        point: PathBuf,
        kind: String,
    },
}

impl WorkspaceError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Ignore(_) => Some(format!(
                "correct or remove the {}; `*`, `?`, `**`, `!` and `/` are understood",
                ignore::NAME
            )),
            Self::MasksShared { .. } => Some(format!(
                "change the {}, or leave that workspace out",
                ignore::NAME
            )),
            Self::MaskedElsewhere { other, .. } => Some(format!(
                "mask it in `{}` too, or leave that workspace out",
                other.join(ignore::NAME).display()
            )),
            Self::Io { .. }
            | Self::Special(_)
            | Self::Twice(_)
            | Self::Moved(_)
            | Self::OtherOwner(_) => None,
            Self::Replaced(_) => Some(
                "a program inside may have put it there: look for the one that was shared; if you replaced it yourself, \
                 `sbx rm` the sandbox and create it again"
                    .into(),
            ),
            Self::Planted { to, .. } | Self::ReadOnlyLink { to, .. } | Self::Private(to) => {
                Some(format!("if you mean it, give the real path: {}", word(to)))
            }
            Self::Relative(_) => Some("give the absolute path".into()),
            Self::FileGone(_) => {
                Some("put it back, or `sbx rm` the sandbox and create it again without the file".into())
            }
            Self::Missing(path) => Some(format!("mkdir -p {}", word(path))),
            Self::Target { .. } => {
                Some("choose an absolute path such as /mnt/NAME or /home/agent/NAME".into())
            }
            Self::TargetOverlap { .. } => Some("choose a place outside of other workspaces".into()),
            Self::WritableElsewhere { path, .. } => Some(format!(
                "leave out its place: {} is then read-only where it is",
                quoted(&format!("{}:ro", path.display()))
            )),
            Self::PrimaryNotDirectory(_) => {
                Some("put a directory first; a file can follow it as `FILE:ro`".into())
            }
            Self::WritableFile(path) => Some(quoted(&format!("{}:ro", path.display()))),
            Self::Root | Self::System(_) => Some("share a directory below it instead".into()),
            Self::Kernel(_) | Self::Closed { own: false, .. } => {
                Some("share a directory of your own instead".into())
            }
            Self::Closed { path, .. } => Some(format!("chmod u+rwX {}", word(path))),
            Self::State { .. } | Self::StateMount { .. } => {
                Some("share a project directory instead, or move the state with SBX_HOME".into())
            }
            Self::OtherState { state, .. } => Some(format!(
                "share a directory beside it instead; if it only looks like one: rm {}",
                word(&marker(state))
            )),
            Self::KernelMount { point, .. } => Some(format!(
                "sudo umount {}; or share another directory",
                word(point)
            )),
        }
    }
}

pub(crate) fn word(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

pub(super) fn look_error(path: &Path, source: io::Error) -> WorkspaceError {
    let path = path.to_path_buf();
    if source.kind() == io::ErrorKind::NotFound {
        return WorkspaceError::Missing(path);
    }
    WorkspaceError::Io { path, source }
}

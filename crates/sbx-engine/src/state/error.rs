//! Why the state directory cannot be used, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::state::settings::SettingError;

/// What to do about a state directory that cannot be used.
pub const ANOTHER_PLACE: &str = "set SBX_HOME to an absolute path of a directory for sbx alone";

/// What to do about a disk, or a quota, that is used up.
pub(super) const FREE_SPACE: &str = "free some disk space, for example with `sbx rm`";
const FULL: [io::ErrorKind; 2] = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];

#[derive(Debug, Error)]
pub enum StateError {
    #[error("`{path}` has files in it that this program did not make")]
    Foreign { path: PathBuf },
    #[error("`{path}` belongs to user {owner}, not to user {user}")]
    OtherUser {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    #[error("`{path}` lies below `{above}`, in which another user can rename directories")]
    Renamable { path: PathBuf, above: PathBuf },
    #[error("`{path}` is not an absolute path")]
    Relative { path: PathBuf },
    #[error("another daemon serves `{path}`")]
    Locked { path: PathBuf },
    #[error("cannot use `{path}`")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("settings in `{path}` are not valid")]
    Settings {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Setting(#[from] SettingError),
}

impl StateError {
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Foreign { .. } | Self::OtherUser { .. } | Self::Relative { .. } => {
                Some(ANOTHER_PLACE)
            }
            Self::Renamable { .. } => Some(
                "set SBX_HOME to a directory below which only you and root can write, or take the permission from others (chmod go-w)",
            ),
            Self::Io { source, .. } => Some(place_hint(source)),
            Self::Locked { .. } => Some("sbx daemon status"),
            Self::Settings { .. } => {
                Some("correct the file, or remove it; `sbx diagnose` checks it")
            }
            Self::Setting(_) => Some("sbx settings list --all"),
        }
    }
}

/// What to do when the state directory, or something in it, cannot be used for that reason.
pub fn place_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::ReadOnlyFilesystem => ANOTHER_PLACE,
        kind if FULL.contains(&kind) => FREE_SPACE,
        _ => "sbx diagnose",
    }
}

/// What to do about an error with a file that a full disk is the cause of. Not for others: making a namespace fails with
/// ENOSPC too, where there are as many as the kernel allows.
pub(crate) fn full_disk_hint(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| FULL.contains(&io.kind())) {
            return Some(FREE_SPACE);
        }
        next = error.source();
    }
    None
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> StateError {
    StateError::Io {
        path: path.to_path_buf(),
        source,
    }
}

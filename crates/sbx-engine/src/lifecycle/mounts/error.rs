//! Why a workspace cannot be mounted or unmounted, beside what `create` refuses as well.

use std::path::PathBuf;

use thiserror::Error;

use crate::sandbox::name::SandboxName;
use crate::workspace::word;

#[derive(Debug, Error)]
pub enum MountError {
    #[error("sandbox `{sandbox}` has the workspace `{}` already", .path.display())]
    Already { sandbox: SandboxName, path: PathBuf },
    #[error("sandbox `{sandbox}` has no workspace `{path}`")]
    NotMounted { sandbox: SandboxName, path: String },
    #[error("`{}` is the primary workspace of sandbox `{sandbox}`, which cannot be unmounted", .path.display())]
    Primary { sandbox: SandboxName, path: PathBuf },
    #[error(
        "programs in sandbox `{sandbox}` use `{}` (EBUSY): it is a working directory, or a file in it is open",
        .place.display()
    )]
    Busy {
        sandbox: SandboxName,
        place: PathBuf,
    },
}

impl MountError {
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Already { sandbox, path } => format!("sbx umount {sandbox} {}", word(path)),
            Self::NotMounted { sandbox, .. } => format!("sbx inspect {sandbox}"),
            Self::Primary { sandbox, .. } => {
                format!("sbx rm {sandbox}, and create it with another one")
            }
            Self::Busy { sandbox, .. } => {
                format!("end those programs, or all of them: sbx stop {sandbox}")
            }
        }
    }
}

//! Paths of one sandbox.

use std::io;
use std::path::{Path, PathBuf};

use super::{DOCKER_SOCKET, RECORD};

/// Paths of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxDir {
    pub(super) path: PathBuf,
}

impl SandboxDir {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn record(&self) -> PathBuf {
        self.path.join(RECORD)
    }

    pub fn docker_socket(&self) -> PathBuf {
        self.path.join(DOCKER_SOCKET)
    }

    /// Leads what connects to the sandbox's Docker socket to the daemon's, which says why there is none. A link, so that
    /// it costs neither a descriptor nor a listener per sandbox, and the next daemon answers too.
    pub(crate) fn link_docker_socket(&self) -> io::Result<()> {
        let target = Path::new("../..").join(DOCKER_SOCKET);
        match std::os::unix::fs::symlink(target, self.docker_socket()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    pub fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }

    /// The image that holds the layers of a sandbox with a limited disk.
    pub fn disk(&self) -> PathBuf {
        self.path.join("disk.img")
    }

    /// Names the sandbox's control groups, a path per line: they are removed also where the record cannot be read.
    pub fn groups(&self) -> PathBuf {
        self.path.join("cgroups")
    }

    /// The two halves of the log, of which the inside writes one at a time.
    pub fn outputs(&self) -> [PathBuf; 2] {
        [
            self.path.join("output.0.log"),
            self.path.join("output.1.log"),
        ]
    }
}

/// A removed sandbox whose files are still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trashed {
    pub(crate) dir: SandboxDir,
    /// Where it was while it ran.
    pub(crate) origin: SandboxDir,
}

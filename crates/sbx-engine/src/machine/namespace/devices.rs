//! The device nodes of the host that every sandbox has. All ids of a sandbox are "others" to them.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sbx_proto::plan::OPEN_NULL;
use sbx_proto::shell::quoted;

/// Where they are.
pub const DIRECTORY: &str = "/dev";
/// Their names.
pub(super) const NAMES: &[&str] = &["full", NULL, "random", "tty", "urandom", "zero"];
/// Without this one no sandbox starts: its init opens it.
const NULL: &str = "null";
/// What others need.
const READ_WRITE: u32 = 0o006;

/// A device node that programs in a sandbox cannot open for reading and writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableDevice {
    path: PathBuf,
    /// Its permissions; `None` where there is no such node.
    mode: Option<u32>,
}

/// Those in this directory.
pub fn unusable(directory: &Path) -> Vec<UnusableDevice> {
    let look = |name: &&str| {
        let path = directory.join(name);
        let meta = fs::metadata(&path).ok();
        let mode = meta.map(|meta| meta.permissions().mode() & 0o7777);
        UnusableDevice { path, mode }
    };
    let is_unusable = |device: &UnusableDevice| {
        let mode = device.mode.unwrap_or(0);
        mode & READ_WRITE != READ_WRITE
    };
    NAMES.iter().map(look).filter(is_unusable).collect()
}

/// The remedy for a set-up that failed at this step in this way.
pub(super) fn remedy_for(step: &str, errno: Option<i32>) -> Option<&'static str> {
    let is_denied = errno == Some(Errno::ACCESS.raw_os_error());
    (step == OPEN_NULL && is_denied).then_some("sudo chmod 666 /dev/null")
}

impl UnusableDevice {
    /// Whether no sandbox can be created because of it.
    pub fn prevents_create(&self) -> bool {
        self.mode.is_none() || self.path.ends_with(NULL)
    }

    /// The command that makes them usable, if there is one.
    pub fn remedy(devices: &[Self]) -> Option<String> {
        let present = devices.iter().filter(|device| device.mode.is_some());
        let paths: Vec<_> = present
            .map(|device| quoted(&device.path.to_string_lossy()))
            .collect();
        (!paths.is_empty()).then(|| format!("sudo chmod 666 {}", paths.join(" ")))
    }
}

impl fmt::Display for UnusableDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.mode {
            None => write!(f, "`{path}` does not exist"),
            Some(mode) => write!(
                f,
                "`{path}` has mode {mode:o}, which does not let others read and write it"
            ),
        }
    }
}

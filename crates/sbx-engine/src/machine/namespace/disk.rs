//! A disk of limited size for a sandbox's own layer: an image of an ext4 file system, in root mode only.
//!
//! The image is a sparse file in the sandbox's directory. The helper attaches it to a loop device that frees itself
//! (`LO_FLAGS_AUTOCLEAR`) and mounts it for the sandbox alone: when the last process of the sandbox has ended, however
//! that came about, the kernel unmounts it, and no other mount namespace ever sees it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sbx_proto::plan::Mode;

use super::limits::{LimitError, Unsupported};
use crate::state::SandboxDir;

const MAKERS: &[&str] = &["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];
const MAKER: &str = "mkfs.ext4";
const CONTROL: &str = "/dev/loop-control";

const NOT_ROOT: Unsupported = Unsupported {
    reason: "only root can attach a disk image",
    remedy: "run sbx as root",
};
const NO_LOOP: Unsupported = Unsupported {
    reason: "this machine has no loop devices that sbx may use",
    remedy: "load the module (`modprobe loop`) as root of the machine",
};
const NO_MAKER: Unsupported = Unsupported {
    reason: "`mkfs.ext4` is not installed",
    remedy: "install e2fsprogs",
};

/// Whether sandboxes of that mode can have one.
pub(super) fn possible(mode: Mode) -> Result<(), Unsupported> {
    if mode != Mode::Root {
        return Err(NOT_ROOT);
    }
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    control.map_err(|_| NO_LOOP)?;
    maker().map(drop).ok_or(NO_MAKER)
}

fn maker() -> Option<PathBuf> {
    let mut places = MAKERS.iter().map(|dir| Path::new(dir).join(MAKER));
    places.find(|path| path.is_file())
}

/// Makes the sandbox's image unless it is there. `owner` is root inside, as user and as group.
pub(super) fn ensure(dir: &SandboxDir, bytes: u64, owner: u32) -> Result<PathBuf, LimitError> {
    let image = dir.disk();
    if image.exists() {
        return Ok(image);
    }
    let failed = |error: io::Error| LimitError::Disk(error.to_string());
    let maker = maker().ok_or_else(|| LimitError::Disk(NO_MAKER.reason.to_owned()))?;
    // Under its name when it is complete: this process may be killed meanwhile.
    let begun = image.with_extension("new");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&begun)
        .map_err(failed)?;
    file.set_len(bytes).map_err(failed)?;
    let made = Command::new(maker)
        .args(["-q", "-F", "-m", "0", "-i", "8192"])
        // What is zero already need not be written; the kernel does the rest of it when it is used.
        .args([
            "-E",
            &format!("lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner={owner}:{owner}"),
        ])
        .arg(&begun)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(failed)?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        let reason = said.lines().last().unwrap_or("no reason given");
        return Err(LimitError::Disk(format!("mkfs.ext4: {reason}")));
    }
    fs::rename(&begun, &image).map_err(failed)?;
    Ok(image)
}

/// What the image takes of the host's disk.
pub(super) fn size(dir: &SandboxDir) -> Option<u64> {
    let meta = fs::symlink_metadata(dir.disk()).ok()?;
    Some(meta.blocks() * 512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::name::SandboxName;
    use crate::state::StateDir;

    #[test]
    fn a_user_is_told_what_helps() {
        for mode in [Mode::Single, Mode::Subordinate] {
            assert!(possible(mode).unwrap_err().remedy.contains("root"));
        }
    }

    #[test]
    fn an_image_is_sparse_and_made_once() {
        if maker().is_none() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        let dir = state.sandbox(&SandboxName::parse("ab").unwrap());
        fs::create_dir_all(dir.path()).unwrap();
        assert_eq!(size(&dir), None);
        let image = ensure(&dir, 256 << 20, 7).unwrap();
        assert_eq!(image.metadata().unwrap().len(), 256 << 20);
        assert!(size(&dir).unwrap() < 32 << 20);
        let made = image.metadata().unwrap().ino();
        ensure(&dir, 512 << 20, 7).unwrap();
        assert_eq!(image.metadata().unwrap().ino(), made);
        assert!(!dir.path().join("disk.new").exists());
    }
}

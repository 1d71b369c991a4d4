//! A layer of whiteouts: as the top lower layer of an overlay it hides paths of the layers below, now and when they are
//! replaced or created later.

use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode as FileMode, OFlags, mknodat};
use rustix::io::Errno;
use sbx_proto::OsBytes;
use sbx_proto::plan::{Mode, Owner};

use super::tree::give_to;
use crate::error::{ErrorContext, SetupError, SetupResult};

/// A whiteout is a character device 0:0, which needs no privilege to create (`Documentation/filesystems/overlayfs`).
const WHITEOUT: u64 = 0;

/// Makes a layer that hides these paths. Directories on the way to them belong to `owner`, or to the agent if they are in
/// `agents`: overlay takes owner and mode of a merged directory from the uppermost layer.
pub(super) fn make(
    place: &Path,
    hidden: &[OsBytes],
    agents: &[OsBytes],
    owner: Owner,
    mode: Mode,
) -> SetupResult<()> {
    directory(place, owner, mode)?;
    let owner = |dir: &Path| {
        let agents = agents.iter().any(|known| known.as_path() == dir);
        if agents { Owner::Agent } else { owner }
    };
    for path in hidden {
        hide(place, path.as_path(), &owner, mode)?;
    }
    Ok(())
}

fn hide(layer: &Path, path: &Path, owner: &dyn Fn(&Path) -> Owner, mode: Mode) -> SetupResult<()> {
    let doing = || format!("hide `{}`", path.display());
    let plain = |part| matches!(part, Component::Normal(_));
    if path.as_os_str().is_empty() || !path.components().all(plain) {
        return Err(SetupError::new(doing(), "invalid path"));
    }
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.pop();
    for dir in above.into_iter().rev() {
        directory(&layer.join(dir), owner(dir), mode)?;
    }
    let kind = FileType::CharacterDevice;
    mknodat(CWD, layer.join(path), kind, FileMode::empty(), WHITEOUT).doing(doing)
}

fn directory(path: &Path, owner: Owner, mode: Mode) -> SetupResult<()> {
    let doing = || format!("make `{}`", path.display());
    match rustix::fs::mkdir(path, FileMode::from_bits_truncate(0o755)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(error) => return Err(error).doing(doing),
    }
    if owner == Owner::Root {
        return Ok(()); // this process is root
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::open(path, flags, FileMode::empty()).doing(doing)?;
    give_to(std::os::fd::AsFd::as_fd(&made), owner, mode).doing(doing)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn every_path_is_a_whiteout() {
        let temp = tempfile::tempdir().unwrap();
        let layer = temp.path().join("layer");
        let paths = [".npmrc", "etc/npmrc", "etc/pip.conf", "a/b/c"].map(OsBytes::from);
        make(&layer, &paths, &[], Owner::Root, Mode::Single).unwrap();
        for path in &paths {
            let meta = fs::symlink_metadata(layer.join(path.as_path())).unwrap();
            assert!(meta.file_type().is_char_device() && meta.rdev() == WHITEOUT);
        }
        assert_eq!(fs::read_dir(&layer).unwrap().count(), 3);
        for bad in ["", "../x", "/x", "a/../b", "."] {
            let made = make(&layer, &[bad.into()], &[], Owner::Root, Mode::Single);
            assert!(made.is_err(), "{bad}");
        }
    }
}

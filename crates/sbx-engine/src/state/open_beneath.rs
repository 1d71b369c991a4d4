//! One step down from a directory that is held open: no link is followed, and no mount point crossed.
//!
//! `openat2(2)` with `RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS` decides and opens in one call. Where that
//! call is not there, the directory is opened first and its mount id compared afterwards (`statx`), on the descriptor:
//! a rename in between cannot change what was opened.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

/// A directory as a place, which opening needs no right to.
pub(crate) const DIR_HANDLE: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The directory `name` of `parent`; `EXDEV` where something is mounted.
pub(crate) fn open_dir(parent: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let found = rustix::fs::openat2(
        &parent,
        name,
        DIR_HANDLE,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS,
    );
    match found {
        // A filter around this process may not know the call.
        Err(Errno::NOSYS) => in_two_steps(parent.as_fd(), name),
        found => found,
    }
}

fn in_two_steps(parent: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    if name.to_bytes().contains(&b'/') || name == c".." {
        return Err(Errno::INVAL);
    }
    let found = rustix::fs::openat(&parent, name, DIR_HANDLE, Mode::empty())?;
    if mount(&found)? == mount(parent)? {
        Ok(found)
    } else {
        Err(Errno::XDEV)
    }
}

fn mount(place: impl AsFd) -> rustix::io::Result<(u32, u32, u64)> {
    let known = rustix::fs::statx(place, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok((known.stx_dev_major, known.stx_dev_minor, known.stx_mnt_id))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_directory_is_found_without_openat2_as_well() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path();
        fs::create_dir(tree.join("below")).unwrap();
        symlink("below", tree.join("link")).unwrap();
        let open = |path: &Path| rustix::fs::open(path, DIR_HANDLE, Mode::empty()).unwrap();
        let top = open(tree);
        let below = in_two_steps(&top, c"below").unwrap();
        let ino = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(ino(&below), ino(&open(&tree.join("below"))));
        for (name, error) in [
            (c"link", Errno::NOTDIR),
            (c"none", Errno::NOENT),
            (c"..", Errno::INVAL),
            (c"below/..", Errno::INVAL),
        ] {
            assert_eq!(in_two_steps(&top, name).unwrap_err(), error, "{name:?}");
        }
        // Every machine has something mounted there.
        assert_eq!(
            in_two_steps(open(Path::new("/")), c"proc").unwrap_err(),
            Errno::XDEV
        );
    }
}

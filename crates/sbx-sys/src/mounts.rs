//! `mount_setattr(2)`: the one call of the new mount API that `rustix` lacks.
//!
//! It works on a detached mount (`open_tree` with `OPEN_TREE_CLONE`), before `move_mount` makes it visible anywhere: so a
//! mount never exists without its attributes. `MOUNT_ATTR_IDMAP` is possible on a detached mount only.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::checked;

pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Sets attributes on a mount and, if `recursive`, on the mounts below it. `idmap` is a user namespace whose id maps
/// become the mount's (`MOUNT_ATTR_IDMAP`): ids on disk are translated through it. The mount also becomes private
/// (`MS_PRIVATE`): otherwise a mount that is made later on the host would propagate into it, without these attributes.
pub fn set_attributes(
    mount: BorrowedFd<'_>,
    recursive: bool,
    attributes: u64,
    idmap: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes | idmap.map_or(0, |_| libc::MOUNT_ATTR_IDMAP),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: match idmap {
            Some(fd) => u64::try_from(fd.as_raw_fd()).map_err(io::Error::other)?,
            None => 0,
        },
    };
    set(mount, recursive, &attr)
}

/// Takes `MOUNT_ATTR_RDONLY` away. EPERM where a more privileged user namespace has locked it.
pub fn make_writable(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: 0,
        attr_clr: RDONLY,
        propagation: 0,
        userns_fd: 0,
    };
    set(mount, false, &attr)
}

fn set(mount: BorrowedFd<'_>, recursive: bool, attr: &libc::mount_attr) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, `attr` lives across the call and its size is given.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

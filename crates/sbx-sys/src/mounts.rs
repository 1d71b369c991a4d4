//! Mount attributes: the one call of the new mount API that `rustix` lacks. And how the kernel writes mount points.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::checked;

pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Sets attributes on a mount (and, if `recursive`, on what is mounted below it), and its id map if a user
/// namespace is given. It becomes private: what is mounted elsewhere later does not appear in it, without the
/// attributes, and the other way round.
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
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, `attr` lives across the call and its size is given.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

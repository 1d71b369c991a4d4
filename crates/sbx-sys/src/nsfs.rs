//! How namespaces belong to each other (`ioctl_ns(2)`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::checked;

/// `linux/nsfs.h`; the `libc` crate does not have them.
const NS_GET_USERNS: libc::Ioctl = 0xb701;
const NS_GET_PARENT: libc::Ioctl = 0xb702;

/// The user namespace that owns this namespace. EPERM where that is outside of the caller's own one.
pub fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    related(namespace, NS_GET_USERNS)
}

/// The parent of a user namespace. EPERM where that is outside of the caller's own one.
pub fn parent(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    related(namespace, NS_GET_PARENT)
}

fn related(namespace: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<OwnedFd> {
    // SAFETY: these requests have no argument; another kind of descriptor refuses them.
    let fd = checked(unsafe { libc::ioctl(namespace.as_raw_fd(), request) }.into())?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn our_namespaces_belong_to_our_user_namespace() {
        let user = File::open("/proc/self/ns/user").unwrap();
        let ipc = File::open("/proc/self/ns/ipc").unwrap();
        // Where another one owns it, that is above our own and cannot be had.
        if let Ok(owner) = owner(ipc.as_fd()) {
            let owner = File::from(owner).metadata().unwrap();
            assert_eq!(owner.ino(), user.metadata().unwrap().ino());
        }
        let null = File::open("/dev/null").unwrap();
        assert!(owner(null.as_fd()).is_err() && parent(null.as_fd()).is_err());
        assert!(parent(ipc.as_fd()).is_err(), "it has none");
    }
}

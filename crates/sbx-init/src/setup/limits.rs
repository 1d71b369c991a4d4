//! How much the sandbox may have of what the kernel counts per user.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode as FileMode, OFlags};

/// Sets the limits of this process's user namespace, which hold for all below it. Root of a namespace below can
/// change the values there, and not these.
pub(super) fn set(proc: BorrowedFd<'_>, limits: &[(String, u64)]) {
    for (name, value) in limits {
        let path = format!("sys/user/{name}");
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        // A kernel that does not count something cannot limit it.
        let _ = rustix::fs::openat(proc, path, flags, FileMode::empty())
            .and_then(|file| rustix::io::write(&file, value.to_string().as_bytes()));
    }
}

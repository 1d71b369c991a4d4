//! How much the sandbox may have of what the kernel counts per user.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the kernel counts for the user who makes a user namespace, whoever uses it up inside.
const COUNTED_FOR_THE_CALLER: &[Resource] =
    &[Resource::Sigpending, Resource::Msgqueue, Resource::Memlock];

/// Leaves half of it to the caller's other programs. Before the first user namespace: what its maker may have is what
/// all in it may have together.
pub(super) fn leave_half() {
    for resource in COUNTED_FOR_THE_CALLER {
        let own = getrlimit(*resource);
        if let Some(all) = own.current {
            // Less is always allowed.
            let half = Rlimit {
                current: Some(all / 2),
                ..own
            };
            let _ = setrlimit(*resource, half);
        }
    }
}

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

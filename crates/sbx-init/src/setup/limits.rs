//! Limits for what the kernel counts per user: rlimits, and `/proc/sys/user/max_*` ("ucounts").

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Resources that the kernel charges to the creator of a user namespace, whichever id inside uses them.
const COUNTED_PER_USER: &[Resource] =
    &[Resource::Sigpending, Resource::Msgqueue, Resource::Memlock];

/// Leaves half of them to the caller's other programs. To be called before the first user namespace: the limits of its
/// creator hold for all processes in it together.
pub(super) fn halve_rlimits() {
    for resource in COUNTED_PER_USER {
        let own = getrlimit(*resource);
        if let Some(all) = own.current {
            // Lowering a limit needs no privilege.
            let half = Rlimit {
                current: Some(all / 2),
                ..own
            };
            let _ = setrlimit(*resource, half);
        }
    }
}

/// Sets the limits of this process's user namespace, which include all its descendants. Root of a child namespace can
/// change the limits there, but not these.
pub(super) fn set_ucounts(proc: BorrowedFd<'_>, limits: &[(String, u64)]) {
    for (name, value) in limits {
        let path = format!("sys/user/{name}");
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        // A kernel that does not count a resource has no such file.
        let _ = rustix::fs::openat(proc, path, flags, FileMode::empty())
            .and_then(|file| rustix::io::write(&file, value.to_string().as_bytes()));
    }
}

/// Limits the processes of the user namespace that this process creates next, and of those below it: the kernel counts
/// them all for its creator and compares with the creator's RLIMIT_NPROC of that moment. Commands do not inherit the
/// limit itself, which would count per id.
pub(super) fn set_processes(most: u64) {
    let own = getrlimit(Resource::Nproc);
    let least = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    let lower = Rlimit {
        current: least(own.current),
        maximum: own.maximum,
    };
    // Lowering the soft limit needs no privilege.
    let _ = setrlimit(Resource::Nproc, lower);
}

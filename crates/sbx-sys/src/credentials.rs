//! The ids and capabilities of this (single-threaded) process.
//!
//! The kernel keeps credentials per thread; glibc's `setuid` and the like change them for all threads of a process by
//! signalling each. These functions make the plain system calls, so that a forked child of init, which has one thread, can
//! take on the ids of a caller without that machinery.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

/// The ids that the kernel checks file access against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Sets the real, effective and saved ids. Leaving uid 0 drops every capability, unless `PR_SET_KEEPCAPS` is set.
/// `set_groups` is false where `/proc/PID/setgroups` says `deny` (one id only).
pub fn become_user(credentials: &Credentials, set_groups: bool) -> io::Result<()> {
    if set_groups {
        let groups: Vec<Gid> = credentials
            .groups
            .iter()
            .map(|&gid| Gid::from_raw(gid))
            .collect();
        rustix::thread::set_thread_groups(&groups)?;
    }
    // Groups before the user: without uid 0 there is no CAP_SETGID any more.
    let gid = Gid::from_raw(credentials.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    let uid = Uid::from_raw(credentials.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Sets the effective and permitted capabilities to exactly `bits`, none inheritable.
pub fn set_capabilities(bits: u64) -> io::Result<()> {
    let set = CapabilitySet::from_bits_truncate(bits);
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: set,
            permitted: set,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// `PR_SET_KEEPCAPS`: permitted capabilities survive the next change of uid; effective ones do not.
pub fn keep_capabilities() -> io::Result<()> {
    rustix::thread::set_keep_capabilities(true)?;
    Ok(())
}

/// Makes every permitted capability effective again, after a change of uid with [`keep_capabilities`].
pub fn raise_capabilities() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = sets.permitted;
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Runs `work` with another file system uid (`setfsuid`): file access is checked as for that user, and CAP_DAC_OVERRIDE
/// and its like do not apply meanwhile. Signals and ptrace still see the process's own uid.
pub fn with_fsuid<T>(uid: u32, work: impl FnOnce() -> T) -> T {
    // SAFETY: no pointers; it changes this thread only. On failure it leaves the id as it is.
    let before = unsafe { libc::setfsuid(uid) };
    let done = work();
    // SAFETY: as above.
    unsafe { libc::setfsuid(before.cast_unsigned()) };
    done
}

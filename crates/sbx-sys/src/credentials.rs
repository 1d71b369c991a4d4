//! The ids and capabilities of this (single-threaded) process.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

/// What a process is allowed to be and do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Becomes the user in all its ids. Leaving uid 0 drops every capability, as the kernel defines it.
/// `set_groups` is false where the user namespace forbids it (one id only).
pub fn become_user(credentials: &Credentials, set_groups: bool) -> io::Result<()> {
    if set_groups {
        let groups: Vec<Gid> = credentials
            .groups
            .iter()
            .map(|&gid| Gid::from_raw(gid))
            .collect();
        rustix::thread::set_thread_groups(&groups)?;
    }
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

/// Capabilities survive the next change of uid.
pub fn keep_capabilities() -> io::Result<()> {
    rustix::thread::set_keep_capabilities(true)?;
    Ok(())
}

/// What is permitted becomes effective again, after a change of uid that kept it.
pub fn raise_capabilities() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = sets.permitted;
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Does something with files as another user of this namespace would, without root's power over them.
pub fn as_user_of_files<T>(uid: u32, work: impl FnOnce() -> T) -> T {
    // SAFETY: no pointers; it changes this thread only, and cannot fail but by leaving the id as it is.
    let before = unsafe { libc::setfsuid(uid) };
    let done = work();
    // SAFETY: as above.
    unsafe { libc::setfsuid(before.cast_unsigned()) };
    done
}

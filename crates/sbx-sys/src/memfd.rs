//! Copies of executables that can no longer change: sealed memory files (`memfd_create`, `F_ADD_SEALS`).
//!
//! A program in a sandbox can open `/proc/1/exe`, the file that init was executed from. If that were the file on disk, root
//! inside could, depending on ids, overwrite or chmod the program that the host runs next (CVE-2019-5736). A memfd of the
//! sandbox's own, sealed against writing and resizing, leaves nothing to overwrite.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Linux 6.3; not in `rustix` yet.
const F_SEAL_EXEC: u32 = 0x20;
const MAX_SEAL_ATTEMPTS: usize = 20;

/// The running executable in a sealed memory file. An upgrade of the program on disk does not affect it.
pub fn sealed_copy_of_self() -> io::Result<OwnedFd> {
    sealed_copy(File::open("/proc/self/exe")?.as_fd())
}

/// An executable in a sealed memory file. A sandbox's init is started from one, so that `/proc/1/exe` leads to nothing
/// that could be overwritten.
pub fn sealed_copy(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // Opened anew: a copy of the descriptor would share its read position with other copies.
    let mut program = File::open(format!("/proc/self/fd/{}", program.as_raw_fd()))?;
    let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_EXEC is asked for by name where the kernel knows it (6.3): without it a hardened machine
    // (vm.memfd_noexec) makes the file not executable.
    let memfd = rustix::fs::memfd_create(c"sbx", base | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(c"sbx", base))?;
    let mut copy = File::from(memfd);
    io::copy(&mut program, &mut copy)?;
    seal(
        &copy,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW,
    )?;
    // The mode is sealed too where the kernel can (6.3): the file's owner may be an id inside, which could chmod it.
    // F_SEAL_SEAL comes last, since it forbids any further seal.
    let last = SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&copy, SealFlags::from_bits_retain(F_SEAL_EXEC) | last)
        .or_else(|_| rustix::fs::fcntl_add_seals(&copy, last))?;
    // A sealed file that this process still holds open for writing cannot be executed (ETXTBSY).
    let readonly = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))?;
    drop(copy);
    Ok(readonly.into())
}

/// F_SEAL_WRITE fails with EBUSY while a page has an extra reference, which the kernel's own housekeeping may take for a
/// moment. The kernel waits for such references itself before it gives up, so that a retry needs no delay.
fn seal(file: &File, seals: SealFlags) -> Result<(), Errno> {
    for _ in 0..MAX_SEAL_ATTEMPTS {
        match rustix::fs::fcntl_add_seals(file, seals) {
            Err(Errno::BUSY) => {}
            other => return other,
        }
    }
    Err(Errno::BUSY)
}

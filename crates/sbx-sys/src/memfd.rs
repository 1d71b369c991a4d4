//! Copies of executables that nobody can change.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

const F_SEAL_EXEC: u32 = 0x20;
const SEAL_TRIES: usize = 20;

/// The running executable in a sealed memory file: an upgrade of the program on disk does not matter to it.
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
    // That it is executable is sealed too where the kernel can (6.3): its owner may be an id inside.
    let last = SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&copy, SealFlags::from_bits_retain(F_SEAL_EXEC) | last)
        .or_else(|_| rustix::fs::fcntl_add_seals(&copy, last))?;
    // A sealed file that this process still holds open for writing cannot be executed (ETXTBSY).
    let readonly = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))?;
    drop(copy);
    Ok(readonly.into())
}

/// The kernel refuses while somebody has a hold on a page, which its own housekeeping may have for a moment. It waits
/// for that itself before it gives up, so that trying again needs no pause.
fn seal(file: &File, seals: SealFlags) -> Result<(), Errno> {
    for _ in 0..SEAL_TRIES {
        match rustix::fs::fcntl_add_seals(file, seals) {
            Err(Errno::BUSY) => {}
            other => return other,
        }
    }
    Err(Errno::BUSY)
}

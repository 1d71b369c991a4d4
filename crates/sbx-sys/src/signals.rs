//! Signals as a readable descriptor, and the clean state that a new program expects.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::checked;

/// The given signals, blocked for this process and read one by one.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let set = set_of(signals)?;
        // SAFETY: `set` is initialised; the old mask is not asked for.
        let blocked =
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        checked(blocked.into())?;
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        let fd = checked(fd.into())?;
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made it and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next pending signal, `None` when there is none.
    pub fn read(&self) -> io::Result<Option<i32>> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            // The record begins with the signal's number.
            Ok(_) => Ok(info
                .first_chunk::<4>()
                .map(|number| i32::from_ne_bytes(*number))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// No signal blocked, every handler the default one: what a freshly executed program expects. What a process
/// above ignores (SIGPIPE in Rust's runtime, SIGHUP under `nohup`) would be inherited otherwise.
pub fn reset() -> io::Result<()> {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is a valid disposition; errors (SIGKILL, SIGSTOP, glibc's own two) do not matter.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let none = set_of(&[])?;
    // SAFETY: `none` is initialised; the old mask is not asked for.
    let unblocked =
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    checked(unblocked.into())?;
    Ok(())
}

fn set_of(signals: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    checked(unsafe { libc::sigemptyset(set.as_mut_ptr()) }.into())?;
    // SAFETY: initialised by the call above.
    let mut set = unsafe { set.assume_init() };
    for &signal in signals {
        // SAFETY: `set` is initialised; a number that is no signal is an error.
        checked(unsafe { libc::sigaddset(&raw mut set, signal) }.into())?;
    }
    Ok(set)
}

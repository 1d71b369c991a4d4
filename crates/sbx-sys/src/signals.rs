//! Signals as a readable descriptor (`signalfd`), and the default state that a new program expects.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::checked;

/// The given signals, blocked for this thread and read one by one. Drop discards pending ones and restores the signal mask.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
    mask_before: libc::sigset_t,
}

impl SignalFd {
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let set = set_of(signals)?;
        let mut mask_before = set_of(&[])?;
        // SAFETY: both sets are initialised.
        let blocked =
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut mask_before) };
        checked(blocked.into())?;
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        let fd = checked(fd.into())?;
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made it and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, mask_before })
    }

    /// The next pending signal, if any.
    pub fn read(&self) -> io::Result<Option<i32>> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut info) {
            // `ssi_signo` is the first field.
            Ok(_) => Ok(info
                .first_chunk::<4>()
                .map(|number| i32::from_ne_bytes(*number))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for SignalFd {
    fn drop(&mut self) {
        while matches!(self.read(), Ok(Some(_))) {}
        // SAFETY: the set is one that the kernel has written; an error would leave the signals blocked, as they are.
        unsafe {
            libc::sigprocmask(
                libc::SIG_SETMASK,
                &raw const self.mask_before,
                std::ptr::null_mut(),
            )
        };
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Unblocks every signal and resets every handler, as a new program expects: a mask and ignored signals survive `execve`
/// (SIGPIPE, which Rust's runtime ignores; SIGHUP under `nohup`).
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
        // SAFETY: `set` is initialised; an invalid signal number is an error.
        checked(unsafe { libc::sigaddset(&raw mut set, signal) }.into())?;
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: i32) -> bool {
        let mut mask = set_of(&[]).unwrap();
        // SAFETY: both sets are initialised or none; nothing is changed.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask) };
        // SAFETY: the kernel has written the set.
        unsafe { libc::sigismember(&raw const mask, signal) == 1 }
    }

    #[test]
    fn drop_discards_pending_signals_and_restores_the_mask() {
        let signals = SignalFd::new(&[libc::SIGUSR1]).unwrap();
        assert!(is_blocked(libc::SIGUSR1) && signals.read().unwrap().is_none());
        for _ in 0..2 {
            // SAFETY: the signal is blocked in this thread, to which it goes.
            assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
        }
        // A pending SIGUSR1 would end the process once it is unblocked.
        drop(signals);
        assert!(!is_blocked(libc::SIGUSR1));
    }
}

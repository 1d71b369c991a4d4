//! The controlling terminal of a session.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::checked;

/// Makes the terminal the controlling one of this process's (new) session.
pub fn make_controlling(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an integer, not a pointer.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }.into())?;
    Ok(())
}

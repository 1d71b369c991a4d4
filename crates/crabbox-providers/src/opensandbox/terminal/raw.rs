//! The user's terminal in raw mode.

use std::os::fd::BorrowedFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Keys go to the command as they are, Ctrl-C included. Set back when it is dropped.
pub(super) struct RawMode(Option<(BorrowedFd<'static>, Termios)>);

impl RawMode {
    pub(super) fn enter(terminal: BorrowedFd<'static>) -> Self {
        let before = tcgetattr(terminal).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            // Without it the terminal is as it was, and so are its keys.
            let _ = tcsetattr(terminal, OptionalActions::Drain, &raw);
        }
        Self(before.map(|before| (terminal, before)))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Some((terminal, before)) = &self.0 {
            // What the command shows can make a terminal type (a status report, an answerback): input that the command has
            // not read must not reach the caller's shell. The terminal may be gone; then there is nothing to set back.
            let _ = tcsetattr(terminal, OptionalActions::Flush, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;
    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

    use super::*;

    /// What is written to the master arrives by a kernel thread, after write(2) has returned.
    fn wait_for_input(slave: BorrowedFd<'_>) {
        let mut fds = [PollFd::new(&slave, PollFlags::IN)];
        assert_eq!(poll(&mut fds, None), Ok(1));
    }

    #[test]
    fn input_that_is_pending_at_the_end_of_raw_mode_is_discarded() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&master).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK;
        let slave = rustix::fs::open(ptsname(&master, []).unwrap(), flags, Mode::empty()).unwrap();
        let slave: &'static OwnedFd = Box::leak(Box::new(slave));
        let slave = slave.as_fd();
        let before = tcgetattr(slave).unwrap().local_modes;
        let raw = RawMode::enter(slave);
        assert_ne!(tcgetattr(slave).unwrap().local_modes, before);
        rustix::io::write(&master, b"reboot\n").unwrap();
        wait_for_input(slave);
        drop(raw);
        assert_eq!(tcgetattr(slave).unwrap().local_modes, before);
        let mut read = [0; 16];
        assert_eq!(rustix::io::read(slave, &mut read), Err(Errno::AGAIN));
        rustix::io::write(&master, b"later\n").unwrap();
        wait_for_input(slave);
        assert_eq!(rustix::io::read(slave, &mut read), Ok(6));
    }
}

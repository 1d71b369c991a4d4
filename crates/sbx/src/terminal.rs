//! The caller's terminal: its size, and raw mode that always ends.

use std::os::fd::BorrowedFd;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// Used where there is no terminal to ask.
const FALLBACK: (u16, u16) = (24, 80);

/// Raw mode until this is dropped.
#[derive(Debug)]
pub(crate) struct RawMode {
    terminal: BorrowedFd<'static>,
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter(terminal: BorrowedFd<'static>) -> rustix::io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Drain, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // What the command shows can make a terminal type (a status report, an answerback): input that the command has not
        // read must not be the caller's shell's. The terminal may be gone; then there is nothing to restore.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Rows and columns of the caller's terminal.
pub(crate) fn size() -> (u16, u16) {
    [rustix::stdio::stdout(), rustix::stdio::stdin()]
        .into_iter()
        .filter(|terminal| isatty(terminal))
        .find_map(|terminal| tcgetwinsize(terminal).ok())
        .map_or(FALLBACK, |size| (size.ws_row, size.ws_col))
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
        let raw = RawMode::enter(slave).unwrap();
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

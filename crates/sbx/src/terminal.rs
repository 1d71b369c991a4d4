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
        // The terminal may be gone; then there is nothing to restore.
        let _ = tcsetattr(self.terminal, OptionalActions::Drain, &self.before);
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

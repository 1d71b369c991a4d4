//! How long a terminal is listened to after its command's end.
//!
//! What the command wrote last is still in the pty, and processes that it has left may hold the terminal open and write to
//! it for ever. Nothing tells one from the other, so time does.

use std::time::{Duration, Instant};

use sbx_proto::exec::Cause;

/// How long a terminal may be silent after the command's end before nothing more is expected.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long processes that the command has left are listened to after its end.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);
/// More than the kernel keeps of what was written to a terminal and not read yet: what comes after that, the command
/// has not written.
const TERMINAL_CAPACITY: usize = 64 << 10;

/// The command has ended; only its output is still being delivered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) code: u8,
    pub(super) by: Cause,
    at: Instant,
    /// What was read since.
    read: usize,
    /// How long nothing has come from its terminal, and how long that was waited for in all. Not counted is how long
    /// the caller takes to read: what the command has written waits for that in the kernel.
    pub(super) silent: Duration,
    waited: Duration,
}

impl Ended {
    pub(super) fn now(code: u8, by: Cause) -> Self {
        Self {
            code,
            by,
            at: Instant::now(),
            read: 0,
            silent: Duration::ZERO,
            waited: Duration::ZERO,
        }
    }

    pub(super) fn has_waited(&mut self, time: Duration) {
        self.silent = self.silent.saturating_add(time);
        self.waited = self.waited.saturating_add(time);
    }

    pub(super) fn has_read(&mut self, count: usize) {
        self.read = self.read.saturating_add(count);
        if count > 0 {
            self.silent = Duration::ZERO;
        }
    }

    /// Everything that the command wrote to its terminal has been read. Other processes may go on for ever.
    pub(super) fn is_drained(&self) -> bool {
        let only_others = self.read >= TERMINAL_CAPACITY && self.at.elapsed() >= OTHERS_TIMEOUT;
        self.silent >= SILENCE_TIMEOUT || self.waited >= OTHERS_TIMEOUT || only_others
    }
}

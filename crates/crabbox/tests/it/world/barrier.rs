//! Calls of the stand-in that are held up.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Nothing that a test waits for takes as long as this, however busy the machine is.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A call of the stand-in that waits for us.
#[derive(Debug)]
pub(crate) struct Barrier {
    pub(super) reached: File,
    pub(super) go: File,
}

impl Barrier {
    /// Waits until a process has reached the barrier.
    #[track_caller]
    pub(crate) fn wait(&mut self) {
        let timeout = Timespec::try_from(WAIT_TIMEOUT).unwrap();
        let mut fds = [PollFd::new(&self.reached, PollFlags::IN)];
        assert_eq!(
            poll(&mut fds, Some(&timeout)).unwrap(),
            1,
            "no process reached the barrier"
        );
        let mut line = [0; 5];
        self.reached.read_exact(&mut line).unwrap();
    }

    pub(crate) fn open(&mut self) {
        self.go.write_all(b"go\n").unwrap();
    }
}

//! The host process of a machine: for namespaces, its init as the host sees it.
//!
//! Held as a pidfd, so that a signal never reaches another process that got the same pid. Across daemons it is named by
//! pid, start time and boot id, which together no second process ever has.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sbx_sys::process::{pidfd_kill, pidfd_open, start_time, wait_pidfd};

use crate::sandbox::record::InitProcess;

/// How long [`Process::end`] waits: a process that hangs in a dead file system must not keep a daemon from starting.
const END_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(crate) struct Process {
    pidfd: Arc<OwnedFd>,
}

impl Process {
    pub(crate) fn new(pidfd: OwnedFd) -> Self {
        Self {
            pidfd: Arc::new(pidfd),
        }
    }

    /// The recorded process, if it is still that one.
    pub(crate) fn find(init: &InitProcess) -> Option<Self> {
        let pidfd = pidfd_open(init.pid).ok()?;
        // Compared after the pidfd is open: from now on the pid cannot become another process.
        (identify(init.pid).ok()? == *init).then(|| Self::new(pidfd))
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        pidfd_kill(&self.pidfd, Signal::KILL)
    }

    pub(crate) fn wait(&self) -> io::Result<()> {
        wait_pidfd(&self.pidfd)
    }

    /// True when the process has ended within the timeout.
    pub(crate) fn wait_timeout(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, timeout.as_ref()), Ok(1))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.wait_timeout(Duration::ZERO)
    }

    /// Kills it and waits, but not for ever.
    pub(crate) fn end(&self) {
        let ended = self.kill().and_then(|()| {
            if self.wait_timeout(END_TIMEOUT) {
                self.wait()
            } else {
                Err(io::ErrorKind::TimedOut.into())
            }
        });
        if let Err(error) = ended {
            tracing::error!(%error, "cannot end the init of a sandbox");
        }
    }
}

/// Which process this pid is, now.
pub(crate) fn identify(pid: i32) -> io::Result<InitProcess> {
    Ok(InitProcess {
        pid,
        start_time: start_time(pid)?,
        boot_id: boot_id()?,
    })
}

/// Changes with every boot of the host, which no process outlives.
pub(crate) fn boot_id() -> io::Result<String> {
    static KNOWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(KNOWN.get_or_init(|| text.trim().to_owned()).clone())
}

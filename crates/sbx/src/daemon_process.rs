//! The daemon as a process: find it, signal it, wait for its exit.
//!
//! The pid comes from SO_PEERCRED of the daemon's socket or, when the socket is gone, from the holder of the lock file. It is
//! turned into a pidfd at once, so that a pid that the kernel reuses is never signalled. Callers wait for the exit
//! because until then the daemon may keep the state directory's file system busy.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sbx_engine::StateDir;

use crate::client::Client;
use crate::failure::{Failure, Kind};

/// For a daemon that accepted a shutdown request, or was killed, to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);
/// For an unresponsive daemon to exit after SIGTERM, before SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_secs(5);
/// For a daemon that failed to answer because it is already exiting.
const CRASH_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct DaemonProcess {
    pid: Pid,
    process: OwnedFd,
    reach: Reach,
}

/// How the daemon was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Socket,
    /// It holds the lock, but its socket is gone.
    Unreachable,
}

impl DaemonProcess {
    /// The running daemon, `None` when there is none.
    pub(crate) fn find(client: &Client<'_>) -> Result<Option<Self>, Failure> {
        let stream = match client.connect() {
            Err(failure) if failure.kind == Kind::NoDaemon => return Ok(None),
            Err(failure) if failure.kind == Kind::Unreachable => {
                return Self::find_by_lock(client.state(), failure);
            }
            other => other?,
        };
        let pid = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(failed)?
            .pid;
        Self::open(pid, Reach::Socket)
    }

    /// By the lock file, whose holder the kernel reports. `failure` is returned when the holder has no pid we can see.
    fn find_by_lock(state: &StateDir, failure: Failure) -> Result<Option<Self>, Failure> {
        let Some(daemon) = state.cut_off_daemon() else {
            return Ok(None);
        };
        let pid = daemon.pid.ok_or(failure)?;
        let found = Self::open(pid, Reach::Unreachable)?;
        // The holder may have exited before the pidfd was opened: check again, now that the pid cannot be reused.
        Ok(found.filter(|_| state.cut_off_daemon() == Some(daemon)))
    }

    fn open(pid: Pid, reach: Reach) -> Result<Option<Self>, Failure> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Self {
                pid,
                process,
                reach,
            })),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// SIGTERM, for a daemon that does not accept requests, such as one of another version. Sandboxes keep running.
    pub(crate) fn terminate(&self) -> Result<(), Failure> {
        match pidfd_send_signal(&self.process, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// SIGTERM, then SIGKILL after [`TERM_TIMEOUT`].
    pub(crate) fn terminate_then_kill(&self) -> Result<(), Failure> {
        self.terminate()?;
        if self.wait_for(TERM_TIMEOUT).is_ok() {
            return Ok(());
        }
        match pidfd_send_signal(&self.process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => self.wait(),
            Err(error) => Err(failed(error)),
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Waits until the whole process is gone, including threads in uninterruptible disk waits.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        self.wait_for(EXIT_TIMEOUT)
    }

    /// Waits after a shutdown request with the given result. A daemon that is being killed may still accept connections
    /// and answer none, so a failed request is an error only if the process stays.
    pub(crate) fn wait_after(&self, asked: Result<(), Failure>) -> Result<(), Failure> {
        match asked {
            Ok(()) => self.wait(),
            Err(failure) => self.wait_for(CRASH_TIMEOUT).map_err(|still_running| {
                if failure.kind == Kind::NoDaemon {
                    still_running
                } else {
                    failure
                }
            }),
        }
    }

    fn wait_for(&self, timeout: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let remaining = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
            match rustix::event::poll(&mut fds, remaining.as_ref()) {
                Ok(0) => return Err(self.still_running(timeout)),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn still_running(&self, timeout: Duration) -> Failure {
        let pid = self.pid();
        let seconds = timeout.as_secs();
        let message = format!("sandboxd (pid {pid}) has not stopped within {seconds} s");
        Failure::new(Kind::Engine, message).hint(format!("kill -9 {pid}"))
    }
}

fn failed(error: Errno) -> Failure {
    Failure::new(
        Kind::Engine,
        format!("cannot wait for the daemon to stop: {error}"),
    )
}

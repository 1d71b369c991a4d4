//! A daemon as a process, and its end: until then it may keep the file system of the state busy.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sbx_engine::StateDir;

use crate::client::Client;
use crate::failure::{Failure, Kind};

/// How long a daemon that was told to end may take for it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one that does not answer may take to notice a signal.
const NOTICING: Duration = Duration::from_secs(5);
/// How long one that does not answer because it is dying may take for that.
const DYING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Serving {
    pid: Pid,
    process: OwnedFd,
    way: Way,
}

/// Whether it can be asked anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Socket,
    /// The socket is gone.
    CutOff,
}

impl Serving {
    /// The one that serves now.
    pub(crate) fn find(client: &Client<'_>) -> Result<Option<Self>, Failure> {
        let stream = match client.connect() {
            Err(failure) if failure.kind == Kind::NoDaemon => return Ok(None),
            Err(failure) if failure.kind == Kind::Unreachable => {
                return Self::find_cut_off(client.state(), failure);
            }
            other => other?,
        };
        let pid = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(failed)?
            .pid;
        Self::open(pid, Way::Socket)
    }

    /// By the lock, of which the kernel says who has it. `failure` is what led here.
    fn find_cut_off(state: &StateDir, failure: Failure) -> Result<Option<Self>, Failure> {
        let Some(daemon) = state.cut_off_daemon() else {
            return Ok(None);
        };
        let pid = daemon.pid.ok_or(failure)?;
        let found = Self::open(pid, Way::CutOff)?;
        // Asked again now that the pid cannot become another process: only who has the lock is the daemon.
        Ok(found.filter(|_| state.cut_off_daemon() == Some(daemon)))
    }

    fn open(pid: Pid, way: Way) -> Result<Option<Self>, Failure> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Self { pid, process, way })),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// For one that does not listen to us, such as one of another version. Sandboxes survive that.
    pub(crate) fn terminate(&self) -> Result<(), Failure> {
        match pidfd_send_signal(&self.process, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Of one that does not answer, by whatever it takes.
    pub(crate) fn put_an_end_to(&self) -> Result<(), Failure> {
        self.terminate()?;
        if self.wait_for(NOTICING).is_ok() {
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

    /// Until all of it is gone, threads that wait for a disk too.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        self.wait_for(PATIENCE)
    }

    /// After it was asked to end. Whether one that was killed still takes connections is a matter of luck: its silence
    /// counts when it stays.
    pub(crate) fn wait_after(&self, asked: Result<(), Failure>) -> Result<(), Failure> {
        match asked {
            Ok(()) => self.wait(),
            Err(failure) => self.wait_for(DYING).map_err(|still_there| {
                if failure.kind == Kind::NoDaemon {
                    still_there
                } else {
                    failure
                }
            }),
        }
    }

    fn wait_for(&self, patience: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Err(self.still_there(patience)),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn still_there(&self, patience: Duration) -> Failure {
        let pid = self.pid();
        let seconds = patience.as_secs();
        let message =
            format!("sandboxd (pid {pid}) was told to stop and has not ended after {seconds} s");
        Failure::new(Kind::Engine, message).hint(format!("kill -9 {pid}"))
    }
}

fn failed(error: Errno) -> Failure {
    Failure::new(
        Kind::Engine,
        format!("cannot follow the daemon to its end: {error}"),
    )
}

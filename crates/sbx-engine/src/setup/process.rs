//! One setup helper: a process that waits for one plan, says how it went, and ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sbx_proto::frame::{self, Decoder, MAX_REPLY};
use sbx_proto::plan::{Outcome, Plan};

use super::SetupError;

/// Killed and waited for when it is dropped: whoever has its answer drops it, and so does who gives it up.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    socket: UnixStream,
}

impl Process {
    /// Starts `program`, which has nothing of the daemon but one end of a socket and, for complaints, its log.
    pub(super) fn start(program: &OwnedFd, log: Option<&File>) -> Result<Self, SetupError> {
        let (ours, theirs) = UnixStream::pair().map_err(SetupError::Talk)?;
        let stderr = match log {
            Some(log) => log.try_clone().map_err(SetupError::Spawn)?.into(),
            None => Stdio::null(),
        };
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0("sbx-init")
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(SetupError::Spawn)?;
        Ok(Self {
            child,
            socket: ours,
        })
    }

    /// None if it has ended while nobody needed it.
    pub(super) fn still_waiting(mut self) -> Option<Self> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }

    /// Hands it its plan and waits for the answer.
    pub(super) fn carry_out(
        &self,
        plan: &Plan,
        fds: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<(Outcome, Vec<OwnedFd>), SetupError> {
        exchange(&self.socket, &frame::encode(plan)?, fds, deadline)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has answered is ending; one that was never asked, or does not answer, does not by itself.
        if let Err(error) = self.child.kill() {
            tracing::warn!(%error, "cannot kill a setup helper");
        }
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "cannot wait for a setup helper");
        }
    }
}

fn exchange(
    socket: &UnixStream,
    plan: &[u8],
    fds: &[BorrowedFd<'_>],
    deadline: Duration,
) -> Result<(Outcome, Vec<OwnedFd>), SetupError> {
    socket
        .set_write_timeout(Some(deadline))
        .map_err(SetupError::Talk)?;
    // A helper that dies while it is told the plan has more to say by its answer than by EPIPE. Any other failure
    // means that it waits for a plan which does not come.
    let sent = match sbx_sys::fdpass::send_with_fds(socket, plan, fds) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(SetupError::Talk(error));
        }
        sent => sent,
    };
    let until = Instant::now() + deadline;
    let mut decoder = Decoder::new(MAX_REPLY);
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(outcome) = decoder.take::<Outcome>()? {
            return Ok((outcome, received));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(SetupError::TimedOut(deadline));
        }
        socket
            .set_read_timeout(Some(left))
            .map_err(SetupError::Talk)?;
        match sbx_sys::fdpass::recv_with_fds(socket, &mut buffer, &mut received) {
            Ok(0) => {
                sent.map_err(SetupError::Talk)?;
                return Err(SetupError::Silent);
            }
            Ok(count) => decoder.push(buffer.get(..count).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(SetupError::TimedOut(deadline));
            }
            Err(e) => return Err(SetupError::Talk(e)),
        }
    }
}

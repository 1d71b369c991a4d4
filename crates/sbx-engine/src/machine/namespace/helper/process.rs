//! One setup helper: a process that waits for one plan, says how it went, and ends.
//!
//! It is `sbx-init`, executed from a descriptor (`/proc/self/fd/N`), with an empty environment and one end of a socket
//! pair as stdin. The plan goes over it with the descriptors it refers to (SCM_RIGHTS); the outcome comes back with a
//! pidfd of init. The helper leads a process group of its own, so that one `kill(-pgid)` ends all that works on a failed
//! plan. The daemon is a subreaper and reaps that group.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use sbx_proto::frame::{self, Decoder, MAX_REPLY};
use sbx_proto::plan::{Outcome, Plan};

use super::SetupError;

/// Killed and waited for when it is dropped, with all that it has started: by the caller that has its answer, and by
/// the one that gives it up.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    socket: UnixStream,
    members: GroupMembers,
}

/// What is in its process group besides itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupMembers {
    /// It has no plan yet.
    None,
    /// Those that carry out its plan, and have to end with it.
    Workers,
    /// The init, which stays.
    Init,
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
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(SetupError::Spawn)?;
        Ok(Self {
            child,
            socket: ours,
            members: GroupMembers::None,
        })
    }

    /// None if it has ended before it was needed.
    pub(super) fn still_waiting(mut self) -> Option<Self> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }

    /// Hands it its plan and waits for the answer.
    pub(super) fn carry_out(
        &mut self,
        plan: &Plan,
        fds: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<(Outcome, Vec<OwnedFd>), SetupError> {
        self.members = GroupMembers::Workers;
        exchange(&self.socket, &frame::encode(plan)?, fds, deadline)
    }

    /// It has answered that an init runs.
    pub(super) fn leave_init(&mut self) {
        self.members = GroupMembers::Init;
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has answered is ending; one that was never asked, or does not answer, does not by itself. It is not
        // waited for yet: the group's number is its own.
        let killed = match self.members {
            GroupMembers::None | GroupMembers::Init => self.child.kill(),
            GroupMembers::Workers => {
                kill_process_group(self.group(), Signal::KILL).map_err(Into::into)
            }
        };
        if let Err(error) = killed {
            tracing::warn!(%error, "cannot kill a setup helper");
        }
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "cannot wait for a setup helper");
        }
        if self.members == GroupMembers::Workers
            && let Err(error) = sbx_sys::process::reap_group(self.group())
        {
            tracing::warn!(%error, "cannot wait for a setup helper's children");
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;

    use sbx_proto::PROTOCOL;
    use sbx_proto::plan::{Ids, Job, Mode};

    use super::*;

    /// A helper that has started a process and does not answer, and the pid of that process.
    fn silent() -> (Process, i32) {
        // Reads what it does from the socket, as a helper does.
        let shell = File::open("/bin/sh").unwrap().into();
        let mut process = Process::start(&shell, None).unwrap();
        let script = b"sleep 1000 & echo $! >&0\n";
        process.socket.write_all(script).unwrap();
        let mut said = String::new();
        let mut socket = BufReader::new(&process.socket);
        socket.read_line(&mut said).unwrap();
        let plan = Plan {
            protocol: PROTOCOL,
            ids: Ids {
                mode: Mode::Single,
                uid: vec![],
                gid: vec![],
            },
            mappers: None,
            job: Job::Probe,
        };
        let answer = process.carry_out(&plan, &[], Duration::from_millis(1));
        assert!(matches!(answer, Err(SetupError::TimedOut(_))), "{answer:?}");
        (process, said.trim().parse().unwrap())
    }

    #[test]
    fn children_of_a_helper_end_with_it_and_are_reaped() {
        sbx_sys::process::set_child_subreaper().unwrap();
        let (process, worker) = silent();
        drop(process);
        assert!(!Path::new(&format!("/proc/{worker}")).exists());
    }

    #[test]
    fn an_init_stays() {
        let (mut process, init) = silent();
        process.leave_init();
        drop(process);
        let init = sbx_sys::process::pidfd_open(init).unwrap();
        sbx_sys::process::pidfd_kill(&init, Signal::KILL).unwrap();
        sbx_sys::process::wait_pidfd(&init).unwrap();
    }
}

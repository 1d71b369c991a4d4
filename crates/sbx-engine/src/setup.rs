//! The daemon's side of the setup helper: starts it, hands it one plan, takes one answer.
//!
//! The daemon has threads and must not fork; the helper is the same executable, started from a sealed copy
//! with an empty environment. What it answers is read with a size cap and a deadline.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sbx_proto::frame::{self, Decoder, FrameError, MAX_REPLY};
use sbx_proto::plan::{BOOT_DESCRIPTORS, Ids, Job, Mode, Outcome, Plan, Task};
use thiserror::Error;

use crate::entry::lock;
use crate::error::{EngineError, chain};
use crate::plan::task_plan;
use crate::remove::remove_tree;

const BOOT_DEADLINE: Duration = Duration::from_secs(60);
/// A walk through every file of the workspaces.
pub(crate) const HAND_OVER_DEADLINE: Duration = Duration::from_secs(120);
const PROBE_DEADLINE: Duration = Duration::from_secs(5);
/// A template or a big tree can take a while on a slow disk.
const TASK_DEADLINE: Duration = Duration::from_secs(30 * 60);

#[derive(Debug, Error)]
pub enum SetupError {
    #[error("cannot start the setup helper")]
    Spawn(#[source] io::Error),
    #[error("cannot talk to the setup helper")]
    Talk(#[source] io::Error),
    #[error("the setup helper ended without an answer; the daemon's log may say why")]
    Silent,
    #[error("the setup helper did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the setup helper's answer is not understood")]
    Frame(#[from] FrameError),
    #[error("the setup helper answered something else than it was asked: {0:?}")]
    Unexpected(Outcome),
    #[error("failed to {step}: {message}")]
    Failed {
        step: String,
        errno: Option<i32>,
        message: String,
    },
    #[error("{0}")]
    Task(String),
}

impl SetupError {
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Failed { .. } | Self::Silent | Self::TimedOut(_) | Self::Spawn(_) => {
                Some("sbx diagnose")
            }
            Self::Talk(_) | Self::Frame(_) | Self::Unexpected(_) | Self::Task(_) => None,
        }
    }
}

/// An init that runs and serves.
#[derive(Debug)]
pub struct Booted {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// What of the sandbox's directory is handed to its init, open.
#[derive(Debug)]
pub struct BootFiles {
    pub listener: UnixListener,
    pub outputs: [File; 2],
}

/// When the program is copied for the next boot: not during this one, nor while its first command starts.
const AFTER_BOOT: Duration = Duration::from_millis(50);

/// Starts setup helpers; one per daemon.
#[derive(Debug)]
pub struct Helper {
    /// For tasks. It never enters a sandbox.
    program: OwnedFd,
    /// For the next boot. Every init has a copy of its own: where the caller is an id inside, a program there can
    /// change the mode or owner of what its own init was executed from, and must not reach another sandbox by that.
    spare: Arc<Mutex<Option<OwnedFd>>>,
    /// Where a helper's own complaints go.
    log: Option<File>,
    /// What sandboxes have as `sudo`.
    sudo: Option<File>,
}

impl Helper {
    pub fn new(log: Option<File>, sudo: Option<File>) -> io::Result<Self> {
        Ok(Self {
            program: sbx_sys::memfd::sealed_copy_of_self()?,
            spare: Arc::default(),
            log,
            sudo,
        })
    }

    pub fn has_sudo(&self) -> bool {
        self.sudo.is_some()
    }

    pub fn boot(&self, plan: &Plan, files: &BootFiles) -> Result<Booted, SetupError> {
        // Opened anew: a descriptor that is only copied shares its read position with every other boot. The
        // plan installs it only if there is one.
        let sudo = match &self.sudo {
            Some(sudo) => File::open(format!("/proc/self/fd/{}", sudo.as_raw_fd())),
            None => File::open("/dev/null"),
        }
        .map_err(SetupError::Spawn)?;
        let [first, second] = &files.outputs;
        let fds: [_; BOOT_DESCRIPTORS] = [
            files.listener.as_fd(),
            first.as_fd(),
            second.as_fd(),
            sudo.as_fd(),
        ];
        let program = self.take_spare().map_err(SetupError::Spawn)?;
        let (outcome, received) = self.run(&program, plan, &fds, BOOT_DEADLINE)?;
        match outcome {
            Outcome::Booted { pid } => {
                let pidfd = match received.into_iter().next() {
                    Some(pidfd) => pidfd,
                    None => sbx_sys::process::pidfd_open(pid).map_err(SetupError::Talk)?,
                };
                Ok(Booted { pid, pidfd })
            }
            Outcome::Failed {
                step,
                errno,
                message,
            } => Err(SetupError::Failed {
                step,
                errno,
                message,
            }),
            Outcome::Done => Err(SetupError::Unexpected(outcome)),
        }
    }

    /// Removes a tree of which parts may belong to ids inside. What has never been started has none, and needs no
    /// helper.
    pub(crate) fn remove_tree(
        &self,
        path: &Path,
        ids: impl FnOnce() -> Result<Ids, EngineError>,
    ) -> Result<(), EngineError> {
        match remove_tree(path) {
            Err(error) if error.is_a_matter_of_ids() => {
                let task = Task::RemoveTree { path: path.into() };
                Ok(self.perform(&ids()?, task)?)
            }
            other => Ok(other?),
        }
    }

    /// Runs a task with the power over the files it is about: in the subordinate mode they belong to ids that
    /// only a helper in the user namespace has, else they are the caller's own.
    pub fn perform(&self, ids: &Ids, task: Task) -> Result<(), SetupError> {
        match ids.mode {
            Mode::Root | Mode::Single => run_task(&task).map_err(SetupError::Task),
            Mode::Subordinate => {
                let (outcome, _) =
                    self.run(&self.program, &task_plan(ids, task), &[], TASK_DEADLINE)?;
                done(outcome)
            }
        }
    }

    /// Has files handed over that an init could not.
    pub(crate) fn hand_over(&self, plan: &Plan) -> Result<(), SetupError> {
        let (outcome, _) = self.run(&self.program, plan, &[], HAND_OVER_DEADLINE)?;
        done(outcome)
    }

    /// Tries everything that a boot needs of the kernel, and leaves nothing.
    pub fn probe(&self, ids: &Ids) -> Result<(), SetupError> {
        let plan = Plan {
            protocol: sbx_proto::PROTOCOL,
            ids: ids.clone(),
            job: Job::Probe,
        };
        let (outcome, _) = self.run(&self.program, &plan, &[], PROBE_DEADLINE)?;
        done(outcome)
    }

    /// A copy for one boot. The next one is made while nobody waits for it.
    fn take_spare(&self) -> io::Result<OwnedFd> {
        let ready = lock(&self.spare).take();
        let spare = Arc::clone(&self.spare);
        let refill = move || {
            std::thread::sleep(AFTER_BOOT);
            match sbx_sys::memfd::sealed_copy_of_self() {
                Ok(copy) => *lock(&spare) = Some(copy),
                Err(error) => {
                    tracing::warn!(%error, "cannot copy the program for the next sandbox");
                }
            }
        };
        // Without the thread the next boot makes its own.
        drop(
            std::thread::Builder::new()
                .name("spare".into())
                .spawn(refill),
        );
        match ready {
            Some(copy) => Ok(copy),
            None => sbx_sys::memfd::sealed_copy_of_self(),
        }
    }

    fn run(
        &self,
        program: &OwnedFd,
        plan: &Plan,
        fds: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<(Outcome, Vec<OwnedFd>), SetupError> {
        let (ours, theirs) = UnixStream::pair().map_err(SetupError::Talk)?;
        let bytes = frame::encode(plan)?;
        let mut child = self.spawn(program, theirs)?;
        let answer = exchange(&ours, &bytes, fds, deadline);
        finish(&mut child, answer.is_ok());
        answer
    }

    fn spawn(&self, program: &OwnedFd, stdin: UnixStream) -> Result<Child, SetupError> {
        let stderr = match &self.log {
            Some(log) => log.try_clone().map_err(SetupError::Spawn)?.into(),
            None => Stdio::null(),
        };
        Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0("sbx-init")
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(stdin))
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(SetupError::Spawn)
    }
}

fn done(outcome: Outcome) -> Result<(), SetupError> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Failed {
            step,
            errno,
            message,
        } => Err(SetupError::Failed {
            step,
            errno,
            message,
        }),
        Outcome::Booted { .. } => Err(SetupError::Unexpected(outcome)),
    }
}

/// What a [`Task`] means; called here, or by the helper once it is root of the user namespace.
pub fn run_task(task: &Task) -> Result<(), String> {
    match task {
        Task::RemoveTree { path } => remove_tree(path.as_path()).map_err(|e| chain(&e)),
        Task::BuildTemplate { path, spec } => {
            crate::template::build(path.as_path(), spec).map_err(|e| chain(&e))
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

fn finish(child: &mut Child, answered: bool) {
    if !answered && let Err(error) = child.kill() {
        tracing::warn!(%error, "cannot kill a setup helper");
    }
    if let Err(error) = child.wait() {
        tracing::warn!(%error, "cannot wait for a setup helper");
    }
}

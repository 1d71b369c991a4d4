//! The daemon's side of the setup helper: starts it, hands it one plan, takes one answer.
//!
//! The daemon has threads and must not fork; the helper is another process, started from a sealed copy of its program
//! with an empty environment. What it answers is read with a size cap and a deadline.

mod prestarted;
mod process;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sbx_proto::frame::FrameError;
use sbx_proto::plan::{BOOT_DESCRIPTORS, CopyLayers, Ids, Job, Mappers, Mode, Outcome, Plan, Task};
use thiserror::Error;

use crate::error::{EngineError, chain};
use crate::machine::namespace::devices;
use crate::machine::namespace::plan::task_plan;
use crate::state::copy_layers::copy_layers;
use crate::state::remove_tree::remove_tree;
use crate::state::tree_size::tree_size;

use prestarted::Prestarted;
use process::Process;

const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// What a helper has beyond the limit of its plan before it counts as one that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const RUNNING_TIMEOUT: Duration = Duration::from_secs(20);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// A template or a big tree can take a while on a slow disk.
const TASK_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);

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
    #[error("cannot parse the setup helper's answer")]
    Frame(#[from] FrameError),
    #[error("unexpected answer from the setup helper: {0:?}")]
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
            Self::Failed { step, errno, .. } => {
                devices::remedy_for(step, *errno).or(Some("sbx diagnose"))
            }
            Self::Silent | Self::TimedOut(_) | Self::Spawn(_) => Some("sbx diagnose"),
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

/// Programs that are installed with this one.
#[derive(Debug, Default)]
pub struct Companions {
    /// A boot is its only work. Without it this program does that too, and every sandbox has a copy of a larger one.
    pub init: Option<File>,
    /// What sandboxes have as `sudo`.
    pub sudo: Option<File>,
}

/// Starts setup helpers; one per daemon.
#[derive(Debug)]
pub struct Helper {
    /// For tasks. It never enters a sandbox.
    program: OwnedFd,
    prestarted: Prestarted,
    /// Where a helper's own complaints go.
    log: Option<Arc<File>>,
    sudo: Option<File>,
    /// Every plan says where they are.
    mappers: Option<Mappers>,
}

impl Helper {
    /// For tasks alone, with nothing installed beside this program.
    pub fn new() -> io::Result<Self> {
        Self::with(Companions::default(), None)
    }

    pub fn with(companions: Companions, log: Option<File>) -> io::Result<Self> {
        let program = sbx_sys::memfd::sealed_copy_of_self()?;
        let init = match &companions.init {
            Some(init) => sbx_sys::memfd::sealed_copy(init.as_fd())?,
            None => program.try_clone()?,
        };
        let log = log.map(Arc::new);
        Ok(Self {
            program,
            prestarted: Prestarted::new(init, log.clone()),
            log,
            sudo: companions.sudo,
            mappers: None,
        })
    }

    /// In the subordinate mode ids are mapped by these.
    #[must_use]
    pub fn mapping_with(self, mappers: Option<Mappers>) -> Self {
        Self { mappers, ..self }
    }

    pub fn has_sudo(&self) -> bool {
        self.sudo.is_some()
    }

    /// `groups` are files of control groups, see [`BOOT_DESCRIPTORS`].
    pub fn boot(
        &self,
        plan: &Plan,
        files: &BootFiles,
        groups: &[File],
    ) -> Result<Booted, SetupError> {
        // Opened anew: a descriptor that is only copied shares its read position with every other boot. The
        // plan installs it only if there is one.
        let sudo = match &self.sudo {
            Some(sudo) => File::open(format!("/proc/self/fd/{}", sudo.as_raw_fd())),
            None => File::open("/dev/null"),
        }
        .map_err(SetupError::Spawn)?;
        let [first, second] = &files.outputs;
        let fixed: [_; BOOT_DESCRIPTORS] = [
            files.listener.as_fd(),
            first.as_fd(),
            second.as_fd(),
            sudo.as_fd(),
        ];
        let groups = groups.iter().map(AsFd::as_fd);
        let fds: Vec<_> = fixed.into_iter().chain(groups).collect();
        let mut process = self.prestarted.take()?;
        // One that fails to answer is ended, with all that it has started, before the caller removes what it may be working on.
        let (outcome, received) = process.carry_out(&self.complete(plan), &fds, BOOT_TIMEOUT)?;
        let Outcome::Booted { pid } = outcome else {
            self.prestarted.done_with(process);
            return Err(failure(outcome));
        };
        // The kernel drops the descriptor of a message when this process has too many (MSG_CTRUNC). If none can be had,
        // the init must not be left: dropping the helper ends its whole process group.
        let pidfd = match received.into_iter().next() {
            Some(pidfd) => pidfd,
            None => sbx_sys::process::pidfd_open(pid).map_err(SetupError::Talk)?,
        };
        process.leave_init();
        self.prestarted.done_with(process);
        Ok(Booted { pid, pidfd })
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
                let (ids, task) = (ids()?, Task::RemoveTree { path: path.into() });
                match ids.mode {
                    Mode::Root => Err(error.into()),
                    // With one id everything is the caller's, who may be locked out all the same: by a program in
                    // another sandbox that has a directory open and takes its permissions away again and again.
                    Mode::Single | Mode::Subordinate => Ok(self.perform_inside(&ids, task)?),
                }
            }
            other => Ok(other?),
        }
    }

    /// Runs a task with the power over the files it is about: in the subordinate mode they belong to ids that
    /// only a helper in the user namespace has, else they are the caller's own.
    pub fn perform(&self, ids: &Ids, task: Task) -> Result<(), SetupError> {
        match ids.mode {
            Mode::Root | Mode::Single => run_task(&task).map(drop).map_err(SetupError::Task),
            Mode::Subordinate => {
                // Without files of other ids the caller can do it alone. That also works where no helper starts, which may be
                // the reason for the removal.
                if let Task::RemoveTree { path } = &task
                    && remove_tree(path.as_path()).is_ok()
                {
                    return Ok(());
                }
                self.perform_inside(ids, task)
            }
        }
    }

    /// As root of the user namespace, whom no permission holds back.
    fn perform_inside(&self, ids: &Ids, task: Task) -> Result<(), SetupError> {
        self.run(&task_plan(ids, task), TASK_TIMEOUT)
    }

    /// The answer to [`Task::Measure`].
    pub(crate) fn measure(&self, ids: &Ids, task: Task) -> Result<u64, SetupError> {
        let outcome = match ids.mode {
            Mode::Root | Mode::Single => run_task(&task).map_err(SetupError::Task)?,
            Mode::Subordinate => self.ask(&task_plan(ids, task), MEASURE_TIMEOUT)?,
        };
        match outcome {
            Outcome::Measured { bytes } => Ok(bytes),
            other => Err(failure(other)),
        }
    }

    /// Copies layers with the sandbox's own ids, and not the caller's: in root mode too.
    pub(crate) fn copy_layers(&self, ids: &Ids, task: CopyLayers) -> Result<(), SetupError> {
        self.run(&task_plan(ids, Task::CopyLayers(task)), TASK_TIMEOUT)
    }

    /// Has files handed over that an init could not, with a plan that ends by itself within `limit`.
    pub(crate) fn hand_over(&self, plan: &Plan, limit: Duration) -> Result<(), SetupError> {
        self.run(plan, limit + ANSWER_TIMEOUT)
    }

    /// Mounts or unmounts a workspace in a sandbox that runs, whose `namespaces` these are. None if that cannot be done now,
    /// with the reason; else the descriptors that came.
    pub(crate) fn change_running(
        &self,
        plan: &Plan,
        namespaces: &[OwnedFd],
    ) -> Result<Result<Vec<OwnedFd>, String>, SetupError> {
        let fds: Vec<_> = namespaces.iter().map(AsFd::as_fd).collect();
        let mut process = Process::start(&self.program, self.log.as_deref())?;
        let done = process.carry_out(&self.complete(plan), &fds, RUNNING_TIMEOUT)?;
        match done {
            (Outcome::Attached | Outcome::Done, received) => Ok(Ok(received)),
            (Outcome::NotNow { why }, _) => Ok(Err(why)),
            (other, _) => Err(failure(other)),
        }
    }

    /// Tries everything that a boot needs of the kernel, and leaves nothing.
    pub fn probe(&self, ids: &Ids) -> Result<(), SetupError> {
        let plan = Plan {
            protocol: sbx_proto::PROTOCOL,
            ids: ids.clone(),
            mappers: None,
            job: Job::Probe,
        };
        self.run(&plan, PROBE_TIMEOUT)
    }

    /// There will be no other boot.
    pub(crate) fn discard_prestarted(&self) {
        self.prestarted.discard();
    }

    /// For one task, which does not enter a sandbox.
    fn run(&self, plan: &Plan, deadline: Duration) -> Result<(), SetupError> {
        done(self.ask(plan, deadline)?)
    }

    fn ask(&self, plan: &Plan, deadline: Duration) -> Result<Outcome, SetupError> {
        let mut process = Process::start(&self.program, self.log.as_deref())?;
        let (outcome, _) = process.carry_out(&self.complete(plan), &[], deadline)?;
        Ok(outcome)
    }

    /// With what a plan cannot know: it is made of records, and the machine may have changed since.
    fn complete<'a>(&self, plan: &'a Plan) -> Cow<'a, Plan> {
        match plan.ids.mode {
            Mode::Subordinate => Cow::Owned(Plan {
                mappers: self.mappers.clone(),
                ..plan.clone()
            }),
            Mode::Root | Mode::Single => Cow::Borrowed(plan),
        }
    }
}

fn done(outcome: Outcome) -> Result<(), SetupError> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Failed { .. }
        | Outcome::Booted { .. }
        | Outcome::Measured { .. }
        | Outcome::Attached
        | Outcome::NotNow { .. } => Err(failure(outcome)),
    }
}

/// What it means that a helper has not done what it was to do.
fn failure(outcome: Outcome) -> SetupError {
    match outcome {
        Outcome::Failed {
            step,
            errno,
            message,
        } => SetupError::Failed {
            step,
            errno,
            message,
        },
        Outcome::Done
        | Outcome::Booted { .. }
        | Outcome::Measured { .. }
        | Outcome::Attached
        | Outcome::NotNow { .. } => SetupError::Unexpected(outcome),
    }
}

/// What a [`Task`] means; called here, or by the helper once it is root of the user namespace.
pub fn run_task(task: &Task) -> Result<Outcome, String> {
    match task {
        Task::RemoveTree { path } => remove_tree(path.as_path()).map_err(|e| chain(&e))?,
        Task::BuildTemplate { path, spec } => {
            crate::machine::namespace::template::build(path.as_path(), spec)
                .map_err(|e| chain(&e))?;
        }
        Task::CopyLayers(task) => copy_layers(task).map_err(|e| chain(&e))?,
        Task::Measure { path } => {
            let bytes = tree_size(path.as_path());
            return Ok(Outcome::Measured { bytes });
        }
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sbx_proto::plan::OPEN_NULL;

    use super::*;

    #[test]
    fn a_dev_null_that_others_cannot_open_has_its_own_remedy() {
        let hint = |step: &str, errno| {
            let (step, message) = (step.to_owned(), String::new());
            let errno = Some(errno);
            failure(Outcome::Failed {
                step,
                errno,
                message,
            })
            .hint()
        };
        assert_eq!(hint(OPEN_NULL, 13), Some("sudo chmod 666 /dev/null"));
        assert_eq!(hint(OPEN_NULL, 24), Some("sbx diagnose"));
        assert_eq!(hint("fork", 13), Some("sbx diagnose"));
    }

    #[test]
    fn what_is_the_callers_goes_without_a_user_namespace() {
        let temp = tempfile::tempdir().unwrap();
        let begun = temp.path().join("begun");
        fs::create_dir(&begun).unwrap();
        // With maps that no kernel takes.
        let ids = Ids {
            mode: Mode::Subordinate,
            uid: vec![],
            gid: vec![],
        };
        let path = begun.as_path().into();
        let helper = Helper::new().unwrap();
        helper.perform(&ids, Task::RemoveTree { path }).unwrap();
        assert!(!begun.exists());
    }
}

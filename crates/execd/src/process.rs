//! Starting and ending a command.
//!
//! Each command leads a process group of its own, so that ending it ends what it started. Its environment is the daemon's,
//! then the variables of the `EXECD_ENVS` file, then those of the request.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use execd_proto::command::Program;
use execd_proto::event::Ending;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// What to start, with everything decided.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) program: Program,
    pub(crate) cwd: Option<String>,
    pub(crate) envs: BTreeMap<String, String>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl Invocation {
    pub(crate) fn script(text: String) -> Self {
        Self {
            program: Program::Script(text),
            cwd: None,
            envs: BTreeMap::new(),
            uid: None,
            gid: None,
        }
    }

    pub(crate) fn spawn(&self, stdout: Stdio, stderr: Stdio) -> io::Result<(Child, Group)> {
        let mut command = self.command()?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let child = command.spawn()?;
        let group = Group::of(&child)?;
        Ok((child, group))
    }

    pub(crate) fn command(&self) -> io::Result<Command> {
        let mut command = match &self.program {
            Program::Script(text) => {
                let mut shell = Command::new(shell());
                shell.arg("-c").arg(text);
                shell
            }
            Program::Argv(argv) => {
                let (first, rest) = argv
                    .split_first()
                    .ok_or_else(|| io::Error::other("empty argv"))?;
                let mut program = Command::new(first);
                program.args(rest);
                program
            }
        };
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        if let Some(uid) = self.uid {
            command.uid(uid);
        }
        if let Some(gid) = self.gid {
            command.gid(gid);
        }
        command.envs(&self.envs).process_group(0);
        Ok(command)
    }
}

/// `bash` where there is one: scripts are written for it.
pub(crate) fn shell() -> &'static str {
    let candidates = ["/bin/bash", "/usr/bin/bash"];
    candidates
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or("sh")
}

/// A command's process group. It is signalled only while its leader has not been reaped: afterwards the kernel may give
/// the number to another group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group(Pid);

impl Group {
    pub(crate) fn of(child: &Child) -> io::Result<Self> {
        child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .map(Self)
            .ok_or_else(|| io::Error::other("the command has ended already"))
    }

    /// Does nothing where the group is gone (`ESRCH`): that is what the caller wants.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }
}

/// How the official daemon describes an exit status.
pub(crate) fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, Some(9)) => Ending::Killed("killed".into()),
        (None, Some(15)) => Ending::Killed("terminated".into()),
        (None, Some(2)) => Ending::Killed("interrupt".into()),
        (None, Some(number)) => Ending::Killed(number.to_string()),
        (None, None) => Ending::Killed("unknown".into()),
    }
}

/// Variables of the `EXECD_ENVS` file, read anew for each command because clients append to it.
pub(crate) fn read_env_file(path: Option<&Path>) -> BTreeMap<String, String> {
    // A missing or unreadable file means that no variable was set yet.
    let text = path.and_then(|path| std::fs::read_to_string(path).ok());
    execd_proto::envfile::parse(&text.unwrap_or_default())
}

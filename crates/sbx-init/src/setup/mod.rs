//! From a plan to a running init. Three processes, one after the other:
//!
//! 1. the *helper* (this process, in the host's namespaces) forks the next one into new user, mount and pid
//!    namespaces, writes its id maps, and hands it what only the helper may open;
//! 2. pid 1 of the sandbox (in the *outer* user namespace) builds the root file system, and stays as init;
//! 3. a short-lived child ([`inner`]) makes the inner user namespace and what it owns, sends the namespaces'
//!    descriptors and the [`network`]'s listeners to init, and ends.

mod idmaps;
mod inner;
mod limits;
mod network;
mod places;
mod probe;

mod sources;
mod tree;
mod trust;
mod veil;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use sbx_proto::OsBytes;
use sbx_proto::frame::{self, Decoder, MAX_REPLY, MAX_REQUEST};
use sbx_proto::plan::{
    BOOT_DESCRIPTORS, Boot, HandOver, Ids, Job, Mappers, Mode, Node, Outcome, Plan, Task,
};
use sbx_sys::process::{self, Fork, SingleThreaded};
use sbx_sys::{credentials, fdpass, peer};

use crate::error::{SetupError, SetupResult, While};
use crate::handover::{self, Patience, identity};
use crate::init::{self, Parts};

pub(crate) use inner::Namespaces;
pub(crate) use network::Network;
pub(crate) use places::Own;

/// How many mounts go into one message; fewer than it may carry.
const TREES_AT_ONCE: usize = 32;
/// What the outer user namespace owns besides itself.
const NAMESPACES: process::NamespaceFlags =
    process::NEW_USER | process::NEW_MOUNT | process::NEW_PID;

/// The exit codes of the helper.
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

pub(crate) fn main(run_task: fn(&Task) -> Result<(), String>) -> u8 {
    // Not a copy: init detaches its stdin, and would keep that.
    let daemon = rustix::stdio::stdin();
    // Descriptors under way are counted per user, and this process must not be the first to be refused.
    let _ = process::raise_nofile_limit();
    let (outcome, pidfd) = match run(daemon, run_task) {
        Ok(Finished::Booted { pid, pidfd }) => (Outcome::Booted { pid }, Some(pidfd)),
        Ok(Finished::Done) => (Outcome::Done, None),
        Err(error) => (error.into_outcome(), None),
    };
    let fds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
    let sent = frame::encode(&outcome)
        .map_err(io::Error::other)
        .and_then(|bytes| fdpass::send_with_fds(&daemon, &bytes, &fds));
    match (sent, pidfd) {
        (Ok(()), _) => SUCCESS,
        (Err(_), Some(pidfd)) => {
            // Nobody knows of this sandbox: it must not stay.
            let _ = process::pidfd_kill(&pidfd, Signal::KILL);
            FAILURE
        }
        (Err(_), None) => FAILURE,
    }
}

enum Finished {
    Booted { pid: i32, pidfd: OwnedFd },
    Done,
}

fn run(daemon: BorrowedFd<'_>, run_task: fn(&Task) -> Result<(), String>) -> SetupResult<Finished> {
    let proof = SingleThreaded::check().doing(|| "count this process's threads".into())?;
    let (plan, fds) = receive_plan(daemon)?;
    if plan.protocol != sbx_proto::PROTOCOL {
        return Err(SetupError::new("read the plan", "it is of another version"));
    }
    // A kernel without keyrings has none to inherit.
    let _ = process::new_session_keyring();
    let maps = Maps {
        ids: &plan.ids,
        mappers: plan.mappers.as_ref(),
    };
    match plan.job {
        Job::Boot(boot) => {
            let parts = Descriptors::from(fds)?;
            limits::leave_half();
            boot_sandbox(&proof, maps, *boot, parts)
        }
        Job::Task(task) => {
            let work = |task| run_task(&task).map_err(|e| SetupError::new("do a task", e));
            in_namespaces(&proof, maps, process::NEW_USER, || go_to(task), work)?;
            Ok(Finished::Done)
        }
        Job::HandOver(job) => {
            hand_over(&proof, maps, &job)?;
            Ok(Finished::Done)
        }
        Job::Probe => {
            let work = |()| probe::run(&proof, &plan.ids);
            in_namespaces(&proof, maps, NAMESPACES, || Ok(()), work)?;
            Ok(Finished::Done)
        }
    }
}

/// The ids of a plan, and who may map them.
#[derive(Clone, Copy)]
struct Maps<'a> {
    ids: &'a Ids,
    mappers: Option<&'a Mappers>,
}

impl Maps<'_> {
    fn write(self, pid: i32) -> SetupResult<()> {
        idmaps::write(pid, self.ids, self.mappers)
    }
}

/// What a boot plan comes with.
struct Descriptors {
    listener: OwnedFd,
    logs: [OwnedFd; 2],
    program: OwnedFd,
    /// Of this process, and so of the daemon.
    pid_namespace: Node,
}

impl Descriptors {
    fn from(fds: Vec<OwnedFd>) -> SetupResult<Self> {
        let fds: [OwnedFd; BOOT_DESCRIPTORS] = fds.try_into().map_err(|_| {
            SetupError::new("read the plan", "its descriptors are not what it says")
        })?;
        let [listener, first, second, program] = fds;
        let own = peer::pid_namespace().and_then(|own| Ok(rustix::fs::fstat(own)?));
        let own = own.doing(|| "look at this process's pid namespace".into())?;
        Ok(Self {
            pid_namespace: identity(&own),
            listener,
            logs: [first, second],
            program,
        })
    }
}

fn receive_plan(daemon: BorrowedFd<'_>) -> SetupResult<(Plan, Vec<OwnedFd>)> {
    let mut decoder = Decoder::new(MAX_REQUEST);
    let mut fds = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = fdpass::recv_with_fds(&daemon, &mut buffer, &mut fds)
            .doing(|| "read the plan".into())?;
        if count == 0 {
            return Err(SetupError::new("read the plan", "the daemon went away"));
        }
        decoder.push(buffer.get(..count).unwrap_or_default());
        match decoder.take() {
            Ok(Some(plan)) => return Ok((plan, fds)),
            Ok(None) => {}
            Err(error) => return Err(SetupError::new("read the plan", error.to_string())),
        }
    }
}

fn boot_sandbox(
    proof: &SingleThreaded,
    maps: Maps<'_>,
    boot: Boot,
    descriptors: Descriptors,
) -> SetupResult<Finished> {
    let (ours, theirs) = UnixStream::pair().doing(|| "make a socket pair".into())?;
    match process::fork(proof, NAMESPACES).doing(|| "make user, mount and pid namespaces".into())? {
        Fork::Child => {
            drop(ours);
            let code = become_init(proof, maps.ids, boot, descriptors, theirs);
            process::exit_now(code)
        }
        Fork::Parent { pid, pidfd } => {
            drop(theirs);
            let booted = help(proof, pid, maps, &boot, &ours);
            if booted.is_err() {
                let _ = process::pidfd_kill(&pidfd, Signal::KILL);
                let _ = process::wait_pidfd(&pidfd);
            }
            booted.map(|()| Finished::Booted { pid, pidfd })
        }
    }
}

/// The helper's part: what needs the host's own view.
fn help(
    proof: &SingleThreaded,
    pid: i32,
    maps: Maps<'_>,
    boot: &Boot,
    child: &UnixStream,
) -> SetupResult<()> {
    let ids = maps.ids;
    maps.write(pid)?;
    fdpass::send_with_fds(child, b"m", &[]).doing(|| "wake the new process".into())?;
    if ids.mode == Mode::Root {
        let user = File::open(format!("/proc/{pid}/ns/user"))
            .doing(|| "open the new user namespace".into())?;
        let mut root = sources::AsRoot::new(proof, ids, user.as_fd());
        for sources in boot.sources.chunks(TREES_AT_ONCE) {
            let trees = sources.iter().map(|source| root.open(source));
            let trees = trees.collect::<SetupResult<Vec<_>>>()?;
            let fds: Vec<_> = trees.iter().map(AsFd::as_fd).collect();
            fdpass::send_with_fds(child, b"s", &fds).doing(|| "hand mounts over".into())?;
        }
    }
    match receive_outcome(child)? {
        Outcome::Done => Ok(()),
        other @ (Outcome::Failed { .. } | Outcome::Booted { .. }) => {
            Err(SetupError::from_outcome(other))
        }
    }
}

fn receive_outcome(mut child: &UnixStream) -> SetupResult<Outcome> {
    let mut decoder = Decoder::new(MAX_REPLY);
    let mut buffer = [0; 4096];
    loop {
        let count = child
            .read(&mut buffer)
            .doing(|| "wait for the new process".into())?;
        if count == 0 {
            return Err(SetupError::new("wait for the new process", "it died"));
        }
        decoder.push(buffer.get(..count).unwrap_or_default());
        if let Some(outcome) = decoder
            .take()
            .map_err(|e| SetupError::new("wait for the new process", e.to_string()))?
        {
            return Ok(outcome);
        }
    }
}

/// Pid 1: builds the sandbox, says how it went, and serves.
fn become_init(
    proof: &SingleThreaded,
    ids: &Ids,
    boot: Boot,
    descriptors: Descriptors,
    mut helper: UnixStream,
) -> i32 {
    let (outcome, parts) = match build(proof, ids, &boot, descriptors, &helper) {
        Ok(parts) => (Outcome::Done, Some(parts)),
        Err(error) => (error.into_outcome(), None),
    };
    let sent = frame::encode(&outcome)
        .map_err(io::Error::other)
        .and_then(|bytes| helper.write_all(&bytes));
    drop(helper);
    match (sent, parts) {
        (Ok(()), Some(parts)) => init::serve(proof, boot, parts),
        _ => 1,
    }
}

fn build(
    proof: &SingleThreaded,
    ids: &Ids,
    boot: &Boot,
    descriptors: Descriptors,
    helper: &UnixStream,
) -> SetupResult<Parts> {
    await_byte(helper, b'm')?;
    let trees = match ids.mode {
        Mode::Root => sources::receive(helper, boot.sources.len())?,
        // While this is still the caller, who has ways to them that root inside has not.
        Mode::Subordinate | Mode::Single => boot
            .sources
            .iter()
            .map(sources::open)
            .collect::<SetupResult<Vec<_>>>()?,
    };
    become_root(ids.mode)?;
    let proc = tree::proc_mount()?;
    limits::set(proc.as_fd(), &boot.limits.user);
    let inner = inner::start(proof, ids, &boot.hostname, proc.as_fd())?;
    // From here on init lives in the sandbox's network namespace: sysfs shows the namespace of whoever
    // mounts it.
    process::setns(inner.namespaces.net.as_fd(), process::NEW_NET)
        .doing(|| "join the new network namespace".into())?;
    let built = tree::build(boot, trees, &descriptors.program, ids.mode)?;
    let (namespaces, network) = inner.finish()?;
    detach_stdio()?;
    process::set_not_dumpable().doing(|| "close this process to others".into())?;
    Ok(Parts {
        listener: descriptors.listener,
        logs: descriptors.logs,
        proc,
        ptys: built.ptys,
        workspaces: built.workspaces,
        own: built.own,
        mounts: built.mounts,
        namespaces,
        network,
        mode: ids.mode,
        outside: descriptors.pid_namespace,
    })
}

/// In the first two modes root inside is an id of its own; with one id everything is that id.
///
/// What belongs to a group that the user namespace does not have is beyond root's power there. A path of the host can
/// lead through such a directory that is closed to others, and is walked before this.
fn become_root(mode: Mode) -> SetupResult<()> {
    match mode {
        Mode::Root | Mode::Subordinate => {
            let root = credentials::Credentials {
                uid: 0,
                gid: 0,
                groups: vec![],
            };
            credentials::become_user(&root, true)
                .doing(|| "become root of the user namespace".into())
        }
        Mode::Single => Ok(()),
    }
}

/// The daemon's log is the helper's stderr; nothing of the host stays open in init.
fn detach_stdio() -> SetupResult<()> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .doing(|| "open `/dev/null` inside".into())?;
    rustix::stdio::dup2_stdin(&null).doing(|| "detach stdin".into())?;
    rustix::stdio::dup2_stdout(&null).doing(|| "detach stdout".into())?;
    rustix::stdio::dup2_stderr(&null).doing(|| "detach stderr".into())
}

fn await_byte(mut socket: &UnixStream, expected: u8) -> SetupResult<()> {
    let mut byte = [0];
    socket
        .read_exact(&mut byte)
        .doing(|| "wait for the other process".into())?;
    if byte == [expected] {
        Ok(())
    } else {
        Err(SetupError::new(
            "wait for the other process",
            "it said something else",
        ))
    }
}

/// In place of an init that is dead, with the same power and through the same mounts.
fn hand_over(proof: &SingleThreaded, maps: Maps<'_>, job: &HandOver) -> SetupResult<()> {
    let open = || {
        each(&job.workspaces, |source| {
            sources::open_workspace(proof, maps.ids, source)
        })
    };
    let opened_as_root = match maps.ids.mode {
        Mode::Root => Some(open()),
        Mode::Subordinate | Mode::Single => None,
    };
    let namespaces = process::NEW_USER | process::NEW_MOUNT;
    let prepare = || Ok(opened_as_root.unwrap_or_else(open));
    in_namespaces(proof, maps, namespaces, prepare, |(workspaces, opened)| {
        let patience = Patience::within(Duration::from_millis(job.limit_ms.into()));
        let done = handover::hand_over(&workspaces, job.made_at, &job.spared, patience)
            .map_err(|left| SetupError::new("hand every file over", left.to_string()));
        opened.and(done)
    })
}

/// What `open` gives for each, and the first error: one that fails is no reason to leave out the next.
fn each<T, U>(all: &[T], mut open: impl FnMut(&T) -> SetupResult<U>) -> (Vec<U>, SetupResult<()>) {
    let (mut opened, mut failed) = (Vec::new(), Ok(()));
    for one in all {
        match open(one) {
            Ok(one) => opened.push(one),
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    (opened, failed)
}

/// Enters the directory that a task is about a name in, and has the task say it from there.
fn go_to(task: Task) -> SetupResult<Task> {
    let from_here = |path: OsBytes| {
        let path = path.as_path();
        let doing = || format!("enter the directory of `{}`", path.display());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(SetupError::new(doing(), "it has none"));
        };
        rustix::process::chdir(parent).doing(doing)?;
        Ok(Path::new(".").join(name).as_path().into())
    };
    Ok(match task {
        Task::RemoveTree { path } => Task::RemoveTree {
            path: from_here(path)?,
        },
        Task::BuildTemplate { path, spec } => Task::BuildTemplate {
            path: from_here(path)?,
            spec,
        },
    })
}

/// Runs `work` as root of a user namespace with the sandbox's id maps, in a process of its own, with what `prepare`
/// has made there as the caller.
fn in_namespaces<T>(
    proof: &SingleThreaded,
    maps: Maps<'_>,
    namespaces: process::NamespaceFlags,
    prepare: impl FnOnce() -> SetupResult<T>,
    work: impl FnOnce(T) -> SetupResult<()>,
) -> SetupResult<()> {
    let (ours, theirs) = UnixStream::pair().doing(|| "make a socket pair".into())?;
    match process::fork(proof, namespaces).doing(|| "make a user namespace".into())? {
        Fork::Child => {
            drop(ours);
            let result = await_byte(&theirs, b'm').and_then(|()| {
                let prepared = prepare()?;
                become_root(maps.ids.mode)?;
                work(prepared)
            });
            let outcome = result.map_or_else(SetupError::into_outcome, |()| Outcome::Done);
            let sent = frame::encode(&outcome)
                .map_err(io::Error::other)
                .and_then(|bytes| (&theirs).write_all(&bytes));
            process::exit_now(i32::from(sent.is_err()))
        }
        Fork::Parent { pid, pidfd } => {
            drop(theirs);
            let done = maps
                .write(pid)
                .and_then(|()| {
                    fdpass::send_with_fds(&ours, b"m", &[]).doing(|| "wake the new process".into())
                })
                .and_then(|()| receive_outcome(&ours));
            if done.is_err() {
                let _ = process::pidfd_kill(&pidfd, Signal::KILL);
            }
            process::wait_pidfd(&pidfd).doing(|| "wait for the new process".into())?;
            match done? {
                Outcome::Done => Ok(()),
                other @ (Outcome::Failed { .. } | Outcome::Booted { .. }) => {
                    Err(SetupError::from_outcome(other))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_is_no_reason_to_leave_out_the_next() {
        let open = |number: &u32| match number % 2 {
            0 => Ok(*number),
            _ => Err(SetupError::new("open", number.to_string())),
        };
        let (opened, failed) = each(&[1, 2, 3, 4], open);
        assert_eq!(opened, [2, 4]);
        assert_eq!(failed.unwrap_err().to_string(), "failed to open: 1");
        let (opened, failed) = each(&[2, 4], open);
        assert_eq!((opened, failed.is_ok()), (vec![2, 4], true));
    }
}

//! From a plan to a running init. Three processes, one after the other:
//!
//! 1. the *helper* (this process, in the host's namespaces) forks the next one into new user, mount and pid namespaces
//!    (`clone3`), writes its id maps, and in root mode opens the mounts that only root may open and passes them on
//!    (`SCM_RIGHTS`);
//! 2. pid 1 of the sandbox, in the *outer* user namespace, builds the root file system ([`tree`]) and stays as init;
//! 3. a short-lived child ([`inner`]) creates the inner user namespace and the namespaces that it owns, sends their
//!    descriptors and the [`network`]'s listeners to init, and exits.
//!
//! The processes synchronise by single bytes over socket pairs: a child waits for its id maps, because before they are
//! written it has no valid id; init tells the helper its result before the helper tells the daemon.

mod disk;
mod idmaps;
mod inner;
mod limits;
mod mount_table;
mod network;
mod probe;
mod running;
mod sources;
mod tree;
mod trust;
mod whiteouts;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode as FileMode, OFlags, ResolveFlags};
use rustix::process::Signal;
use sbx_proto::OsBytes;
use sbx_proto::frame::{self, Decoder, MAX_REPLY, MAX_REQUEST};
use sbx_proto::plan::{
    BOOT_DESCRIPTORS, Boot, CopyLayers, HandOver, Ids, Job, Mappers, Mode, Node, OPEN_NULL,
    Outcome, Plan, Task,
};
use sbx_sys::process::{self, Fork, SingleThreaded};
use sbx_sys::{credentials, fdpass, peer};

use crate::error::{ErrorContext, SetupError, SetupResult};
use crate::handover::{self, Budget, identity};
use crate::init::{self, Parts};

pub(crate) use inner::Namespaces;
pub(crate) use mount_table::OwnFileSystems;
pub(crate) use network::Network;

/// How many mounts go into one message; fewer than `SCM_MAX_FD` allows.
const TREES_AT_ONCE: usize = 32;
/// What the outer user namespace owns besides itself.
const NAMESPACES: process::NamespaceFlags =
    process::NEW_USER | process::NEW_MOUNT | process::NEW_PID;

/// The exit codes of the helper.
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

pub(crate) fn main(run_task: fn(&Task) -> Result<Outcome, String>) -> u8 {
    // Borrowed, not duplicated: init replaces its stdin, and would keep a duplicate.
    let daemon = rustix::stdio::stdin();
    // The kernel limits the descriptors in flight per user by RLIMIT_NOFILE of the sender (ETOOMANYREFS).
    let _ = process::raise_nofile_limit();
    let (outcome, pidfd, kept) = match run(daemon, run_task) {
        Ok(Finished::Booted { pid, pidfd }) => (Outcome::Booted { pid }, Some(pidfd), None),
        Ok(Finished::Attached(outcome, kept)) => (outcome, None, kept),
        Ok(Finished::Done(outcome)) => (outcome, None, None),
        Err(error) => (error.into_outcome(), None, None),
    };
    let fds: Vec<_> = pidfd.iter().chain(&kept).map(AsFd::as_fd).collect();
    let sent = frame::encode(&outcome)
        .map_err(io::Error::other)
        .and_then(|bytes| fdpass::send_with_fds(&daemon, &bytes, &fds));
    match (sent, pidfd) {
        (Ok(()), _) => SUCCESS,
        (Err(_), Some(pidfd)) => {
            // The daemon is gone and does not know this sandbox: it must not stay.
            let _ = process::pidfd_kill(&pidfd, Signal::KILL);
            FAILURE
        }
        (Err(_), None) => FAILURE,
    }
}

enum Finished {
    Booted {
        pid: i32,
        pidfd: OwnedFd,
    },
    /// With the mount of [`Outcome::Attached`].
    Attached(Outcome, Option<OwnedFd>),
    /// Anything else, with what there is to say about it.
    Done(Outcome),
}

fn run(
    daemon: BorrowedFd<'_>,
    run_task: fn(&Task) -> Result<Outcome, String>,
) -> SetupResult<Finished> {
    let proof = SingleThreaded::check().doing(|| "count this process's threads".into())?;
    let (plan, fds) = receive_plan(daemon)?;
    if plan.protocol != sbx_proto::PROTOCOL {
        return Err(SetupError::new(
            "read the plan",
            "unsupported protocol version",
        ));
    }
    // Fails only on a kernel without keyrings, where there is none to inherit.
    let _ = process::new_session_keyring();
    let maps = Maps {
        ids: &plan.ids,
        mappers: plan.mappers.as_ref(),
    };
    match plan.job {
        Job::Boot(boot) => {
            let parts = Descriptors::from(fds)?;
            limits::halve_rlimits();
            boot_sandbox(&proof, maps, *boot, parts)
        }
        Job::Task(Task::CopyLayers(copy)) => {
            // Here, where all of it can be reached: root of the user namespace goes on from the descriptors.
            let ends = Ends::open(&copy)?;
            let task = ends.named(copy);
            let work = |task| run_task(&task).map_err(|e| SetupError::new("copy layers", e));
            in_namespaces(&proof, maps, process::NEW_USER, || Ok(task), work).map(Finished::Done)
        }
        Job::Task(task) => {
            let work = |task| run_task(&task).map_err(|e| SetupError::new("do a task", e));
            let prepare = || enter_parent(task);
            in_namespaces(&proof, maps, process::NEW_USER, prepare, work).map(Finished::Done)
        }
        Job::HandOver(job) => {
            hand_over(&proof, maps, &job)?;
            Ok(Finished::Done(Outcome::Done))
        }
        Job::Attach(job) => {
            let (outcome, kept) = running::attach(&proof, &plan.ids, &job, fds)?;
            Ok(Finished::Attached(outcome, kept))
        }
        Job::Detach(job) => running::detach(&plan.ids, &job, fds).map(Finished::Done),
        Job::Probe => {
            let work = |()| probe::run(&proof, &plan.ids).map(|()| Outcome::Done);
            in_namespaces(&proof, maps, NAMESPACES, || Ok(()), work).map(Finished::Done)
        }
    }
}

/// The ids of a plan, and the programs that may map them.
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

/// The descriptors that come with a boot plan.
struct Descriptors {
    listener: OwnedFd,
    logs: [OwnedFd; 2],
    program: OwnedFd,
    /// Commands join these control groups.
    groups: Vec<OwnedFd>,
    /// The host side's: this process's, and so the daemon's.
    pid_namespace: Node,
}

impl Descriptors {
    fn from(mut fds: Vec<OwnedFd>) -> SetupResult<Self> {
        let groups = fds.split_off(BOOT_DESCRIPTORS.min(fds.len()));
        let fds: [OwnedFd; BOOT_DESCRIPTORS] = fds
            .try_into()
            .map_err(|_| SetupError::new("read the plan", "wrong number of descriptors"))?;
        let [listener, first, second, program] = fds;
        let own = peer::pid_namespace().and_then(|own| Ok(rustix::fs::fstat(own)?));
        let own = own.doing(|| "stat this process's pid namespace".into())?;
        Ok(Self {
            pid_namespace: identity(&own),
            listener,
            logs: [first, second],
            program,
            groups,
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
            return Err(SetupError::new(
                "read the plan",
                "the daemon closed the connection",
            ));
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
            let booted = assist_child(proof, pid, maps, &boot, &ours);
            if booted.is_err() {
                let _ = process::pidfd_kill(&pidfd, Signal::KILL);
                let _ = process::wait_pidfd(&pidfd);
            }
            booted.map(|()| Finished::Booted { pid, pidfd })
        }
    }
}

/// The helper's part: what needs the host's namespaces and ids.
fn assist_child(
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
        let mut root = sources::RootOpener::new(proof, ids, user.as_fd());
        for sources in boot.sources.chunks(TREES_AT_ONCE) {
            let trees = sources.iter().map(|source| root.open(source));
            let trees = trees.collect::<SetupResult<Vec<_>>>()?;
            let fds: Vec<_> = trees.iter().map(AsFd::as_fd).collect();
            fdpass::send_with_fds(child, b"s", &fds).doing(|| "send mounts".into())?;
        }
    }
    match receive_outcome(child)? {
        Outcome::Done => Ok(()),
        other @ (Outcome::Failed { .. }
        | Outcome::Booted { .. }
        | Outcome::Measured { .. }
        | Outcome::Attached
        | Outcome::NotNow { .. }) => Err(SetupError::from_outcome(other)),
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
            return Err(SetupError::new("wait for the new process", "it exited"));
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

/// Pid 1: builds the sandbox, reports the result, and serves.
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
        // Before `become_root`: the caller can reach paths that root inside cannot.
        Mode::Subordinate | Mode::Single => boot
            .sources
            .iter()
            .map(sources::open)
            .collect::<SetupResult<Vec<_>>>()?,
    };
    become_root(ids.mode)?;
    let proc = tree::proc_mount()?;
    limits::set_ucounts(proc.as_fd(), &boot.limits.user);
    let inner = {
        let wanted = inner::Wanted {
            hostname: &boot.hostname,
            processes: boot.limits.processes,
        };
        inner::start(proof, ids, wanted, proc.as_fd())?
    };
    // From here on init is in the sandbox's network namespace: a sysfs shows that of the process that mounts it.
    process::setns(inner.namespaces.net.as_fd(), process::NEW_NET)
        .doing(|| "join the new network namespace".into())?;
    let built = tree::build(boot, trees, &descriptors.program, ids.mode)?;
    let (namespaces, network) = inner.finish()?;
    detach_stdio()?;
    process::set_not_dumpable().doing(|| "clear the dumpable flag".into())?;
    Ok(Parts {
        listener: descriptors.listener,
        groups: descriptors.groups,
        logs: descriptors.logs,
        proc,
        ptys: built.ptys,
        workspaces: built.workspaces,
        git: built.git,
        own: built.own,
        mounts: built.mounts,
        namespaces,
        network,
        mode: ids.mode,
        outside: descriptors.pid_namespace,
    })
}

/// In the first two modes root inside is an id of its own; with one id there is nothing to change.
///
/// Capabilities of a user namespace do not apply to inodes whose group is not mapped in it. A host path can lead through
/// such a directory, so sources are opened before this.
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

/// Nothing of the host stays open in init: the helper's stderr is the daemon's log.
fn detach_stdio() -> SetupResult<()> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .doing(|| OPEN_NULL.into())?;
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
            "unexpected message",
        ))
    }
}

/// Hand-over for a sandbox whose init is dead, with the same capabilities and through the same mounts.
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
        let budget = Budget::within(Duration::from_millis(job.limit_ms.into()));
        let done = handover::hand_over(&workspaces, job.made_at, &job.excluded, budget)
            .map_err(|left| SetupError::new("hand files over", left.to_string()));
        opened.and(done).map(|()| Outcome::Done)
    })
    .map(drop)
}

/// Opens each, and returns the first error: a failure does not keep the next from being opened.
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

/// Enters the parent directory of a task's path as the caller, and makes the path relative to it: root of the user
/// namespace may not be able to walk there.
fn enter_parent(task: Task) -> SetupResult<Task> {
    let from_here = |path: OsBytes| {
        let path = path.as_path();
        let doing = || format!("enter the directory of `{}`", path.display());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(SetupError::new(doing(), "invalid path"));
        };
        rustix::process::chdir(parent).doing(doing)?;
        Ok(Path::new(".").join(name).as_path().into())
    };
    Ok(match task {
        Task::RemoveTree { path } => Task::RemoveTree {
            path: from_here(path)?,
        },
        Task::Measure { path } => Task::Measure {
            path: from_here(path)?,
        },
        Task::BuildTemplate { path, spec } => Task::BuildTemplate {
            path: from_here(path)?,
            spec,
        },
        Task::CopyLayers(copy) => Task::CopyLayers(copy),
    })
}

/// Both ends of a copy of layers, open.
struct Ends {
    from: OwnedFd,
    to: OwnedFd,
}

impl Ends {
    fn open(copy: &CopyLayers) -> SetupResult<Self> {
        let open = |path: &Path| {
            rustix::fs::openat2(
                rustix::fs::CWD,
                path,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                FileMode::empty(),
                ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
            )
            .doing(|| format!("open `{}`", path.display()))
        };
        Ok(Self {
            from: match copy.disk {
                true => disk::open(copy.from.as_path())?,
                false => open(copy.from.as_path())?,
            },
            to: open(copy.to.as_path())?,
        })
    }

    /// The task, by names that lead to the descriptors.
    fn named(&self, copy: CopyLayers) -> Task {
        let name = |end: &OwnedFd| {
            let name = format!("/proc/self/fd/{}", end.as_raw_fd());
            Path::new(&name).into()
        };
        Task::CopyLayers(CopyLayers {
            from: name(&self.from),
            to: name(&self.to),
            ..copy
        })
    }
}

/// Forks into new namespaces with the sandbox's id maps, runs `prepare` there as the caller, and then `work` as root of the
/// user namespace.
fn in_namespaces<T>(
    proof: &SingleThreaded,
    maps: Maps<'_>,
    namespaces: process::NamespaceFlags,
    prepare: impl FnOnce() -> SetupResult<T>,
    work: impl FnOnce(T) -> SetupResult<Outcome>,
) -> SetupResult<Outcome> {
    let (ours, theirs) = UnixStream::pair().doing(|| "make a socket pair".into())?;
    match process::fork(proof, namespaces).doing(|| "make a user namespace".into())? {
        Fork::Child => {
            drop(ours);
            let result = await_byte(&theirs, b'm').and_then(|()| {
                let prepared = prepare()?;
                become_root(maps.ids.mode)?;
                work(prepared)
            });
            let outcome = result.unwrap_or_else(SetupError::into_outcome);
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
                done @ (Outcome::Done | Outcome::Measured { .. }) => Ok(done),
                other @ (Outcome::Failed { .. }
                | Outcome::Booted { .. }
                | Outcome::Attached
                | Outcome::NotNow { .. }) => Err(SetupError::from_outcome(other)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opens_the_others_after_a_failure() {
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

//! Pid 1 of a sandbox: serves exec requests, reaps, answers the filter's questions, hands files over.
//!
//! One thread, one `poll` loop. Whatever can block is done by a forked child: the [`Spare`] that becomes the next
//! command, the answers to seccomp user notifications, the hand-over of files after a command. Init itself must never
//! wait for a process inside, because a stopped or hostile one would stop the whole sandbox: its sockets and pipes are
//! non-blocking, and `SIGCHLD` arrives by a signalfd. One thread is also what makes `fork` without `execve` sound
//! ([`SingleThreaded`]).
//!
//! Bytes of commands do not pass through it, except what detached commands write to the log, and streams of clients that
//! have no descriptors to pass.

mod abandoned;
mod answers;
mod commands;
mod events;
mod executed;
mod exits;
mod log;
mod mount_watch;
mod peer;
mod proc_stat;
mod reap;
mod requests;
mod shutdown;
mod stdio;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use sbx_proto::OsBytes;
use sbx_proto::plan::{Boot, Mode, Node};
use sbx_sys::mountinfo;
use sbx_sys::process::SingleThreaded;
use sbx_sys::signals::SignalFd;

use crate::guard::Guard;
use crate::seccomp_filter::{self, MountPoints};
use crate::setup::{Namespaces, Network, OwnFileSystems};
use crate::spare::Spare;
use crate::spawn::Surroundings;
use crate::worktree::{self, Worktree};
use abandoned::Abandoned;
use answers::Question;
use commands::Command;
use exits::HandOver;
use log::Log;
use mount_watch::MountWatch;
use peer::Peer;
use shutdown::Stopping;
use stdio::Output;

/// What setup leaves to init.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) listener: OwnedFd,
    /// Files of control groups that commands join.
    pub(crate) groups: Vec<OwnedFd>,
    pub(crate) logs: [OwnedFd; 2],
    pub(crate) proc: OwnedFd,
    pub(crate) ptys: OwnedFd,
    /// Open directories: names can be changed from inside.
    pub(crate) workspaces: Vec<OwnedFd>,
    /// Git worktrees in which commits are allowed.
    pub(crate) git: Vec<worktree::Directories>,
    /// Superblocks of the sandbox's own, as mountinfo names them.
    pub(crate) own: OwnFileSystems,
    /// What setup has mounted, by id, and where.
    pub(crate) mounts: BTreeSet<(u64, PathBuf)>,
    pub(crate) namespaces: Namespaces,
    pub(crate) network: Network,
    pub(crate) mode: Mode,
    /// The pid namespace of the clients that may talk to init.
    pub(crate) outside: Node,
}

/// Serves until it is told to stop. The process's exit code.
pub(crate) fn serve(proof: &SingleThreaded, boot: Boot, parts: Parts) -> i32 {
    // Else it is the number of the descriptor that it was executed from.
    let _ = rustix::thread::set_name(c"sbx-init");
    let listener = UnixListener::from(parts.listener);
    let (Ok(()), Ok(signals)) = (
        listener.set_nonblocking(true),
        SignalFd::new(&[libc::SIGCHLD]),
    ) else {
        return 1;
    };
    // Without the list no mount can be checked.
    let mut text = Vec::new();
    let Ok(mut list) = File::open("/proc/self/mountinfo") else {
        return 1;
    };
    if list.read_to_end(&mut text).is_err() {
        return 1;
    }
    let mounts = mountinfo::parse(&text);
    if mounts.is_empty() {
        return 1;
    }
    let writable: Vec<_> = boot.workspaces.iter().map(OsBytes::as_path).collect();
    let listed = mounts.iter().map(|mount| (mount.id, mount.point.clone()));
    let below = mount_watch::any_below(&listed.collect(), &writable);
    // What the host has taken away since it was mounted is not in the list, and is missed at the first look.
    let anchored = mount_watch::anchored(&parts.mounts, &writable);
    let mount_points = if below || !anchored.is_empty() {
        MountPoints::Protected
    } else {
        MountPoints::Absent
    };
    let mount_watch = (!anchored.is_empty()).then(|| MountWatch::new(list, anchored));
    let guard = Guard::new(parts.proc, &mounts, parts.own);
    let mut init = Init {
        proof,
        id: boot.id,
        outside: parts.outside,
        listener,
        signals,
        ptys: parts.ptys,
        log: Log::new(parts.logs),
        guard,
        mount_watch,
        network: parts.network,
        // With one id there is nothing to hand over.
        workspaces: if parts.mode == Mode::Single {
            vec![]
        } else {
            parts.workspaces
        },
        worktrees: parts.git.into_iter().map(Worktree::new).collect(),
        made_at: boot.made_at,
        surroundings: Surroundings {
            mode: parts.mode,
            namespaces: parts.namespaces,
            groups: parts.groups,
            filter: seccomp_filter::program(mount_points),
            env: boot.env,
            workdir: boot.workdir,
            open_files: boot.limits.open_files,
        },
        peers: BTreeMap::new(),
        spare: None,
        commands: BTreeMap::new(),
        outputs: Vec::new(),
        filters: Vec::new(),
        abandoned: Abandoned::default(),
        answers: BTreeMap::new(),
        handovers: BTreeMap::new(),
        hand_over_due: false,
        next: 1,
        stopping: None,
    };
    init.keep_a_spare();
    init.run();
    0
}

struct Init<'a> {
    proof: &'a SingleThreaded,
    id: String,
    outside: Node,
    listener: UnixListener,
    signals: SignalFd,
    ptys: OwnedFd,
    log: Log,
    guard: Guard,
    mount_watch: Option<MountWatch>,
    network: Network,
    workspaces: Vec<OwnedFd>,
    /// Git worktrees in which commits are allowed.
    worktrees: Vec<Worktree>,
    /// When the sandbox was made.
    made_at: i64,
    surroundings: Surroundings,
    peers: BTreeMap<u64, Peer>,
    /// Becomes the next command.
    spare: Option<Spare>,
    /// By pid.
    commands: BTreeMap<i32, Command>,
    outputs: Vec<Output>,
    /// Listeners of the commands' filters; each ends with its last process.
    filters: Vec<OwnedFd>,
    /// Commands whose client is gone, by session.
    abandoned: Abandoned,
    /// Children that answer a filter, and the question each is about.
    answers: BTreeMap<i32, Question>,
    /// Children that hand files over, and what waits for them.
    handovers: BTreeMap<i32, HandOver>,
    /// The last one was not done to its end.
    hand_over_due: bool,
    next: u64,
    stopping: Option<Stopping>,
}

impl Init<'_> {
    fn next_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

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

mod commands;
mod executed;
mod log;
mod mount_watch;
mod peer;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use sbx_proto::OsBytes;
use sbx_proto::exec::{Cause, ExitStatus, Reply, Request, Role};
use sbx_proto::plan::{Boot, Mode, Node};
use sbx_proto::stream::Stream;
use sbx_sys::process::{self, EndedBy, EndedChild, Fork, SingleThreaded};
use sbx_sys::seccomp;
use sbx_sys::signals::SignalFd;

use crate::filter::{self, MountPoints};
use crate::guard::{self, Guard};
use crate::handover::{self, Budget};
use crate::setup::{Namespaces, Network, OwnFileSystems};
use crate::spare::{Order, Spare};
use crate::spawn::{Failure, Surroundings};
use log::Log;
use mount_watch::{CHECK_INTERVAL, MountWatch};
use peer::Peer;
use sbx_sys::mountinfo;

/// Answers to the filter that are worked on at the same time.
const MAX_ANSWERS: usize = 16;
/// How long one may take. A process inside with the same id can stop the process that answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often answers whose system call has gone are looked for, while there are any.
const ANSWER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a stop waits for clients to take the last frames of their commands' output.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often files are handed over for one command, when the process that does it is killed.
const MAX_HAND_OVERS: u32 = 3;

/// What setup leaves to init.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) listener: OwnedFd,
    pub(crate) logs: [OwnedFd; 2],
    pub(crate) proc: OwnedFd,
    pub(crate) ptys: OwnedFd,
    /// Open directories: names can be changed from inside.
    pub(crate) workspaces: Vec<OwnedFd>,
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
        made_at: boot.made_at,
        surroundings: Surroundings {
            mode: parts.mode,
            namespaces: parts.namespaces,
            filter: filter::program(mount_points),
            env: boot.env,
            workdir: boot.workdir,
            open_files: boot.limits.open_files,
        },
        peers: BTreeMap::new(),
        spare: None,
        commands: BTreeMap::new(),
        outputs: Vec::new(),
        filters: Vec::new(),
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
    /// Children that answer a filter, and the question each is about.
    answers: BTreeMap<i32, Question>,
    /// Children that hand files over, and what waits for them.
    handovers: BTreeMap<i32, HandOver>,
    /// The last one was not done to its end.
    hand_over_due: bool,
    next: u64,
    stopping: Option<Stopping>,
}

struct Command {
    id: u64,
    /// The client that requested it, while connected.
    peer: Option<u64>,
    /// Not yet executed: where it says how that goes.
    starting: Option<Starting>,
    /// The program was not executed; only else is an exit the program's own.
    failed: Option<Failure>,
    /// By its caller, whose signals may end it at any time.
    signalled: bool,
    master: Option<OwnedFd>,
    /// The other side of its terminal. That hangs up when no process has it open, and a reader takes that for the end; a
    /// command may close all that it has of it, and open it again.
    terminal: Option<OwnedFd>,
    root: bool,
    detached: bool,
}

struct Starting {
    status: UnixStream,
    said: Vec<u8>,
    /// For another process, should the one that waited for it be dead by then.
    order: Option<Order>,
}

impl Starting {
    fn new(status: UnixStream, order: Option<Order>) -> Self {
        Self {
            status,
            said: Vec::new(),
            order,
        }
    }

    /// When the filter's listener is here, only the end is waited for (which is always polled): that the order was
    /// taken need not wake init, which would keep the command from running.
    fn interest(&self) -> PollFlags {
        if self.said.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::empty()
        }
    }
}

/// Files that are handed over before a command's end is told.
struct HandOver {
    ended: Ended,
    /// With the one that is under way.
    tries: u32,
}

struct Ended {
    id: u64,
    peer: Option<u64>,
    status: ExitStatus,
    detached: bool,
}

/// A pipe, or the terminal, of a detached command.
struct Output {
    id: u64,
    kind: &'static str,
    pipe: OwnedFd,
}

/// A system call that waits for its answer.
struct Question {
    filter: OwnedFd,
    id: u64,
    since: Instant,
}

struct Stopping {
    by: Cause,
    kill_at: Instant,
    killed: bool,
    /// Set when the last process has ended.
    drain_until: Option<Instant>,
}

impl Stopping {
    fn new(by: Cause, kill_at: Instant) -> Self {
        Self {
            by,
            kill_at,
            killed: false,
            drain_until: None,
        }
    }
}

/// Which of the polled descriptors is which.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Signals,
    Peer(u64),
    Starting(i32),
    /// A stream of a peer's command.
    Stream(u64, Stream),
    Output(usize),
    Filter(usize),
    Mounts,
}

impl Init<'_> {
    fn run(&mut self) {
        self.look_after_mounts();
        loop {
            if self.finished() {
                return;
            }
            let Ok(ready) = self.wait() else {
                // It cannot wait any more, so it must not go on: the kernel ends the sandbox with it.
                return;
            };
            // Handlers remove filters and outputs by index: from the last to the first, the indices that are left hold.
            // What is gone by the time its turn comes is looked up by key or index, and not found.
            for (source, flags) in ready.into_iter().rev() {
                self.handle(source, flags);
            }
            self.look_after_mounts();
            self.look_after_answers();
        }
    }

    /// Kills those that are stuck, or whose caller has gone. The caller gets its answer when the process is reaped.
    fn look_after_answers(&self) {
        for (pid, question) in &self.answers {
            let waiting = seccomp::is_valid(question.filter.as_fd(), question.id);
            if waiting && question.since.elapsed() < ANSWER_TIMEOUT {
                continue;
            }
            // An answer that was given ends its process by itself, which takes a moment.
            if question.since.elapsed() >= ANSWER_CHECK_INTERVAL
                && let Some(pid) = Pid::from_raw(*pid)
            {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }

    fn wait(&self) -> Result<Vec<(Source, PollFlags)>, Errno> {
        let (sources, mut fds): (Vec<Source>, Vec<PollFd<'_>>) =
            self.interests().into_iter().unzip();
        let stopping = self.stopping.as_ref();
        let kill_at = stopping.filter(|it| !it.killed).map(|it| it.kill_at);
        let until = kill_at
            .into_iter()
            .chain(stopping.and_then(|it| it.drain_until));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let look = self.mount_watch.as_ref().map(|_| CHECK_INTERVAL);
        let answers = (!self.answers.is_empty()).then_some(ANSWER_CHECK_INTERVAL);
        let times = left.chain(look).chain(answers);
        let timeout = times.min().map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(vec![]),
            Ok(_) => Ok(sources
                .into_iter()
                .zip(&fds)
                .map(|(source, fd)| (source, fd.revents()))
                .filter(|(_, flags)| !flags.is_empty())
                .collect()),
            Err(error) => Err(error),
        }
    }

    fn interests(&self) -> Vec<(Source, PollFd<'_>)> {
        let mut all = vec![(Source::Signals, PollFd::new(&self.signals, PollFlags::IN))];
        if self.stopping.is_none() {
            all.push((Source::Listener, PollFd::new(&self.listener, PollFlags::IN)));
        }
        for (key, peer) in &self.peers {
            all.push((Source::Peer(*key), PollFd::new(peer, peer.interest())));
            for (stream, fd, flags) in peer.stream_interests() {
                let source = Source::Stream(*key, stream);
                all.push((source, PollFd::from_borrowed_fd(fd, flags)));
            }
        }
        for (pid, command) in &self.commands {
            if let Some(starting) = &command.starting {
                all.push((
                    Source::Starting(*pid),
                    PollFd::new(&starting.status, starting.interest()),
                ));
            }
        }
        for (index, output) in self.outputs.iter().enumerate() {
            all.push((
                Source::Output(index),
                PollFd::new(&output.pipe, PollFlags::IN),
            ));
        }
        // While enough answers are under way a filter's callers wait, but its end is still seen.
        let questions = if self.answers.len() < MAX_ANSWERS {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        for (index, filter) in self.filters.iter().enumerate() {
            all.push((Source::Filter(index), PollFd::new(filter, questions)));
        }
        if let Some(watch) = &self.mount_watch {
            all.push((Source::Mounts, PollFd::new(watch, PollFlags::PRI)));
        }
        all
    }

    fn handle(&mut self, source: Source, flags: PollFlags) {
        match source {
            Source::Signals => {
                // One read: the same signal is pending once, and another makes the descriptor ready again.
                let _ = self.signals.read();
                self.reap();
            }
            Source::Listener => self.accept(),
            Source::Peer(key) => self.peer_ready(key, flags),
            Source::Stream(key, stream) => {
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.stream_ready(stream, flags);
                }
            }
            Source::Starting(pid) => self.hear_start(pid),
            Source::Output(index) => self.copy_output(index),
            Source::Filter(index) => self.filter_ready(index, flags),
            // Looked after in any case.
            Source::Mounts => {}
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                let key = self.next_number();
                self.peers.insert(key, Peer::new(stream));
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    fn peer_ready(&mut self, key: u64, flags: PollFlags) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        if flags.contains(PollFlags::OUT) {
            peer.flush();
        }
        let alive = peer.receive();
        loop {
            let Some(peer) = self.peers.get_mut(&key) else {
                return;
            };
            match peer.next_request() {
                Ok(Some(request)) => self.request(key, request),
                Ok(None) => break,
                Err(message) => {
                    self.reply(key, &Failure::bad_request(message).into_reply());
                    self.forget_peer(key);
                    return;
                }
            }
        }
        // What a client waits for is what became of its command; others wait for the greeting.
        if let Some(peer) = self.peers.get_mut(&key)
            && (peer.command.is_none() || peer.carries_streams())
        {
            peer.pump();
        }
        if !alive {
            self.forget_peer(key);
        }
    }

    /// A client that is gone leaves its command running, as docker does; one with a terminal hangs up.
    fn forget_peer(&mut self, key: u64) {
        let peer = self.peers.remove(&key);
        for command in self.commands.values_mut() {
            if command.peer == Some(key) {
                command.peer = None;
                command.master = None;
            }
        }
        if peer.is_some_and(|peer| peer.role() == Some(Role::Client)) {
            self.keep_a_spare();
        }
    }

    fn reply(&mut self, key: u64, reply: &Reply) {
        self.reply_with(key, reply, vec![]);
    }

    fn reply_with(&mut self, key: u64, reply: &Reply, fds: Vec<OwnedFd>) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.send(reply, fds);
        }
    }

    fn is_daemon(&self, key: u64) -> bool {
        let peer = self.peers.get(&key);
        peer.is_some_and(|peer| peer.role() == Some(Role::Daemon))
    }

    fn request(&mut self, key: u64, request: Request) {
        let greeted = self
            .peers
            .get(&key)
            .is_some_and(|peer| peer.role().is_some());
        if !greeted && !matches!(request, Request::Hello { .. }) {
            self.forget_peer(key);
            return;
        }
        match request {
            Request::Hello { protocol, role } => self.hello(key, protocol, role),
            Request::Exec(exec) => {
                if let Err(failure) = self.exec(key, &exec) {
                    self.reply(key, &failure.into_reply());
                }
            }
            Request::Signal { signal } => self.signal(key, signal),
            Request::Resize { rows, cols } => self.resize(key, rows, cols),
            Request::Detach => self.detach(key),
            Request::Shutdown { grace_ms, if_idle } => {
                if !self.is_daemon(key) {
                    return;
                }
                // Clients come without the daemon's knowledge: only here it is known what runs.
                if if_idle && self.running() > 0 {
                    self.reply(key, &Reply::Busy);
                } else {
                    self.shut_down(Duration::from_millis(grace_ms));
                }
            }
            Request::Listeners => {
                if self.is_daemon(key) {
                    self.hand_listeners_out(key);
                }
            }
        }
    }

    fn hello(&mut self, key: u64, protocol: u32, role: Role) {
        let reply = Reply::Hello {
            protocol: sbx_proto::PROTOCOL,
            sandbox: self.id.clone(),
        };
        if protocol != sbx_proto::PROTOCOL {
            self.reply(key, &reply);
            self.forget_peer(key);
            return;
        }
        let outside = self.outside;
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        if peer.role().is_none() && !peer.comes_from(outside) {
            self.forget_peer(key);
            return;
        }
        peer.set_role(role);
        peer.hold(&reply);
        if role == Role::Daemon {
            let running = self.running();
            self.reply(key, &Reply::Commands { running });
        }
    }

    /// Copies: init's own stay open.
    fn hand_listeners_out(&mut self, key: u64) {
        let sockets = self.network.sockets.iter();
        match sockets.map(|(_, socket)| socket.try_clone()).collect() {
            Ok(fds) => self.reply_with(key, &Reply::Listeners(self.network.listeners()), fds),
            Err(error) => {
                let failure = Failure::engine("copy the listeners", error);
                self.reply(key, &failure.into_reply());
            }
        }
    }

    /// A call that the filter wants to know about, or the end of the last process under that filter.
    fn filter_ready(&mut self, index: usize, flags: PollFlags) {
        let Some(filter) = self.filters.get(index) else {
            return;
        };
        if !flags.contains(PollFlags::IN) {
            // Only its end: while the kernel freezes this process it says that something else is wrong.
            if flags.contains(PollFlags::HUP) {
                self.filters.remove(index);
            }
            return;
        }
        // Fails when the caller was killed before this: the next `poll` shows what is left.
        let Ok(Some(call)) = seccomp::receive(filter.as_fd()) else {
            return;
        };
        // By a child: an answer reads the caller's memory and may mount, and either can block.
        let forked = filter
            .try_clone()
            .and_then(|copy| Ok((copy, process::fork(self.proof, 0)?)));
        match forked {
            Ok((_, Fork::Child)) => {
                guard::answer(self.proof, &self.guard, filter.as_fd(), &call);
                process::exit_now(0)
            }
            Ok((filter, Fork::Parent { pid, .. })) => {
                let (id, since) = (call.id, Instant::now());
                self.answers.insert(pid, Question { filter, id, since });
            }
            Err(_) => {
                let _ = seccomp::respond(filter.as_fd(), call.id, Err(libc::EAGAIN));
            }
        }
    }

    fn reap(&mut self) {
        let before = self.commands.len();
        while let Some(EndedChild { pid, by }) = process::ended_child() {
            // Before it is reaped, while `/proc/PID` still tells whether it was executed.
            if by == EndedBy::Signal {
                self.command_killed(pid);
            }
            let Ok(Some((_, status))) =
                rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::NOHANG)
            else {
                break;
            };
            if let Some(question) = self.answers.remove(&pid) {
                // The process has answered or is dead, and its caller must not wait for ever. After an answer the id is
                // not valid any more, and the kernel refuses a second one (ENOENT).
                let answer = Err(libc::EIO);
                let _ = seccomp::respond(question.filter.as_fd(), question.id, answer);
            } else if let Some(work) = self.handovers.remove(&pid) {
                self.hand_over_ended(work, status.exit_status());
            } else if self.commands.contains_key(&pid) {
                let status = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => ExitStatus::Code(code),
                    (None, Some(signal)) => ExitStatus::Signal(signal),
                    (None, None) => continue, // stopped or continued, not ended
                };
                self.command_ended(pid, status);
            } else {
                self.spare.take_if(|spare| spare.pid() == pid);
            }
        }
        // Not when a command starts or while a client hears of its end, which it would slow down: when that client has
        // gone. Nor when a spare dies: root inside could kill one after the other for ever.
        let mut peers = self.peers.values();
        if self.commands.len() < before && !peers.any(|peer| peer.role() == Some(Role::Client)) {
            self.keep_a_spare();
        }
    }

    /// The command stays: init holds its terminal and reads it from now on, or it would hang up or block.
    fn detach(&mut self, key: u64) {
        let pid = self.peers.get(&key).and_then(|peer| peer.command);
        let Some(command) = pid.and_then(|pid| self.commands.get_mut(&pid)) else {
            return;
        };
        command.peer = None;
        command.detached = true;
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.drop_streams();
        }
        if let Some(pipe) = command.master.take() {
            self.outputs.push(Output {
                id: command.id,
                kind: "out",
                pipe,
            });
        }
    }

    fn shut_down(&mut self, grace: Duration) {
        if self.stopping.is_none() {
            if let Some(spare) = self.spare.take() {
                spare.end();
            }
            let _ = process::kill_all(Signal::TERM);
            self.stopping = Some(Stopping::new(Cause::Stop, Instant::now() + grace));
        }
    }

    fn look_after_mounts(&mut self) {
        if !self.mount_watch.as_mut().is_some_and(MountWatch::lost) {
            return;
        }
        self.mount_watch = None;
        self.tell_daemons(&Reply::MountLost);
        self.shut_down(Duration::ZERO);
        // Whatever a stop before it left them: nothing may run on.
        if let Some(stopping) = &mut self.stopping {
            stopping.by = Cause::MountLost;
            stopping.kill_at = Instant::now();
        }
    }

    fn tell_daemons(&mut self, reply: &Reply) {
        for peer in self.peers.values_mut() {
            if peer.role() == Some(Role::Daemon) {
                peer.send(reply, vec![]);
            }
        }
    }

    /// Whether output of ended commands is still on its way to clients: frames end with init, unlike bytes in a pipe that
    /// the client itself has. A client that does not read is not waited for any longer than this.
    fn drains(&mut self) -> bool {
        let Some(stopping) = &mut self.stopping else {
            return false;
        };
        let now = Instant::now();
        let until = *stopping.drain_until.get_or_insert(now + DRAIN_TIMEOUT);
        now < until && self.peers.values().any(Peer::has_undelivered)
    }

    /// All processes are gone, files are handed over as far as they can be: init may end.
    fn finished(&mut self) -> bool {
        let Some(stopping) = &mut self.stopping else {
            return false;
        };
        if !stopping.killed && Instant::now() >= stopping.kill_at {
            stopping.killed = true;
            let _ = process::kill_all(Signal::KILL);
        }
        self.reap();
        // As pid 1 init is the parent of every orphan: without children, no process is left in the sandbox.
        if process::has_children() || self.drains() {
            return false;
        }
        let budget = Budget::AT_STOP;
        if handover::hand_over(&self.workspaces, self.made_at, &[], budget).is_err() {
            return true; // the daemon has it done
        }
        self.tell_daemons(&Reply::HandedOver);
        true
    }
}

//! Commands: from a request to a process, its terminal and log, its end, and the reports of it.
//!
//! A command is an order to the spare process, which may have been killed while it waited. Until it confirms the order,
//! init keeps it and can give it to a new process; afterwards it must not run twice. A process that ends before `execve`
//! is a failed start, not the program's exit status. Before a client hears of the end, files that root inside has
//! created in workspaces are handed over by a child, so that the client finds them with the right owner.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Pid, Signal, Uid};
use rustix::termios::Winsize;
use sbx_proto::exec::{Cause, Exec, ExitStatus, FailKind, Reply, Role, Stdio as WantedStdio};
use sbx_proto::inside::{AGENT, AGENT_NAME, ROOT_WAS_USED, TTY_GROUP};
use sbx_proto::plan::Mode;
use sbx_sys::fdpass;
use sbx_sys::process::{self, Fork};

use super::streams::Streams;
use super::{Command, Ended, HandOver, Init, MAX_HAND_OVERS, Output, Starting, Stopping, executed};
use crate::handover::{self, Budget};
use crate::spare::{LISTENER, Order, Spare, TAKEN};
use crate::spawn::{Failure, Stdio};

impl Init<'_> {
    pub(super) fn exec(&mut self, key: u64, exec: &Exec) -> Result<(), Failure> {
        let bad = |message: &str| Failure::bad_request(message.into());
        let peer = self
            .peers
            .get_mut(&key)
            .ok_or_else(|| bad("the client is gone"))?;
        if peer.role() != Some(Role::Client) || peer.command.is_some() {
            return Err(bad("a connection runs one command, after its hello"));
        }
        let fds = peer.take_fds();
        if self.stopping.is_some() {
            return Err(stopping());
        }
        let id = self.next_number();
        let Ends {
            stdio,
            master,
            streams,
        } = self.stdio(id, &exec.stdio, fds)?;
        let terminal = terminal_of(&exec.stdio, &stdio)?;
        let (pid, starting) = self.spawn(Order::new(exec, stdio)?)?;
        let detached = matches!(exec.stdio, WantedStdio::Log | WantedStdio::LogTty { .. });
        if detached {
            let argv: Vec<_> = exec
                .argv
                .iter()
                .map(|arg| String::from_utf8_lossy(&arg.0))
                .collect();
            self.log.write(id, "start", argv.join(" ").as_bytes());
        }
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.command = Some(pid);
            if let Some(streams) = streams {
                peer.carry(streams);
            }
        }
        let user = exec.user.as_deref();
        let agent = user.is_none_or(|user| user == AGENT_NAME || user == AGENT.to_string());
        self.commands.insert(
            pid,
            Command {
                id,
                peer: Some(key),
                starting: Some(starting),
                failed: None,
                signalled: false,
                master,
                terminal,
                root: !agent,
                detached,
            },
        );
        // A spare process has said the first word long ago.
        self.hear_start(pid);
        Ok(())
    }

    /// The spare process takes the order; without one that lives, a new process does.
    fn spawn(&mut self, order: Order) -> Result<(i32, Starting), Failure> {
        if let Some(spare) = self.spare.take()
            && spare.give(&order)
        {
            return Ok((spare.pid(), Starting::new(spare.into_door(), Some(order))));
        }
        self.spawn_anew(&order)
    }

    fn spawn_anew(&self, order: &Order) -> Result<(i32, Starting), Failure> {
        let fresh = Spare::new(self.proof, &self.surroundings)?;
        // Where it cannot take the order it says why, as a command that fails later does; or it waits for an order that
        // could not be sent.
        if !fresh.give(order) {
            fresh.end();
        }
        Ok((fresh.pid(), Starting::new(fresh.into_door(), None)))
    }

    /// Something to come faster by: when it cannot be made, the next command finds out why.
    pub(super) fn keep_a_spare(&mut self) {
        if self.spare.is_none() && self.stopping.is_none() {
            self.spare = Spare::new(self.proof, &self.surroundings).ok();
        }
    }

    /// What a command's streams are connected to.
    fn stdio(&mut self, id: u64, wanted: &WantedStdio, fds: Vec<OwnedFd>) -> Result<Ends, Failure> {
        let no_pipe = |error: Errno| Failure::engine("make a pipe", error);
        match *wanted {
            WantedStdio::Pipes => {
                let stdio = <[OwnedFd; 3]>::try_from(fds).map_err(|_| {
                    Failure::bad_request("three descriptors must come with the request".into())
                })?;
                Ok(Ends::of(stdio))
            }
            WantedStdio::Tty { rows, cols } => self.tty(rows, cols).map_err(no_terminal),
            WantedStdio::FramedTty { rows, cols } => {
                let framed = || {
                    let mut ends = self.tty(rows, cols)?;
                    let master = ends.master.as_ref();
                    ends.streams = master.map(Streams::terminal).transpose()?;
                    Ok(ends)
                };
                framed().map_err(no_terminal)
            }
            WantedStdio::Framed { stdin, stderr } => {
                let (streams, stdio) = Streams::pipes(stdin, stderr).map_err(no_pipe)?;
                Ok(Ends {
                    streams: Some(streams),
                    ..Ends::of(stdio)
                })
            }
            WantedStdio::Log => {
                let input = no_input().map_err(no_pipe)?;
                let (out, out_end) = pipe_to_us().map_err(no_pipe)?;
                let (err, err_end) = pipe_to_us().map_err(no_pipe)?;
                // The last one is read first, and what was written to both most likely began with the output.
                for (kind, pipe) in [("err", err), ("out", out)] {
                    self.outputs.push(Output { id, kind, pipe });
                }
                Ok(Ends::of([input, out_end, err_end]))
            }
            WantedStdio::LogTty { rows, cols } => {
                let mut ends = self.tty(rows, cols).map_err(no_terminal)?;
                let kind = "out";
                let master = ends.master.take();
                self.outputs
                    .extend(master.map(|pipe| Output { id, kind, pipe }));
                Ok(ends)
            }
        }
    }

    fn tty(&self, rows: u16, cols: u16) -> Result<Ends, Errno> {
        let (master, slave) = self.terminal(rows, cols)?;
        let copy = || rustix::io::fcntl_dupfd_cloexec(&slave, 3);
        let stdio = [copy()?, copy()?, slave];
        Ok(Ends {
            master: Some(master),
            ..Ends::of(stdio)
        })
    }

    /// Made in init's own view of `/dev/pts`: what is mounted there inside does not matter.
    pub(super) fn terminal(&self, rows: u16, cols: u16) -> Result<(OwnedFd, OwnedFd), Errno> {
        // Non-blocking, because init reads it when its client has left, and inside can flush what was to be read.
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let master = rustix::fs::openat(&self.ptys, "ptmx", flags, FileMode::empty())?;
        rustix::pty::unlockpt(&master)?;
        let open = rustix::pty::OpenptFlags::RDWR
            | rustix::pty::OpenptFlags::NOCTTY
            | rustix::pty::OpenptFlags::CLOEXEC;
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, open)?;
        if self.surroundings.mode != Mode::Single {
            let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(TTY_GROUP));
            rustix::fs::fchown(&slave, Some(uid), Some(gid))?;
        }
        rustix::termios::tcsetwinsize(&master, winsize(rows, cols))?;
        Ok((master, slave))
    }

    /// What a starting command says: the filter's listener, then why it failed, or nothing.
    pub(super) fn hear_start(&mut self, pid: i32) {
        let Some(command) = self.commands.get_mut(&pid) else {
            return;
        };
        let Some(starting) = &mut command.starting else {
            return;
        };
        let mut buffer = [0; 4096];
        let mut fds = Vec::new();
        let over = loop {
            match fdpass::recv_with_fds(&starting.status, &mut buffer, &mut fds) {
                Ok(0) => break true,
                Ok(count) => starting
                    .said
                    .extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(error) => break error.kind() != std::io::ErrorKind::WouldBlock,
            }
        };
        self.filters.append(&mut fds);
        if !over {
            return;
        }
        let Some(Starting { said, order, .. }) = command.starting.take() else {
            return;
        };
        match after(start_of(&said), order, self.stopping.as_ref()) {
            After::Runs if command.failed.is_some() => {}
            // No client waits for the end of a detached command: this reply is the last one.
            After::Runs if command.detached && executed::was_never(self.guard.proc(), pid) => {
                command.failed = Some(died_early());
            }
            After::Runs => self.started(pid),
            After::Again(order) => self.start_again(pid, &order),
            After::Failed(failure) => command.failed = Some(failure),
        }
    }

    fn started(&mut self, pid: i32) {
        let Some(command) = self.commands.get(&pid) else {
            return;
        };
        let id = command.id;
        if let Some(peer) = command.peer.and_then(|key| self.peers.get_mut(&key)) {
            // Frames of a terminal come by the connection itself.
            let master = command.master.as_ref().filter(|_| !peer.carries_streams());
            let master = master.and_then(|master| master.try_clone().ok());
            peer.send(&Reply::Started { id }, master.into_iter().collect());
            peer.command_started();
        }
        self.tell_daemon();
    }

    /// The spare process was dying when it got the order, and never read it.
    fn start_again(&mut self, pid: i32, order: &Order) {
        let Some(mut command) = self.commands.remove(&pid) else {
            return;
        };
        command.failed = None;
        let pid = match self.spawn_anew(order) {
            Ok((pid, starting)) => {
                command.starting = Some(starting);
                pid
            }
            Err(failure) => {
                command.failed = Some(failure);
                pid
            }
        };
        let peer = command.peer.and_then(|key| self.peers.get_mut(&key));
        if let Some(peer) = peer {
            peer.command = Some(pid);
        }
        self.commands.insert(pid, command);
    }

    pub(super) fn copy_output(&mut self, index: usize) {
        let Some(output) = self.outputs.get(index) else {
            return;
        };
        let mut buffer = [0; 32 << 10];
        match rustix::io::read(&output.pipe, &mut buffer) {
            // The process at the other end can take back what was there a moment ago.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => {
                self.outputs.remove(index);
            }
            Ok(count) => {
                let (id, kind) = (output.id, output.kind);
                self.log
                    .write(id, kind, buffer.get(..count).unwrap_or_default());
            }
        }
    }

    /// By a signal, and it is not reaped yet. Others inside can send one between the order and `execve`; that is not
    /// how the program ended.
    pub(super) fn command_killed(&mut self, pid: i32) {
        if let Some(command) = self.commands.get_mut(&pid)
            && !command.signalled
            && self.stopping.is_none()
            && executed::was_never(self.guard.proc(), pid)
        {
            command.failed.get_or_insert_with(died_early);
        }
    }

    pub(super) fn command_ended(&mut self, pid: i32, status: ExitStatus) {
        // What it said last may still be unread.
        while self
            .commands
            .get(&pid)
            .is_some_and(|command| command.starting.is_some())
        {
            self.hear_start(pid);
        }
        let Some(mut command) = self.commands.remove(&pid) else {
            return;
        };
        // Before the client is told, and before a fork copies it: then a reader of the terminal sees its end at once.
        drop(command.terminal.take());
        if let Some(failure) = command.failed {
            if command.detached {
                let line = format!("{}\n", failure.message());
                self.log.write(command.id, "err", line.as_bytes());
                let code = failure.kind().code().to_string();
                self.log.write(command.id, "exit", code.as_bytes());
            }
            if let Some(peer) = command.peer {
                self.reply(peer, &failure.into_reply());
            }
            self.tell_daemon();
            return;
        }
        let ended = Ended {
            id: command.id,
            peer: command.peer,
            status,
            detached: command.detached,
        };
        let root_was_used = rustix::fs::unlink(ROOT_WAS_USED).is_ok();
        let due = command.root || root_was_used || self.hand_over_due;
        // The stop does it always.
        if due && self.stopping.is_none() && !self.workspaces.is_empty() {
            self.hand_over(HandOver { ended, tries: 1 });
        } else {
            self.report(ended);
        }
    }

    fn hand_over(&mut self, work: HandOver) {
        // It walks through everything, whatever another one has left undone.
        self.hand_over_due = false;
        match process::fork(self.proof, 0) {
            Ok(Fork::Child) => {
                let budget = Budget::AFTER_COMMAND;
                let done = handover::hand_over(&self.workspaces, self.made_at, &[], budget);
                process::exit_now(i32::from(done.is_err()))
            }
            Ok(Fork::Parent { pid, .. }) => {
                self.handovers.insert(pid, work);
            }
            Err(_) => self.hand_over_failed(work),
        }
    }

    /// Root inside can kill the process that does it: then it has no exit code.
    pub(super) fn hand_over_ended(&mut self, work: HandOver, code: Option<i32>) {
        match code {
            Some(0) => self.report(work.ended),
            None if work.tries < MAX_HAND_OVERS && self.stopping.is_none() => {
                let tries = work.tries + 1;
                self.hand_over(HandOver { tries, ..work });
            }
            // It was patient for as long as it may be, or cannot be done.
            Some(_) | None => self.hand_over_failed(work),
        }
    }

    /// The next command does it, or the stop, which does it always and when no other process is left.
    fn hand_over_failed(&mut self, work: HandOver) {
        self.hand_over_due = true;
        self.report(work.ended);
    }

    pub(super) fn report(&mut self, ended: Ended) {
        if ended.detached {
            let text = format!("{}", ended.status.code());
            self.log.write(ended.id, "exit", text.as_bytes());
        }
        if let Some(peer) = ended.peer {
            let by = match (ended.status, &self.stopping) {
                (ExitStatus::Signal(_), Some(stopping)) => stopping.by,
                (ExitStatus::Code(_), _) | (_, None) => Cause::Itself,
            };
            let status = ended.status;
            let reply = Reply::Exited { status, by };
            self.reply(peer, &reply);
            // After it, not before: a client that does not read holds up its output, and never its exit status.
            if let Some(peer) = self.peers.get_mut(&peer) {
                peer.command_ended();
            }
        }
        self.tell_daemon();
    }

    pub(super) fn running(&self) -> u32 {
        u32::try_from(self.commands.len() + self.handovers.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn tell_daemon(&mut self) {
        let reply = Reply::Commands {
            running: self.running(),
        };
        self.tell_daemons(&reply);
    }

    pub(super) fn signal(&mut self, key: u64, signal: i32) {
        let pid = self.peers.get(&key).and_then(|peer| peer.command);
        let Some((pid, command)) =
            pid.and_then(|pid| Pid::from_raw(pid).zip(self.commands.get_mut(&pid)))
        else {
            return;
        };
        command.signalled = true;
        if let Some(signal) = Signal::from_named_raw(signal) {
            signal_command(pid, signal);
            // Others inside can stop it before its program runs; what its caller asks for must reach it.
            if command.starting.is_some() {
                signal_command(pid, Signal::CONT);
            }
        }
    }

    pub(super) fn resize(&self, key: u64, rows: u16, cols: u16) {
        let command = self
            .peers
            .get(&key)
            .and_then(|peer| self.commands.get(&peer.command?));
        if let Some(master) = command.and_then(|command| command.master.as_ref()) {
            let _ = rustix::termios::tcsetwinsize(master, winsize(rows, cols));
        }
    }
}

/// What a command's streams are connected to.
struct Ends {
    stdio: Stdio,
    /// Of a terminal that a client holds or may leave.
    master: Option<OwnedFd>,
    /// Init's side, when the streams are frames of the client's connection.
    streams: Option<Streams>,
}

impl Ends {
    fn of(stdio: Stdio) -> Self {
        Self {
            stdio,
            master: None,
            streams: None,
        }
    }
}

fn no_terminal(error: Errno) -> Failure {
    Failure::engine("make a terminal", error)
}

/// A copy of the command's terminal. It is init's alone: a spare process closes all that it has of init's, and the
/// copy is closed on exec.
fn terminal_of(wanted: &WantedStdio, [input, ..]: &Stdio) -> Result<Option<OwnedFd>, Failure> {
    match wanted {
        WantedStdio::Tty { .. } | WantedStdio::LogTty { .. } | WantedStdio::FramedTty { .. } => {
            let copy = input.try_clone();
            copy.map(Some)
                .map_err(|e| Failure::engine("make a terminal", e))
        }
        WantedStdio::Pipes | WantedStdio::Framed { .. } | WantedStdio::Log => Ok(None),
    }
}

/// A pipe from a command to init: where init reads, and where the command writes.
///
/// The writer of a pipe can open it for reading (`/proc/self/fd`), and take the bytes back that init was woken for: init
/// must not block in `read`. The mode is that of its own end alone.
pub(super) fn pipe_to_us() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// A stdin that is at its end.
pub(super) fn no_input() -> Result<OwnedFd, Errno> {
    let (input, _) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(input)
}

/// A command leads a session and group of its own, but for its first moment. It is init's own child and not reaped yet:
/// its number is still its own.
fn signal_command(pid: Pid, signal: Signal) {
    if rustix::process::kill_process_group(pid, signal) == Err(Errno::SRCH) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn died_early() -> Failure {
    let message = "the command's process was ended before it was executed";
    Failure::new(FailKind::Engine, message.into())
}

/// Its client asks the daemon for the next start, and then for the command again.
fn stopping() -> Failure {
    Failure::new(FailKind::Stopping, "the sandbox is stopping".into())
}

fn winsize(rows: u16, cols: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// How a start went, by all that was said.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    Executed,
    /// Before it had the order.
    Died,
    Failed(Failure),
}

fn start_of(said: &[u8]) -> Start {
    let (ready, words) = match said.strip_prefix(&[LISTENER]) {
        Some(rest) => (true, rest),
        None => (false, said),
    };
    let (taken, words) = match words.strip_prefix(&[TAKEN]) {
        Some(rest) => (true, rest),
        None => (false, words),
    };
    let mut decoder = sbx_proto::frame::Decoder::new(sbx_proto::frame::MAX_REPLY);
    decoder.push(words);
    match decoder.take::<Failure>() {
        Ok(Some(failure)) => Start::Failed(failure),
        _ if ready && taken && words.is_empty() => Start::Executed,
        _ => Start::Died,
    }
}

/// What comes of a start.
#[derive(Debug, PartialEq, Eq)]
enum After<T> {
    Runs,
    /// Another process takes this order.
    Again(T),
    Failed(Failure),
}

/// Nothing is started in a sandbox that ends: it would come after the signal that ends all.
fn after<T>(start: Start, order: Option<T>, ending: Option<&Stopping>) -> After<T> {
    match (start, order, ending) {
        (Start::Executed, _, _) => After::Runs,
        (Start::Failed(failure), _, _) => After::Failed(failure),
        (Start::Died, _, Some(_)) => After::Failed(stopping()),
        (Start::Died, Some(order), None) => After::Again(order),
        (Start::Died, None, None) => After::Failed(died_early()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    use super::*;

    #[test]
    fn nothing_is_started_again_while_the_sandbox_stops() {
        let ending = Stopping::new(Cause::Stop, Instant::now());
        let died = |order, ending| after(Start::Died, order, ending);
        assert_eq!(died(Some(7), None), After::Again(7));
        assert_eq!(died(None, None), After::Failed(died_early()));
        for order in [Some(7), None] {
            let failed = died(order, Some(&ending));
            assert_eq!(failed, After::Failed(stopping()));
        }
        assert_eq!(stopping().kind(), FailKind::Stopping);
        assert_eq!(after(Start::Executed, Some(7), Some(&ending)), After::Runs);
    }

    #[test]
    fn a_signal_reaches_a_command_that_leads_no_group_yet() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        signal_command(Pid::from_child(&child), Signal::TERM);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn init_does_not_wait_for_bytes_that_were_taken_back_and_the_command_may_wait() {
        let (ours, theirs) = pipe_to_us().unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        let path = format!("/proc/self/fd/{}", theirs.as_raw_fd());
        let thief = rustix::fs::open(path, OFlags::RDONLY, FileMode::empty()).unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(&thief, &mut byte).unwrap(), 1);
        assert_eq!(rustix::io::read(&ours, &mut byte), Err(Errno::AGAIN));
        let flags = rustix::fs::fcntl_getfl(&theirs).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
    }

    #[test]
    fn only_a_process_that_had_its_order_and_says_nothing_was_executed() {
        let failure = Failure::bad_request("no".into());
        let frame = sbx_proto::frame::encode(&failure).unwrap();
        let with = |prefix: &[u8]| [prefix, &frame].concat();
        assert_eq!(start_of(b"lt"), Start::Executed);
        for died in [&b""[..], b"l", b"t", b"ltx", b"x"] {
            assert_eq!(start_of(died), Start::Died, "{died:?}");
        }
        for failed in [with(b""), with(b"l"), with(b"lt")] {
            assert_eq!(start_of(&failed), Start::Failed(failure.clone()));
        }
    }
}

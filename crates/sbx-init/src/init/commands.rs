//! Commands: from a request to a process, and what its client may ask of it.
//!
//! A command is an order to the spare process, which may have been killed while it waited. Until it confirms the order,
//! init keeps it and can give it to a new process; afterwards it must not run twice. A process that ends before `execve`
//! is a failed start, not the program's exit status.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use sbx_proto::exec::{Exec, FailKind, Reply, Role, Stdio as WantedStdio};
use sbx_proto::inside::{AGENT, AGENT_NAME};
use sbx_sys::fdpass;

use super::shutdown::Stopping;
use super::stdio::{Ends, Output, pipes_of, terminal_of, winsize};
use super::{Init, executed};
use crate::spare::{LISTENER, Order, Spare, TAKEN};
use crate::spawn::Failure;
use crate::worktree::Worktree;

pub(super) struct Command {
    pub(super) id: u64,
    /// The client that requested it, while connected.
    pub(super) peer: Option<u64>,
    /// Not yet executed: where it says how that goes.
    pub(super) starting: Option<Starting>,
    /// The program was not executed; only else is an exit the program's own.
    pub(super) failed: Option<Failure>,
    /// By its caller, whose signals may end it at any time.
    pub(super) signalled: bool,
    pub(super) master: Option<OwnedFd>,
    /// The other side of its terminal. That hangs up when no process has it open, and a reader takes that for the end; a
    /// command may close all that it has of it, and open it again.
    pub(super) terminal: Option<OwnedFd>,
    /// Those of its streams that are pipes to the client, by inode.
    pub(super) pipes: Vec<u64>,
    pub(super) root: bool,
    pub(super) detached: bool,
}

pub(super) struct Starting {
    pub(super) status: UnixStream,
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
    pub(super) fn interest(&self) -> PollFlags {
        if self.said.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::empty()
        }
    }
}

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
        self.worktrees.iter_mut().for_each(Worktree::follow_host);
        let pipes = match exec.stdio {
            WantedStdio::Pipes | WantedStdio::Framed { .. } => pipes_of(&stdio),
            _ => vec![],
        };
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
        self.abandoned.remove(pid);
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
                pipes,
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
        let order = order.filter(|_| command.peer.is_some() || command.detached);
        match outcome(start_of(&said), order, self.stopping.as_ref()) {
            StartOutcome::Runs if command.failed.is_some() => {}
            // No client waits for the end of a detached command: this reply is the last one.
            StartOutcome::Runs
                if command.detached && executed::was_never(self.guard.proc(), pid) =>
            {
                command.failed = Some(died_early());
            }
            StartOutcome::Runs => self.started(pid),
            StartOutcome::Again(order) => self.start_again(pid, &order),
            StartOutcome::Failed(failure) => command.failed = Some(failure),
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

    pub(super) fn running(&self) -> u32 {
        u32::try_from(self.commands.len() + self.handovers.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn tell_daemon(&mut self) {
        let reply = Reply::Commands {
            running: self.running(),
        };
        self.tell_daemons(&reply);
    }

    /// The command stays: init holds its terminal and reads it from now on, or it would hang up or block.
    pub(super) fn detach(&mut self, key: u64) {
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

/// A command leads a session and group of its own, but for its first moment. It is init's own child and not reaped yet:
/// its number is still its own.
fn signal_command(pid: Pid, signal: Signal) {
    if rustix::process::kill_process_group(pid, signal) == Err(Errno::SRCH) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

pub(super) fn died_early() -> Failure {
    let message = "the command's process was ended before it was executed";
    Failure::new(FailKind::Engine, message.into())
}

/// Its client asks the daemon for the next start, and then for the command again.
fn stopping() -> Failure {
    Failure::new(FailKind::Stopping, "the sandbox is stopping".into())
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

/// What to do after one attempt to start a command.
#[derive(Debug, PartialEq, Eq)]
enum StartOutcome<T> {
    Runs,
    /// Another process takes this order.
    Again(T),
    Failed(Failure),
}

/// Nothing is started in a sandbox that ends: it would come after the signal that ends all.
fn outcome<T>(start: Start, order: Option<T>, ending: Option<&Stopping>) -> StartOutcome<T> {
    match (start, order, ending) {
        (Start::Executed, _, _) => StartOutcome::Runs,
        (Start::Failed(failure), _, _) => StartOutcome::Failed(failure),
        (Start::Died, _, Some(_)) => StartOutcome::Failed(stopping()),
        (Start::Died, Some(order), None) => StartOutcome::Again(order),
        (Start::Died, None, None) => StartOutcome::Failed(died_early()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    use sbx_proto::exec::Cause;

    use super::*;

    #[test]
    fn nothing_is_started_again_while_the_sandbox_stops() {
        let ending = Stopping::new(Cause::Stop, Instant::now());
        let died = |order, ending| outcome(Start::Died, order, ending);
        assert_eq!(died(Some(7), None), StartOutcome::Again(7));
        assert_eq!(died(None, None), StartOutcome::Failed(died_early()));
        for order in [Some(7), None] {
            let failed = died(order, Some(&ending));
            assert_eq!(failed, StartOutcome::Failed(stopping()));
        }
        assert_eq!(stopping().kind(), FailKind::Stopping);
        assert_eq!(
            outcome(Start::Executed, Some(7), Some(&ending)),
            StartOutcome::Runs
        );
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

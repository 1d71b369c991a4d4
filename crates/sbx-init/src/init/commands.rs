//! Commands: from a request to a process, its terminal and log, its end, and who is told.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Signal, Uid};
use rustix::termios::Winsize;
use sbx_proto::exec::{Exec, ExitStatus, FailKind, Reply, Role, Stdio as WantedStdio};
use sbx_proto::plan::Mode;
use sbx_sys::fdpass;
use sbx_sys::process::{self, Fork};

use super::{Command, Ended, Init, Output, ROOT_WAS_USED, Starting};
use crate::handover;
use crate::spawn::{self, Failure, Stdio};

impl Init<'_> {
    pub(super) fn exec(&mut self, key: u64, exec: &Exec) -> Result<(), Failure> {
        let bad = |message: &str| Failure {
            kind: FailKind::BadRequest,
            message: message.into(),
        };
        let peer = self
            .peers
            .get_mut(&key)
            .ok_or_else(|| bad("the client is gone"))?;
        if peer.role() != Some(Role::Client) || peer.command.is_some() {
            return Err(bad("a connection runs one command, after its hello"));
        }
        let fds = peer.take_fds();
        if self.stopping.is_some() {
            return Err(Failure {
                kind: FailKind::Stopping,
                message: "the sandbox is stopping".into(),
            });
        }
        let id = self.next_number();
        let (stdio, master) = self.stdio(id, &exec.stdio, fds)?;
        let spawned = spawn::spawn(self.proof, &self.surroundings, exec, stdio)?;
        let detached = exec.stdio == WantedStdio::Log;
        if detached {
            let argv: Vec<_> = exec
                .argv
                .iter()
                .map(|arg| String::from_utf8_lossy(&arg.0))
                .collect();
            self.log.write(id, "start", argv.join(" ").as_bytes());
        }
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.command = Some(spawned.pid);
        }
        let agent = matches!(exec.user.as_deref(), None | Some("agent" | "1000"));
        self.commands.insert(
            spawned.pid,
            Command {
                id,
                peer: Some(key),
                starting: Some(Starting {
                    status: spawned.status,
                    said: Vec::new(),
                }),
                failed: None,
                master,
                root: !agent,
                detached,
            },
        );
        self.tell_daemon();
        Ok(())
    }

    /// The three descriptors for a command, and the terminal's master.
    pub(super) fn stdio(
        &mut self,
        id: u64,
        wanted: &WantedStdio,
        fds: Vec<OwnedFd>,
    ) -> Result<(Stdio, Option<OwnedFd>), Failure> {
        match wanted {
            WantedStdio::Pipes => {
                let fds = <[OwnedFd; 3]>::try_from(fds).map_err(|_| Failure {
                    kind: FailKind::BadRequest,
                    message: "three descriptors must come with the request".into(),
                })?;
                let stdio = Stdio {
                    fds,
                    terminal: false,
                };
                Ok((stdio, None))
            }
            WantedStdio::Tty { rows, cols } => {
                let (master, slave) = self
                    .terminal(*rows, *cols)
                    .map_err(|e| Failure::engine("make a terminal", e))?;
                let twice = |fd: &OwnedFd| {
                    fd.try_clone()
                        .map_err(|e| Failure::engine("make a terminal", e))
                };
                let fds = [twice(&slave)?, twice(&slave)?, slave];
                Ok((
                    Stdio {
                        fds,
                        terminal: true,
                    },
                    Some(master),
                ))
            }
            WantedStdio::Log => {
                let pipe = || {
                    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                        .map_err(|e| Failure::engine("make a pipe", e))
                };
                let (input, _) = pipe()?;
                let (out, out_end) = pipe()?;
                let (err, err_end) = pipe()?;
                self.outputs.push(Output {
                    id,
                    kind: "out",
                    pipe: out,
                });
                self.outputs.push(Output {
                    id,
                    kind: "err",
                    pipe: err,
                });
                let fds = [input, out_end, err_end];
                Ok((
                    Stdio {
                        fds,
                        terminal: false,
                    },
                    None,
                ))
            }
        }
    }

    /// Made in init's own view of `/dev/pts`: what is mounted there inside does not matter.
    pub(super) fn terminal(&self, rows: u16, cols: u16) -> Result<(OwnedFd, OwnedFd), Errno> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let master = rustix::fs::openat(&self.ptys, "ptmx", flags, FileMode::empty())?;
        rustix::pty::unlockpt(&master)?;
        let open = rustix::pty::OpenptFlags::RDWR
            | rustix::pty::OpenptFlags::NOCTTY
            | rustix::pty::OpenptFlags::CLOEXEC;
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, open)?;
        if self.surroundings.mode != Mode::Single {
            rustix::fs::fchown(&slave, Some(Uid::from_raw(1000)), Some(Gid::from_raw(5)))?;
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
        let count = match fdpass::recv_with_fds(&starting.status, &mut buffer, &mut fds) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(_) => 0,
        };
        self.filters.append(&mut fds);
        if count > 0 {
            starting
                .said
                .extend_from_slice(buffer.get(..count).unwrap_or_default());
            return;
        }
        let said = std::mem::take(&mut starting.said);
        command.starting = None;
        let (id, peer) = (command.id, command.peer);
        // The first byte came with the listener; without it the child did not get that far.
        let words = said.strip_prefix(b"l").unwrap_or(&said);
        if words.is_empty() && !said.is_empty() {
            let master = command
                .master
                .as_ref()
                .and_then(|master| master.try_clone().ok());
            if let Some(peer) = peer {
                self.reply_with(peer, &Reply::Started { id }, master.into_iter().collect());
            }
            return;
        }
        let mut decoder = sbx_proto::frame::Decoder::new(sbx_proto::frame::MAX_REPLY);
        decoder.push(words);
        let failure = decoder.take::<Failure>().ok().flatten();
        command.failed = Some(failure.unwrap_or(Failure {
            kind: FailKind::Engine,
            message: "the command's process died before it was executed".into(),
        }));
    }

    pub(super) fn copy_output(&mut self, index: usize) {
        let Some(output) = self.outputs.get(index) else {
            return;
        };
        let mut buffer = [0; 32 << 10];
        match rustix::io::read(&output.pipe, &mut buffer) {
            // A terminal is in the mode that its client left it in.
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

    pub(super) fn command_ended(&mut self, pid: i32, status: ExitStatus) {
        // What it said last may still be unread.
        while self
            .commands
            .get(&pid)
            .is_some_and(|command| command.starting.is_some())
        {
            self.hear_start(pid);
        }
        let Some(command) = self.commands.remove(&pid) else {
            return;
        };
        if let Some(Failure { kind, message }) = command.failed {
            if command.detached {
                self.log.write(command.id, "err", message.as_bytes());
            }
            if let Some(peer) = command.peer {
                self.reply(peer, &Reply::Failed { kind, message });
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
        if (command.root || root_was_used) && !self.workspaces.is_empty() {
            match process::fork(self.proof, 0) {
                Ok(Fork::Child) => {
                    handover::hand_over(&self.workspaces);
                    process::exit_now(0)
                }
                Ok(Fork::Parent { pid, .. }) => {
                    self.handovers.insert(pid, Some(ended));
                    return;
                }
                Err(_) => {} // the next command or the stop does it
            }
        }
        self.report(ended);
    }

    pub(super) fn report(&mut self, ended: Ended) {
        if ended.detached {
            let text = format!("{}", ended.status.code());
            self.log.write(ended.id, "exit", text.as_bytes());
        }
        if let Some(peer) = ended.peer {
            self.reply(
                peer,
                &Reply::Exited {
                    status: ended.status,
                },
            );
        }
        self.tell_daemon();
    }

    pub(super) fn running(&self) -> u32 {
        let waiting = self
            .handovers
            .values()
            .filter(|ended| ended.is_some())
            .count();
        u32::try_from(self.commands.len() + waiting).unwrap_or(u32::MAX)
    }

    pub(super) fn tell_daemon(&mut self) {
        let reply = Reply::Commands {
            running: self.running(),
        };
        for peer in self.peers.values_mut() {
            if peer.role() == Some(Role::Daemon) {
                peer.send(&reply, vec![]);
            }
        }
    }

    pub(super) fn signal(&self, key: u64, signal: i32) {
        let pid = self.peers.get(&key).and_then(|peer| peer.command);
        let Some(pid) = pid
            .filter(|pid| self.commands.contains_key(pid))
            .and_then(Pid::from_raw)
        else {
            return;
        };
        if let Some(signal) = Signal::from_named_raw(signal) {
            // The command leads a session and group of its own.
            let _ = rustix::process::kill_process_group(pid, signal);
            // Others inside can stop it before its program runs; what its caller asks for must reach it.
            let starting = self.commands.get(&pid.as_raw_nonzero().get());
            if starting.is_some_and(|command| command.starting.is_some()) {
                let _ = rustix::process::kill_process_group(pid, Signal::CONT);
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

fn winsize(rows: u16, cols: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

//! How commands end: the files that are handed over before, and what is told to whom.
//!
//! Before a client hears of the end, files that root inside has created in workspaces are handed over by a child, so that
//! the client finds them with the right owner.

use sbx_proto::exec::{Cause, ExitStatus, Reply};
use sbx_proto::inside::ROOT_WAS_USED;
use sbx_sys::process::{self, Fork};

use super::commands::died_early;
use super::{Init, executed};
use crate::handover::{self, Budget};
use crate::worktree::Worktree;

/// How often files are handed over for one command, when the process that does it is killed.
const MAX_HAND_OVERS: u32 = 3;

/// Files that are handed over before a command's end is told.
pub(super) struct HandOver {
    ended: Ended,
    /// With the one that is under way.
    tries: u32,
}

pub(super) struct Ended {
    id: u64,
    peer: Option<u64>,
    status: ExitStatus,
    detached: bool,
}

impl Init<'_> {
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
        self.worktrees.iter_mut().for_each(Worktree::publish);
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
}

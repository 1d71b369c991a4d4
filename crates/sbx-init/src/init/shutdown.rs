//! The end of the sandbox: a stop that was asked for, or a mount that the host took away.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sbx_proto::exec::{Cause, Reply};
use sbx_sys::process;

use super::Init;
use super::mount_watch::MountWatch;
use super::peer::Peer;
use crate::handover::{self, Budget};
use crate::worktree::Worktree;

/// How long a stop waits for clients to take the last frames of their commands' output.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Stopping {
    pub(super) by: Cause,
    pub(super) kill_at: Instant,
    pub(super) killed: bool,
    /// Set when the last process has ended.
    pub(super) drain_until: Option<Instant>,
}

impl Stopping {
    pub(super) fn new(by: Cause, kill_at: Instant) -> Self {
        Self {
            by,
            kill_at,
            killed: false,
            drain_until: None,
        }
    }
}

impl Init<'_> {
    pub(super) fn shut_down(&mut self, grace: Duration) {
        if self.stopping.is_none() {
            if let Some(spare) = self.spare.take() {
                spare.end();
            }
            let _ = process::kill_all(Signal::TERM);
            self.stopping = Some(Stopping::new(Cause::Stop, Instant::now() + grace));
        }
    }

    pub(super) fn look_after_mounts(&mut self) {
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
    pub(super) fn finished(&mut self) -> bool {
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
        self.worktrees.iter_mut().for_each(Worktree::publish);
        let budget = Budget::AT_STOP;
        if handover::hand_over(&self.workspaces, self.made_at, &[], budget).is_err() {
            return true; // the daemon has it done
        }
        self.tell_daemons(&Reply::HandedOver);
        true
    }
}

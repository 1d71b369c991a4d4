//! Ended children: commands, answers to the filter, hand-overs, the spare, and every orphan of the sandbox.

use rustix::process::{Pid, WaitOptions};
use sbx_proto::exec::{ExitStatus, Role};
use sbx_sys::process::{self, EndedBy, EndedChild};

use super::Init;

impl Init<'_> {
    pub(super) fn reap(&mut self) {
        let before = self.commands.len();
        // SIGCHLD is not queued: one signal may stand for many children, so all that have ended are taken.
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
            // Reaped: from here on the kernel may give the pid to another process, so the table that has it must forget it.
            if let Some(question) = self.answers.remove(&pid) {
                question.over();
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
                // The spare, or an orphaned process that the kernel gave to pid 1.
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
}

//! Answers to the system calls that the filters report (`SECCOMP_RET_USER_NOTIF`).
//!
//! Each is given by a forked child ([`guard::answer`]): it reads the caller's memory and may mount, and either can block.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{Pid, Signal};
use sbx_sys::process::{self, Fork};
use sbx_sys::seccomp;

use super::Init;
use crate::guard;

/// Answers to the filter that are worked on at the same time.
pub(super) const MAX_ANSWERS: usize = 16;
/// How long one may take. A process inside with the same id can stop the process that answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often answers whose system call has gone are looked for, while there are any.
pub(super) const ANSWER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A system call that waits for its answer.
pub(super) struct Question {
    filter: OwnedFd,
    id: u64,
    since: Instant,
}

impl Question {
    /// The process has answered or is dead, and its caller must not wait for ever. After an answer the id is not valid any
    /// more, and the kernel refuses a second one (ENOENT).
    pub(super) fn over(self) {
        let _ = seccomp::respond(self.filter.as_fd(), self.id, Err(libc::EIO));
    }
}

impl Init<'_> {
    /// A call that the filter wants to know about, or the end of the last process under that filter.
    pub(super) fn filter_ready(&mut self, index: usize, flags: PollFlags) {
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
                let namespaces = &self.surroundings.namespaces;
                guard::answer(self.proof, &self.guard, namespaces, filter.as_fd(), &call);
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

    /// Kills those that are stuck, or whose caller has gone. The caller gets its answer when the process is reaped.
    pub(super) fn look_after_answers(&self) {
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
}

//! Commands whose client is gone end soon: what waits for the end of their output, a pipe of the caller, would hang else.
//!
//! SIGTERM first, or where there is a terminal the SIGHUP that the kernel sends when its master is closed; SIGKILL after
//! [`KILL_DELAY`]. Both go to the whole session of the command: a shell with job control, and `timeout`, put their children
//! into process groups of their own. A process that has made itself a session (setsid(2)) is a daemon and stays, unless
//! it has kept a pipe of the client's: in root mode that is the caller's own, whose reader would wait for its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::Init;
use super::proc_stat::{pipe_holders, session_members};

/// From SIGTERM or SIGHUP to SIGKILL.
const KILL_DELAY: Duration = Duration::from_millis(500);
// A command whose client is gone ends within a second.
const _: () = assert!(KILL_DELAY.as_millis() < 1000);
/// Until the next SIGKILL, when processes are forked faster than they are found.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// How often the processes are listed before others have their turn.
const MAX_ROUNDS: usize = 8;

/// Sessions that are ending, and when they are killed.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    kill_at: BTreeMap<i32, Ending>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Ending {
    at: Instant,
    /// The client's pipes that the command got, by inode.
    pipes: Vec<u64>,
}

impl Abandoned {
    /// When the next one is to be killed.
    pub(super) fn next(&self) -> Option<Instant> {
        self.kill_at.values().map(|ending| ending.at).min()
    }

    /// The number is that of a new command now: no process was left of the session that had it.
    pub(super) fn remove(&mut self, session: i32) {
        self.kill_at.remove(&session);
    }

    fn add(&mut self, session: i32, pipes: Vec<u64>, now: Instant) {
        let at = now + KILL_DELAY;
        self.kill_at.insert(session, Ending { at, pipes });
    }

    fn take_due(&mut self, now: Instant) -> Vec<(i32, Vec<u64>)> {
        let due = self.kill_at.extract_if(.., |_, ending| ending.at <= now);
        due.map(|(session, ending)| (session, ending.pipes))
            .collect()
    }
}

impl Init<'_> {
    pub(super) fn client_gone(&mut self, pid: i32) {
        let Some(command) = self.commands.get_mut(&pid) else {
            return;
        };
        command.peer = None;
        if command.detached {
            return;
        }
        command.signalled = true;
        let has_terminal = command.master.take().is_some();
        let pipes = std::mem::take(&mut command.pipes);
        if !has_terminal || command.starting.is_some() {
            signal_session(pid, Signal::TERM, || self.members(pid, &pipes));
        }
        self.abandoned.add(pid, pipes, Instant::now());
    }

    /// The processes of a session, and others that have its pipes. Another command may have been given the same pipe.
    fn members(&self, session: i32, pipes: &[u64]) -> Vec<i32> {
        let proc = self.guard.proc();
        let mut found = session_members(proc, session);
        let spared =
            |other: i32| other != session && (other <= 1 || self.commands.contains_key(&other));
        found.extend(pipe_holders(proc, pipes, spared));
        found
    }

    pub(super) fn end_abandoned(&mut self) {
        let now = Instant::now();
        for (session, pipes) in self.abandoned.take_due(now) {
            if !kill_session(|| self.members(session, &pipes)) {
                let at = now + KILL_INTERVAL;
                self.abandoned.kill_at.insert(session, Ending { at, pipes });
            }
        }
    }
}

/// Its leader is signalled also where it is not one yet.
fn signal_session(leader: i32, signal: Signal, members: impl Fn() -> Vec<i32>) {
    let all: BTreeSet<_> = members().into_iter().chain([leader]).collect();
    for pid in all.into_iter().filter_map(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// False when there may be more. A process with a pending SIGKILL cannot fork any more, so when a list has only such ones
/// the session has ended.
fn kill_session(members: impl Fn() -> Vec<i32>) -> bool {
    let mut killed = BTreeSet::new();
    for _ in 0..MAX_ROUNDS {
        let fresh: Vec<_> = members()
            .into_iter()
            .filter(|pid| killed.insert(*pid))
            .collect();
        if fresh.is_empty() {
            return true;
        }
        for pid in fresh.into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_killed_once_and_at_its_time() {
        let now = Instant::now();
        let mut abandoned = Abandoned::default();
        assert_eq!(abandoned.next(), None);
        abandoned.add(7, vec![3], now);
        abandoned.add(9, vec![], now + KILL_DELAY);
        assert_eq!(abandoned.next(), Some(now + KILL_DELAY));
        assert!(abandoned.take_due(now).is_empty());
        assert_eq!(abandoned.take_due(now + KILL_DELAY), [(7, vec![3])]);
        abandoned.remove(9);
        assert_eq!(abandoned.next(), None);
    }

    #[test]
    fn what_is_forked_meanwhile_is_killed_too() {
        let children: Vec<_> = (0..3)
            .map(|_| {
                let mut sleep = std::process::Command::new("sleep");
                sleep.arg("1000").spawn().unwrap()
            })
            .collect();
        let pids: Vec<_> = children.iter().map(|it| it.id().cast_signed()).collect();
        let listed = std::cell::Cell::new(0);
        let members = || {
            // One more each time, as long as there are any.
            listed.set((listed.get() + 1).min(pids.len()));
            pids.iter().take(listed.get()).copied().collect()
        };
        assert!(kill_session(members));
        for mut child in children {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
    }
}

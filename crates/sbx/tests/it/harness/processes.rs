//! Processes of the host, as `/proc` shows them.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal; false when there is no such process.
pub fn kill(number: i32, signal: Signal) -> bool {
    kill_process(Pid::from_raw(number).unwrap(), signal).is_ok()
}

/// A process that has ended may still wait to be reaped.
pub fn alive(number: i32) -> bool {
    state(number).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// The letter of a process's state.
pub fn state(number: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name before it may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a signal was sent to a process that has not taken it yet.
pub fn is_pending(number: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let waiting = |line: &str| {
        let mask = line.strip_prefix("ShdPnd:")?.trim();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        Some(mask & 1 << (signal.as_raw() - 1) != 0)
    };
    status.lines().find_map(waiting).unwrap_or(false)
}

/// The children of a process, whichever thread has started them.
pub fn children(number: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{number}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let mut found: Vec<i32> = lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    found.sort_unstable();
    found
}

/// The process of a daemon that waits for the next sandbox's plan: it has entered no namespace yet.
pub fn waiting_helper(daemon: i32) -> Option<i32> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let ours = namespace(daemon)?;
    children(daemon)
        .into_iter()
        .find(|child| namespace(*child).as_ref() == Some(&ours) && state(*child) == Some('S'))
}

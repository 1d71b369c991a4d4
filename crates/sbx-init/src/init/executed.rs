//! Whether a process has executed a program since it was forked. The kernel keeps that until the process is reaped.
//!
//! Exit status and signal do not tell the command's end from the end of the process that was to become it, which any
//! process inside with the same id can kill. The flags field of `/proc/PID/stat` does: `execve` clears `PF_FORKNOEXEC`.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode as FileMode, OFlags};

/// `PF_FORKNOEXEC` of the kernel's `sched.h`.
const FORKED_ONLY: u64 = 0x40;

/// Only when that is certain.
pub(super) fn was_never(proc: BorrowedFd<'_>, pid: i32) -> bool {
    let read = || {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(proc, format!("{pid}/stat"), flags, FileMode::empty()).ok()?;
        let mut stat = Vec::new();
        File::from(file).read_to_end(&mut stat).ok()?;
        flags_in(&String::from_utf8_lossy(&stat))
    };
    read().is_some_and(|flags| flags & FORKED_ONLY != 0)
}

/// The name before it may hold anything.
fn flags_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_was_executed_is_known_before_and_after_its_end() {
        let proc = File::open("/proc").unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!was_never(proc.as_fd(), pid));
        child.wait().unwrap();
        assert!(!was_never(proc.as_fd(), pid), "nothing is known any more");
    }

    #[test]
    fn a_process_that_was_only_forked_is_told_from_one_that_was_executed() {
        let proc = File::open("/proc").unwrap();
        // The inner shell is forked and executes nothing; the outer one does not reap it before it is told to.
        let script = "exec 3<&0; (read line <&3; exit) & echo $!; read line; wait";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut said).unwrap();
        let pid = said.trim().parse().unwrap();
        assert!(was_never(proc.as_fd(), pid));
        let outer = i32::try_from(shell.id()).unwrap();
        assert!(!was_never(proc.as_fd(), outer), "it was executed");
        shell
            .stdin
            .take()
            .unwrap()
            .write_all(b"end\nend\n")
            .unwrap();
        shell.wait().unwrap();
        assert!(!was_never(proc.as_fd(), pid), "nothing is known any more");
    }

    #[test]
    fn flags_are_found_behind_any_name() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194368 1 2 3";
        assert_eq!(flags_in(stat), Some(4_194_304 | FORKED_ONLY));
        assert_eq!(flags_in("7 (a"), None);
    }
}

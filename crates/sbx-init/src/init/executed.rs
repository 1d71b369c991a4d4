//! Whether a process has executed a program since it was forked. The kernel keeps that until the process is reaped.
//!
//! Exit status and signal do not tell the command's end from the end of the process that was to become it, which any
//! process inside with the same id can kill. The flags field of `/proc/PID/stat` does: `execve` clears `PF_FORKNOEXEC`.

use std::os::fd::BorrowedFd;

use super::proc_stat::Stat;

/// Only when that is certain.
pub(super) fn was_never(proc: BorrowedFd<'_>, pid: i32) -> bool {
    Stat::read(proc, pid).is_some_and(Stat::only_forked)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
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
}

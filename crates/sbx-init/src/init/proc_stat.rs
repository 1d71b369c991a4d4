//! `/proc/PID/stat` (proc_pid_stat(5)): what the kernel keeps about a process until it is reaped.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

use rustix::fs::{Dir, Mode as FileMode, OFlags};

/// `PF_FORKNOEXEC` of the kernel's `sched.h`.
const FORKED_ONLY: u64 = 0x40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    state: u8,
    session: i32,
    flags: u64,
}

impl Stat {
    /// `None` where there is no such process.
    pub(super) fn read(proc: BorrowedFd<'_>, pid: i32) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(proc, format!("{pid}/stat"), flags, FileMode::empty()).ok()?;
        let mut stat = Vec::new();
        File::from(file).read_to_end(&mut stat).ok()?;
        Self::parse(&String::from_utf8_lossy(&stat))
    }

    /// The name before the fields may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some(Self {
            state: *fields.next()?.as_bytes().first()?,
            session: fields.nth(2)?.parse().ok()?,
            flags: fields.nth(2)?.parse().ok()?,
        })
    }

    /// It has executed no program since it was forked: `execve` clears the flag.
    pub(super) fn only_forked(self) -> bool {
        self.flags & FORKED_ONLY != 0
    }

    /// It has ended and waits to be reaped.
    fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// The processes of a session that have not ended.
pub(super) fn session_members(proc: BorrowedFd<'_>, session: i32) -> Vec<i32> {
    living(proc)
        .filter(|(_, stat)| stat.session == session)
        .map(|(pid, _)| pid)
        .collect()
}

/// The processes that have one of these pipes open, by inode, but for init and for those of sessions that are `spared`.
pub(super) fn pipe_holders(
    proc: BorrowedFd<'_>,
    pipes: &[u64],
    spared: impl Fn(i32) -> bool,
) -> Vec<i32> {
    if pipes.is_empty() {
        return vec![];
    }
    let targets: Vec<_> = pipes
        .iter()
        .map(|inode| format!("pipe:[{inode}]"))
        .collect();
    living(proc)
        .filter(|(pid, stat)| *pid != 1 && !spared(stat.session))
        .map(|(pid, _)| pid)
        .filter(|pid| {
            let place = format!("{pid}/fd");
            let numbers = names(proc, &place);
            numbers.iter().any(|number| {
                let link = rustix::fs::readlinkat(proc, format!("{place}/{number}"), Vec::new());
                link.is_ok_and(|link| targets.iter().any(|it| it.as_bytes() == link.as_bytes()))
            })
        })
        .collect()
}

fn living(proc: BorrowedFd<'_>) -> impl Iterator<Item = (i32, Stat)> {
    let pids = names(proc, ".").into_iter();
    let found = pids.filter_map(move |pid| Some((pid, Stat::read(proc, pid)?)));
    found.filter(|(_, stat)| !stat.is_dead())
}

/// The numbers in a directory of proc.
fn names(proc: BorrowedFd<'_>, directory: &str) -> Vec<i32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(proc, directory, flags, FileMode::empty());
    let Ok(entries) = open.and_then(Dir::new) else {
        return vec![];
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a) b) R 1 7 8 0 -1 4194368 1 2 3";
        let expected = Stat {
            state: b'R',
            session: 8,
            flags: 4_194_304 | FORKED_ONLY,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("7 (a"), None);
        assert_eq!(Stat::parse("7 (a) "), None);
    }

    #[test]
    fn what_has_a_pipe_open_is_found_in_any_session_but_a_spared_one() {
        use std::os::unix::fs::MetadataExt;
        let proc = File::open("/proc").unwrap();
        let mut sleep = Command::new("setsid")
            .args(["-w", "sleep", "1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = sleep.stdout.take().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let inode = pipe.metadata().unwrap().ino();
        let own = std::process::id().cast_signed();
        let found = pipe_holders(proc.as_fd(), &[inode], |_| false);
        assert!(
            found.contains(&own) && found.contains(&sleep.id().cast_signed()),
            "{found:?}"
        );
        let session = Stat::read(proc.as_fd(), own).unwrap().session;
        let others = pipe_holders(proc.as_fd(), &[inode], |it| it == session);
        assert!(!others.contains(&own), "{others:?}");
        assert!(pipe_holders(proc.as_fd(), &[], |_| false).is_empty());
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        for pid in pipe_holders(proc.as_fd(), &[inode], |it| it == session) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }

    #[test]
    fn members_of_a_session_are_found_whatever_their_group_until_they_end() {
        let proc = File::open("/proc").unwrap();
        // With job control the inner one has a group of its own.
        let script = "set -m; sleep 1000 & echo $$ $!; wait";
        let mut shell = Command::new("setsid")
            .args(["-w", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut said).unwrap();
        let pids: Vec<i32> = said
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let [leader, job] = pids[..] else {
            panic!("{said}")
        };
        let mut found = session_members(proc.as_fd(), leader);
        found.sort_unstable();
        let mut both = [leader, job];
        both.sort_unstable();
        assert_eq!(found, both);
        for pid in both {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(!session_members(proc.as_fd(), leader).contains(&leader));
    }
}

//! Waiting for a child's end, in one thread with waiting for its first words: most commands are short and say little, and
//! a thread for each of their streams would take longer to make than some of them run.

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::pump::Waiting;

/// Returns when the child has ended, and leaves it unreaped: until it is reaped, its number cannot become another's.
pub(super) fn watch(pid: Pid, streams: Vec<Waiting>) {
    for stream in until_end(pid, streams) {
        stream.carry();
    }
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}

/// The streams that nothing came from and that are still open: another process holds the other side.
#[cfg(target_os = "linux")]
fn until_end(pid: Pid, mut streams: Vec<Waiting>) -> Vec<Waiting> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{PidfdFlags, pidfd_open};

    let Ok(child) = pidfd_open(pid, PidfdFlags::empty()) else {
        return streams;
    };
    loop {
        // The child comes first: what it wrote before its end is seen with its end.
        let mut fds = vec![PollFd::new(&child, PollFlags::IN)];
        fds.extend(
            streams
                .iter()
                .map(|stream| PollFd::new(stream, PollFlags::IN)),
        );
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return streams,
        }
        let mut seen = fds.iter().map(PollFd::revents);
        let ended = seen.next().is_some_and(|seen| !seen.is_empty());
        let seen: Vec<PollFlags> = seen.collect();
        let mut silent = Vec::new();
        for (stream, seen) in streams.into_iter().zip(seen) {
            if seen.contains(PollFlags::IN) {
                stream.carry();
            } else if seen.is_empty() {
                silent.push(stream);
            } else {
                stream.close();
            }
        }
        streams = silent;
        if ended {
            return streams;
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn until_end(_pid: Pid, streams: Vec<Waiting>) -> Vec<Waiting> {
    streams
}

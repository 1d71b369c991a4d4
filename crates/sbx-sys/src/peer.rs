//! The process at the other end of a Unix socket.
//!
//! `SO_PEERCRED` gives a pid, which can name another process by the time it is used. `SO_PEERPIDFD` gives a descriptor that
//! stays bound to the process that connected, alive or dead.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

/// A pidfd of the process that connected. Kernels before 6.5 have no `SO_PEERPIDFD`: there the pid is looked up.
pub fn pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut size = libc::socklen_t::try_from(size_of_val(&fd)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `size` bytes to `fd`, which has that many.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut size,
        )
    };
    if answer == 0 && fd >= 0 {
        // SAFETY: the kernel has just opened it for us, close-on-exec.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::ENOPROTOOPT) {
        return Err(error);
    }
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    crate::process::pidfd_open(peer.pid.as_raw_pid())
}

/// Our pid namespace as an `O_PATH` descriptor: it can be compared (device and inode) and used for nothing else. A process in
/// another pid namespace cannot open it, so it proves where its holder runs.
pub fn pid_namespace() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc/self/ns/pid", flags, Mode::empty())?)
}

/// Whether the process has not ended yet: a pidfd becomes readable at its end.
pub fn is_alive(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    matches!(
        rustix::event::poll(&mut fds, Some(&Timespec::default())),
        Ok(0)
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_our_own_socket_is_alive() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(is_alive(&pidfd(&one).unwrap()));
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let pidfd = crate::process::pidfd_open(pid).unwrap();
        child.wait().unwrap();
        assert!(!is_alive(&pidfd));
    }
}

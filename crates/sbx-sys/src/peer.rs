//! Who is at the other end of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

/// The process that connected, by a descriptor which never means another one. Kernels before 6.5 cannot tell; there the
/// process is looked up by its number.
pub fn process(socket: impl AsFd) -> io::Result<OwnedFd> {
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
        // SAFETY: the kernel has just made it for us, close-on-exec.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::ENOPROTOOPT) {
        return Err(error);
    }
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    crate::process::pidfd_open(peer.pid.as_raw_pid())
}

/// What we show of ourselves: our pid namespace, to be looked at and for nothing else. Those in another cannot have it.
pub fn own_namespace() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc/self/ns/pid", flags, Mode::empty())?)
}

/// Whether the process has not ended yet.
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
    fn we_are_at_the_other_end_and_alive() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(is_alive(&process(&one).unwrap()));
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

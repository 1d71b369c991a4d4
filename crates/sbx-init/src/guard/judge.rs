//! Whether a memory file system was mounted by this sandbox.
//!
//! That it was not there when the sandbox started says nothing: another sandbox that shares a workspace can hand over
//! a mount of the host's. The kernel keeps the user namespace that a file system was mounted in but shows it to nobody,
//! so it is asked for something that takes power over that namespace. Init has it over those of the sandbox; whoever
//! answers a call has given it up when the object is known. A process that was forked before still has it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::process::Signal;
use sbx_sys::fdpass::{recv_with_fds, send_with_fds};
use sbx_sys::process::{self, Fork, SingleThreaded};

use super::caller;

/// An attribute that no file has.
const NOBODYS: &str = "security.sbx-nobodys";

const YES: u8 = b'y';
const NO: u8 = b'n';

/// Ends with this.
#[derive(Debug)]
pub(super) struct Judge(UnixStream);

impl Judge {
    pub(super) fn summon(proof: &SingleThreaded, proc: &OwnedFd) -> Result<Self, Errno> {
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        match process::fork(proof, 0).map_err(io)? {
            Fork::Parent { .. } => Ok(Self(ours)),
            Fork::Child => {
                // With one id the caller can stop it, and what was stopped does not see the end of its stream.
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                // Not the filter's listener, nor anything of the caller's.
                let code = match process::close_all_but(&[theirs.as_fd(), proc.as_fd()]) {
                    Ok(()) => serve(&theirs, proc),
                    Err(_) => 1,
                };
                process::exit_now(code)
            }
        }
    }

    pub(super) fn is_from_inside(&self, fd: BorrowedFd<'_>) -> bool {
        let mut answer = [NO];
        let mut none = Vec::new();
        send_with_fds(&self.0, b"?", &[fd]).is_ok()
            && recv_with_fds(&self.0, &mut answer, &mut none).is_ok()
            && answer == [YES]
    }
}

fn serve(door: &UnixStream, proc: &OwnedFd) -> i32 {
    let mut fds = Vec::new();
    while recv_with_fds(door, &mut [0], &mut fds).is_ok_and(|count| count > 0) {
        let inside = fds.pop().is_some_and(|fd| has_power_over(proc, fd.as_fd()));
        fds.clear();
        if send_with_fds(door, &[if inside { YES } else { NO }], &[]).is_err() {
            return 1;
        }
    }
    0
}

/// Without the power it is refused before anybody looks whether there is such an attribute.
fn has_power_over(proc: &OwnedFd, fd: BorrowedFd<'_>) -> bool {
    let removed = rustix::process::fchdir(proc)
        .and_then(|()| rustix::fs::removexattr(caller::self_path(fd), NOBODYS));
    matches!(removed, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

//! Whether a memory file system was mounted inside this sandbox.
//!
//! That it did not exist when the sandbox started proves nothing: another sandbox that shares a workspace can pass in a
//! descriptor (`SCM_RIGHTS`) of one of the host's. The kernel records the user namespace that a superblock was mounted in
//! (`s_user_ns`) but does not show it. So the probe tries an operation that needs CAP_SYS_ADMIN in that namespace: to
//! remove a `security.*` attribute that does not exist. With the capability it fails with ENODATA or EOPNOTSUPP, without it
//! with EPERM. Init has the capability over all user namespaces of the sandbox, and over none of the host. The process
//! that does the call has given up its own by the time the object is open; the probe is a child forked before that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::process::Signal;
use sbx_sys::fdpass::{recv_with_fds, send_with_fds};
use sbx_sys::process::{self, Fork, SingleThreaded};

use super::caller;

/// Any file is without it, since nothing sets it.
const PROBE_XATTR: &str = "security.sbx-probe";

const YES: u8 = b'y';
const NO: u8 = b'n';

/// The connection to the probe's process, which exits when this is dropped.
#[derive(Debug)]
pub(super) struct OriginProbe(UnixStream);

impl OriginProbe {
    pub(super) fn start(proof: &SingleThreaded, proc: &OwnedFd) -> Result<Self, Errno> {
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        match process::fork(proof, 0).map_err(io)? {
            Fork::Parent { .. } => Ok(Self(ours)),
            Fork::Child => {
                // With one id the caller can send it SIGSTOP, and a stopped process does not see the end of its stream.
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                // Neither the filter's listener nor a descriptor of the caller stays open.
                let code = match process::close_all_but(&[theirs.as_fd(), proc.as_fd()]) {
                    Ok(()) => serve(&theirs, proc),
                    Err(_) => 1,
                };
                process::exit_now(code)
            }
        }
    }

    pub(super) fn is_mounted_inside(&self, fd: BorrowedFd<'_>) -> bool {
        let mut answer = [NO];
        let mut none = Vec::new();
        send_with_fds(&self.0, b"?", &[fd]).is_ok()
            && recv_with_fds(&self.0, &mut answer, &mut none).is_ok()
            && answer == [YES]
    }
}

fn serve(socket: &UnixStream, proc: &OwnedFd) -> i32 {
    let mut fds = Vec::new();
    while recv_with_fds(socket, &mut [0], &mut fds).is_ok_and(|count| count > 0) {
        let inside = fds
            .pop()
            .is_some_and(|fd| has_capability_over(proc, fd.as_fd()));
        fds.clear();
        if send_with_fds(socket, &[if inside { YES } else { NO }], &[]).is_err() {
            return 1;
        }
    }
    0
}

/// The kernel checks the capability before it looks for the attribute.
fn has_capability_over(proc: &OwnedFd, fd: BorrowedFd<'_>) -> bool {
    let removed = rustix::process::fchdir(proc)
        .and_then(|()| rustix::fs::removexattr(caller::self_path(fd), PROBE_XATTR));
    matches!(removed, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

//! Whether a connection comes from where the daemon itself lives.
//!
//! In the modes of an ordinary user a program inside a sandbox has the caller's uid. Should a workspace ever show the
//! socket of a daemon, that alone must not open it.

use std::fs;
use std::io;

use tokio::net::UnixStream;

/// Why a connection is not served.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OtherUser(u32),
    /// In a pid namespace below ours: in a sandbox.
    InSandbox,
}

/// `None` for a client that may connect: by SO_PEERCRED of the same user, and not in a pid namespace below ours.
pub(crate) fn refuse(stream: &UnixStream) -> io::Result<Option<Refusal>> {
    let peer = stream.peer_cred()?;
    if peer.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Some(Refusal::OtherUser(peer.uid())));
    }
    let process = sbx_sys::peer::pidfd(stream)?;
    let Some(pid) = peer.pid().filter(|pid| *pid > 0) else {
        return Ok(Some(Refusal::InSandbox));
    };
    let inside = is_inside(&fs::read_to_string(format!("/proc/{pid}/status"))?);
    // Only if the pidfd is still alive was `status` about this process, and not about one that got its pid since.
    if !sbx_sys::peer::is_alive(&process) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(inside.then_some(Refusal::InSandbox))
}

/// Whether the process has a pid in a namespace below ours: `NSpid` then has more than one number. A status without
/// that line is not trusted.
fn is_inside(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .is_none_or(|numbers| numbers.split_whitespace().count() != 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_number_is_that_of_another_namespace() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(!is_inside(&status));
        assert!(is_inside("Name:\tx\nNSpid:\t4711\t12\n"));
        assert!(is_inside("Name:\tx\n"));
    }

    #[tokio::test]
    async fn we_may_call_ourselves() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(refuse(&one).unwrap(), None);
    }
}

//! Whether a connection comes from where the daemon itself lives.
//!
//! In the modes of an ordinary user a program inside a sandbox has the caller's uid. Should a workspace ever show the
//! socket of a daemon, that alone must not open it.

use std::fs;
use std::io;

use tokio::net::UnixStream;

/// Why a connection is not served.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    AnotherUser(u32),
    /// In a pid namespace below ours: in a sandbox.
    Inside,
}

/// `None` for somebody who may call.
pub(crate) fn stranger(stream: &UnixStream) -> io::Result<Option<Stranger>> {
    let peer = stream.peer_cred()?;
    if peer.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Some(Stranger::AnotherUser(peer.uid())));
    }
    let process = sbx_sys::peer::pidfd(stream)?;
    let Some(pid) = peer.pid().filter(|pid| *pid > 0) else {
        return Ok(Some(Stranger::Inside));
    };
    let inside = is_inside(&fs::read_to_string(format!("/proc/{pid}/status"))?);
    // Only then was it about this process, and not about one that has its number now.
    if !sbx_sys::peer::is_alive(&process) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(inside.then_some(Stranger::Inside))
}

/// Whether the process has a number in a namespace below ours. What does not say so is not trusted.
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
        assert_eq!(stranger(&one).unwrap(), None);
    }
}

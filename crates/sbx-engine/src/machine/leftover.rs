//! Machines of an earlier daemon that are not taken over, and have to end.
//!
//! The recorded init is found by pid, start time and boot id, and killed; the kernel then kills its whole pid namespace.
//! A daemon that died between the start of init and the write of the record leaves no pid: such an init is found by its
//! socket, which has a known path, and is told to shut down. One that speaks another version, or does not do as it is told, is
//! found by its mounts and killed. Nothing of the sandbox may be removed before.

use std::time::{Duration, Instant};

use sbx_proto::exec::Role;

use super::control::{ControlError, Event, Link};
use super::orphan;
use super::process::Process;
use super::remove_exec_socket;
use crate::sandbox::record::Record;
use crate::state::socket::is_unserved;
use crate::state::{EXEC_SOCKET, SandboxDir};

/// How long such an init has to end, whatever it reports until then.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Ends the machine of a sandbox that is not to run, if there is one.
pub(crate) fn end(dir: &SandboxDir, record: &Record) {
    if let Some(process) = record.init.as_ref().and_then(Process::find) {
        process.end();
    }
    if !dir.path().join(EXEC_SOCKET).exists() {
        return;
    }
    // An init whose daemon died before it wrote the pid into the record.
    let ended = match Link::connect(dir.path(), &record.id, Role::Daemon) {
        Ok(link) => shut_down(link, EXIT_TIMEOUT),
        Err(ControlError::Io(error)) => is_unserved(&error),
        Err(_) => false,
    };
    if !ended {
        orphan::end(dir.path());
    }
    remove_exec_socket(dir);
}

/// Ends the machine of a sandbox whose record cannot be read, if there is one. False when it may still run.
pub(crate) fn end_unknown(dir: &SandboxDir) -> bool {
    let ended = match Link::connect_any(dir.path(), None, Role::Daemon) {
        Ok(link) => shut_down(link, EXIT_TIMEOUT),
        Err(ControlError::Io(error)) => is_unserved(&error),
        Err(_) => false,
    } || orphan::end(dir.path());
    if ended {
        remove_exec_socket(dir);
    }
    ended
}

/// False when it has not ended as far as can be seen.
fn shut_down(mut link: Link, timeout: Duration) -> bool {
    let asked = link
        .sender()
        .map_err(ControlError::Io)
        .and_then(|mut sender| sender.shutdown(Duration::ZERO));
    if asked.is_err() {
        return false;
    }
    let until = Instant::now() + timeout;
    loop {
        match link.next(Some(until.saturating_duration_since(Instant::now()))) {
            Ok(Event::Commands { .. } | Event::MountLost | Event::HandedOver) => {}
            Ok(Event::Gone) => return true,
            Ok(Event::Busy | Event::Quiet) | Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use sbx_proto::exec::Reply;
    use sbx_proto::{PROTOCOL, frame};

    use super::*;
    use crate::state::socket::bind_unix;

    #[test]
    fn an_init_that_never_stops_talking_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind_unix(dir.path(), EXEC_SOCKET).unwrap();
        let init = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let hello = Reply::Hello {
                protocol: PROTOCOL,
                sandbox: "id".into(),
            };
            stream.write_all(&frame::encode(&hello).unwrap()).unwrap();
            let news = frame::encode(&Reply::Commands { running: 1 }).unwrap();
            // Slower than what counts as a flood, and for as long as the connection is open.
            while stream.write_all(&news).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let link = Link::connect_any(dir.path(), None, Role::Daemon).unwrap();
        assert!(!shut_down(link, Duration::from_millis(50)));
        init.join().unwrap();
    }
}

//! Everything of the engine is removed: sandboxes, templates, rules, logs and settings.

use std::fs;
use std::io;
use std::time::Duration;

use sbx_api::Status;

use super::hand_over::{HAND_OVER_TIMEOUT, log_failure};
use crate::error::{EngineError, prepare_error};
use crate::machine::{Machines, leftover};
use crate::sandbox::record::Record;
use crate::state::{StateDir, Trashed};

/// For a daemon that has just been told to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Empties the state directory and removes it, unless something else is in it by now or its place belongs to others. No
/// daemon may serve it.
pub fn reset(state: &StateDir, machines: &Machines) -> Result<(), EngineError> {
    // No daemon starts, and with it no sandbox is created, meanwhile.
    let _lock = state.lock_daemon_within(LOCK_TIMEOUT)?;
    for name in state.names()? {
        let dir = state.sandbox(&name);
        // A sandbox may run without a daemon.
        match Record::read(&dir) {
            Ok(mut record) => {
                leftover::end(&dir, &record);
                record.hand_over_due |= record.status == Status::Running;
                if let Err(error) = machines.hand_over(&record, state.root(), HAND_OVER_TIMEOUT) {
                    log_failure(&name, &error);
                }
            }
            Err(_) => {
                if !leftover::end_unknown(&dir) {
                    return Err(EngineError::Unstoppable(name));
                }
            }
        }
        machines.release(&dir);
    }
    // With it goes what it has outside the state directory.
    for Trashed { dir, origin } in state.in_trash()? {
        if let Ok(record) = Record::read(&dir) {
            machines.remove_storage(&record, &dir, &origin)?;
        }
    }
    let sandboxes = state.sandboxes();
    for path in state.contents()? {
        machines.remove_tree(&path)?;
    }
    machines.release_unused(&sandboxes);
    match fs::remove_dir(state.root()) {
        Err(e) if !may_stay(&e) => Err(prepare_error(state.root(), e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Something else is in the directory, it is a mount point, or its parent may not be written to. It is empty of us all the
/// same.
fn may_stay(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::namespace::Namespace;
    use crate::machine::namespace::helper::Helper;
    use crate::machine::namespace::ids::Facts;
    use crate::state::SOCKET;
    use crate::state::socket::bind_unix;

    fn machines() -> Machines {
        Machines::new(Namespace::new(
            Facts::default(),
            Helper::new().unwrap(),
            None,
        ))
    }

    #[test]
    fn what_is_not_ours_stays() {
        let temp = tempfile::tempdir().unwrap();
        let machines = machines();
        for theirs in [None, Some("notes.txt")] {
            let state = StateDir::locate(temp.path(), Some(&temp.path().join("s"))).unwrap();
            state.claim().unwrap();
            for file in ["policy.json", "settings.json", ".policy.json.1.2.tmp"] {
                fs::File::create(state.root().join(file)).unwrap();
            }
            fs::create_dir_all(state.templates().join("host-root-0/layers")).unwrap();
            fs::create_dir_all(state.sandboxes().join("no name/layers")).unwrap();
            if let Some(theirs) = theirs {
                fs::File::create(state.root().join(theirs)).unwrap();
            }
            reset(&state, &machines).unwrap();
            let left: Vec<_> = fs::read_dir(state.root())
                .into_iter()
                .flatten()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(left, theirs.into_iter().collect::<Vec<_>>());
            assert_eq!(state.root().exists(), theirs.is_some());
        }
    }

    #[test]
    fn a_directory_that_cannot_be_removed_stays() {
        use rustix::io::Errno;
        for errno in [
            Errno::NOTEMPTY,
            Errno::ACCESS,
            Errno::PERM,
            Errno::BUSY,
            Errno::ROFS,
        ] {
            assert!(may_stay(&errno.into()), "{errno}");
        }
        assert!(!may_stay(&Errno::IO.into()));
    }

    #[test]
    fn not_under_a_daemon() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        state.claim().unwrap();
        let _daemon = state.lock_daemon().unwrap();
        let _socket = bind_unix(state.root(), SOCKET).unwrap();
        assert!(reset(&state, &machines()).is_err());
        assert!(state.is_claimed() && state.templates().is_dir());
    }
}

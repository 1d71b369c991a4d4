//! Everything of the engine is removed: sandboxes, templates, rules, logs and settings.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use sbx_api::Status;

use crate::error::EngineError;
use crate::handover::{PATIENT, hand_over, tell};
use crate::ids::{self, Facts};
use crate::lifecycle::prepare_error;
use crate::record::Record;
use crate::recovery::silence;
use crate::setup::Helper;
use crate::statedir::StateDir;

/// For a daemon that has just been told to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Empties the state directory and removes it, unless something else is in it by now or its place belongs to others. No
/// daemon may serve it.
pub fn reset(state: &StateDir, facts: &Facts, helper: &Helper) -> Result<(), EngineError> {
    // Nobody makes a sandbox meanwhile.
    let _lock = state.lock_daemon_within(LOCK_TIMEOUT)?;
    for name in state.names()? {
        let dir = state.sandbox(&name);
        // A sandbox may run without a daemon.
        if let Ok(mut record) = Record::read(&dir) {
            silence(&dir, &record);
            record.hand_over_due |= record.status == Status::Running;
            if let Err(error) = hand_over(helper, state.root(), &record, PATIENT) {
                tell(&name, &error);
            }
        }
    }
    for path in state.contents()? {
        remove(&path, facts, helper)?;
    }
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

/// With subordinate ids, layers and templates belong to ids that only a helper in the user namespace has.
fn remove(path: &Path, facts: &Facts, helper: &Helper) -> Result<(), EngineError> {
    helper.remove_tree(path, || {
        Ok(ids::maps(
            facts,
            ids::pick_mode(facts, None),
            ids::Used::default(),
        )?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::bind_unix;
    use crate::statedir::SOCKET;

    #[test]
    fn what_is_not_ours_stays() {
        let temp = tempfile::tempdir().unwrap();
        let facts = Facts::default();
        let helper = Helper::new().unwrap();
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
            reset(&state, &facts, &helper).unwrap();
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
        let helper = Helper::new().unwrap();
        assert!(reset(&state, &Facts::default(), &helper).is_err());
        assert!(state.is_claimed() && state.templates().is_dir());
    }
}

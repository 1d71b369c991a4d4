//! Looking at sandboxes without a daemon. Nothing is created, changed or started.

use std::io;

use sbx_api::{Sandbox, Status};
use sbx_proto::exec::Role;

use crate::error::{EngineError, chain};
use crate::machine::control::{ControlError, Link};
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{Record, RecordError};
use crate::sandbox::view;
use crate::state::{SandboxDir, StateDir};
use crate::workspace::hints::Mounts;

/// All sandboxes by name; a damaged one is in the list with a warning.
pub fn list(state: &StateDir) -> Result<Vec<Sandbox>, EngineError> {
    if !state.is_claimed() {
        return Ok(Vec::new());
    }
    let mounts = Mounts::now();
    let mut sandboxes = Vec::new();
    for name in state.names()? {
        let dir = state.sandbox(&name);
        match Record::read(&dir) {
            Ok(record) => sandboxes.push(observed(record, &dir, &mounts)),
            // Being created or removed at this very moment.
            Err(RecordError::Missing { .. }) => {}
            Err(error) => sandboxes.push(view::damaged(name, &dir, &error)),
        }
    }
    Ok(sandboxes)
}

/// Whether there is one of that name, without asking a daemon or an init.
pub fn is_known(state: &StateDir, name: &SandboxName) -> bool {
    let missing = |error| matches!(error, RecordError::Missing { .. });
    state.is_claimed() && !Record::read(&state.sandbox(name)).is_err_and(missing)
}

pub fn inspect(state: &StateDir, name: &SandboxName) -> Result<Sandbox, EngineError> {
    let not_found = || EngineError::NotFound(name.to_string());
    if !state.is_claimed() {
        return Err(not_found());
    }
    let dir = state.sandbox(name);
    match Record::read(&dir) {
        Ok(record) => Ok(observed(record, &dir, &Mounts::now())),
        Err(RecordError::Missing { .. }) => Err(not_found()),
        Err(error) => Ok(view::damaged(name.clone(), &dir, &error)),
    }
}

/// The record says what a daemon knew last. Only an init that listens is running, and what it says does not matter:
/// processes inside go on under an init that is silent. Without a daemon nothing is created or removed: what was
/// interrupted is left for the next one to sweep.
fn observed(mut record: Record, dir: &SandboxDir, mounts: &Mounts) -> Sandbox {
    let reason = match record.status {
        Status::Stopped => None,
        Status::Running => match Link::connect(dir.path(), &record.id, Role::Client) {
            Ok(_) => None,
            Err(error) if has_ended(&error) => Some("crashed"),
            Err(error) => {
                record.warnings.push(format!(
                    "{}; processes may be running in it, `sbx stop {}` ends them",
                    chain(&error),
                    record.name
                ));
                None
            }
        },
        Status::Creating => Some("create interrupted"),
        Status::Removing => Some("removal interrupted"),
    };
    if let Some(reason) = reason {
        record.status = Status::Stopped;
        record.stop_reason = Some(reason.into());
        record.stop_at = None;
    }
    view::sandbox(record, 0, mounts)
}

/// Whether no process is behind the socket.
fn has_ended(error: &ControlError) -> bool {
    match error {
        // No process takes what is sent (EPIPE, ECONNRESET).
        ControlError::Io(error) => error.kind() != io::ErrorKind::WouldBlock,
        ControlError::Ended => true,
        ControlError::TimedOut
        | ControlError::Violation(_)
        | ControlError::Refused(_)
        | ControlError::OtherVersion(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use sbx_proto::plan::Mode;

    use super::*;
    use crate::sandbox::record::tests::example;
    use crate::state::socket::bind_unix;
    use crate::state::{Durability, EXEC_SOCKET, RECORD, write_atomic};

    #[test]
    fn a_silent_init_is_not_a_stopped_one() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        state.claim().unwrap();
        let name = SandboxName::parse("silent").unwrap();
        let dir = state.sandbox(&name);
        std::fs::create_dir(dir.path()).unwrap();
        let mut record = example("silent", Mode::Root);
        record.status = Status::Running;
        record.write(&dir, Durability::Soon).unwrap();
        // The kernel queues connections (`listen` backlog), and nothing answers.
        let listener = bind_unix(dir.path(), EXEC_SOCKET).unwrap();
        let shown = inspect(&state, &name).unwrap();
        assert_eq!((shown.status, shown.stop_reason), (Status::Running, None));
        let [warning] = shown.warnings.as_slice() else {
            panic!("{:?}", shown.warnings);
        };
        assert!(warning.contains("did not answer in time"), "{warning}");
        drop(listener);
        let shown = inspect(&state, &name).unwrap();
        assert_eq!((shown.status, shown.warnings.len()), (Status::Stopped, 0));
    }

    #[test]
    fn no_work_is_under_way_without_a_daemon() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        state.claim().unwrap();
        for (name, status, reason) in [
            ("made", Status::Creating, "create interrupted"),
            ("gone", Status::Removing, "removal interrupted"),
        ] {
            let name = SandboxName::parse(name).unwrap();
            let dir = state.sandbox(&name);
            std::fs::create_dir(dir.path()).unwrap();
            let mut record = example(name.as_str(), Mode::Root);
            record.status = status;
            record.write(&dir, Durability::Soon).unwrap();
            let shown = inspect(&state, &name).unwrap();
            assert_eq!(shown.status, Status::Stopped);
            assert_eq!(shown.stop_reason.as_deref(), Some(reason));
        }
    }

    #[test]
    fn one_damaged_record_does_not_hide_the_others() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        assert_eq!(list(&state).unwrap(), vec![]);
        state.claim().unwrap();
        for name in ["aa", "bb", "cc"] {
            let dir = state.sandbox(&SandboxName::parse(name).unwrap());
            std::fs::create_dir(dir.path()).unwrap();
            let mut record = example(name, Mode::Root);
            record.status = Status::Running;
            record.write(&dir, Durability::Soon).unwrap();
        }
        write_atomic(
            &state.sandboxes().join("bb"),
            RECORD,
            b"{",
            Durability::Soon,
        )
        .unwrap();
        let shown: Vec<_> = list(&state)
            .unwrap()
            .into_iter()
            .map(|s| (s.name, s.status, s.stop_reason.unwrap(), s.warnings.len()))
            .collect();
        let row = |name: &str, reason: &str, warnings| {
            (
                name.to_owned(),
                Status::Stopped,
                reason.to_owned(),
                warnings,
            )
        };
        assert_eq!(
            shown,
            [
                row("aa", "crashed", 0),
                row("bb", "damaged", 1),
                row("cc", "crashed", 0),
            ]
        );
    }
}

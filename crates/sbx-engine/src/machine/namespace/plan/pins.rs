//! What keeps read-only and masked parts of a writable workspace in their places.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::sandbox::record::WorkspaceRecord;

/// The directories between a writable workspace and a read-only one below it, each a mount of its own. A mount
/// point cannot be renamed by a process whose mount namespace has the mount, and the system-call profile sees to it that
/// commands have no other; without them `mv` of a directory in between would take the read-only files out from
/// under their mount, to a place where the next start shows them writable.
pub(super) fn pins(workspaces: &[WorkspaceRecord]) -> Vec<WorkspaceRecord> {
    let mut pins: Vec<WorkspaceRecord> = Vec::new();
    // One with a place of its own lies in no other, inside or on the host.
    let (elsewhere, usual): (Vec<_>, Vec<_>) =
        workspaces.iter().partition(|it| it.target.is_some());
    for outer in elsewhere.into_iter().filter(|outer| !outer.readonly) {
        pins.extend(pins_elsewhere(outer));
    }
    let readonly = usual.iter().filter(|workspace| workspace.readonly);
    let mut held: Vec<PathBuf> = readonly.map(|it| it.path.to_path_buf()).collect();
    held.extend(usual.iter().flat_map(|it| masks(std::slice::from_ref(*it))));
    for inner in &held {
        for between in inner.ancestors().skip(1) {
            // In a read-only one nothing can be renamed.
            let Some(outer) = innermost(workspaces, between).filter(|outer| !outer.readonly) else {
                continue;
            };
            let mut known = workspaces.iter().chain(&pins);
            if known.all(|known| known.path.as_path() != between) {
                pins.push(WorkspaceRecord {
                    path: between.into(),
                    given: None,
                    // Its inode has not been looked up.
                    identity: None,
                    masked: Vec::new(),
                    ..outer.clone()
                });
            }
        }
    }
    pins
}

/// The directories between a workspace at a place of its own and what is masked in it.
fn pins_elsewhere(outer: &WorkspaceRecord) -> Vec<WorkspaceRecord> {
    let masked = outer.masked.iter();
    let between: BTreeSet<&Path> = masked
        .flat_map(|below| below.as_path().ancestors().skip(1))
        .filter(|between| !between.as_os_str().is_empty())
        .collect();
    let pin = |between: &Path| WorkspaceRecord {
        path: outer.path.as_path().join(between).as_path().into(),
        target: Some(outer.place().join(between).as_path().into()),
        identity: None,
        masked: Vec::new(),
        ..outer.clone()
    };
    between.into_iter().map(pin).collect()
}

/// Where inside something is masked.
pub(super) fn masks(workspaces: &[WorkspaceRecord]) -> Vec<PathBuf> {
    let of_one = |workspace: &WorkspaceRecord| {
        let place = workspace.place().to_path_buf();
        let masked = workspace.masked.clone().into_iter();
        masked.map(move |below| place.join(below.as_path()))
    };
    workspaces.iter().flat_map(of_one).collect()
}

/// The workspace that a directory lies in, as programs inside see it.
pub(super) fn innermost<'a>(
    workspaces: &'a [WorkspaceRecord],
    path: &Path,
) -> Option<&'a WorkspaceRecord> {
    let outer = workspaces
        .iter()
        .filter(|outer| outer.target.is_none())
        .filter(|outer| path != outer.path.as_path() && path.starts_with(outer.path.as_path()));
    outer.max_by_key(|outer| outer.path.as_bytes().len())
}

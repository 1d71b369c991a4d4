//! Whether what is at a workspace's path is what was shared before.
//!
//! Device and inode number tell, for as long as the machine runs: devices are numbered anew at each boot.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sbx_proto::plan::Node;
use sbx_sys::mountinfo::Entry;

use super::error::look_error;
use super::guard::Guard;
use super::{WorkspaceError, aliases};
use crate::machine::process::boot_id;
use crate::sandbox::record::{Identity, WorkspaceKind, WorkspaceRecord};

/// The workspaces of the last start, as far as they are still the same directories and files.
#[derive(Debug)]
pub(crate) struct StillShared {
    pub(crate) writable: Vec<(WorkspaceRecord, Node)>,
    pub(crate) readonly: Vec<Node>,
    /// Those that are not where they were, of either kind.
    pub(crate) moved: Vec<Node>,
    /// Why a writable one is not there.
    pub(crate) lost: Option<WorkspaceError>,
}

impl StillShared {
    /// What a walk through one of them leaves to others.
    pub(crate) fn excluded(&self) -> Vec<Node> {
        let writable = self.writable.iter().map(|(_, node)| *node);
        let others = self.readonly.iter().chain(&self.moved).copied();
        others.chain(writable).collect()
    }
}

pub(crate) fn still_shared(
    workspaces: &[WorkspaceRecord],
    state: &Path,
) -> Result<StillShared, WorkspaceError> {
    let guard = Guard::new(state)?;
    let mut shared = StillShared {
        writable: Vec::new(),
        readonly: Vec::new(),
        moved: Vec::new(),
        lost: None,
    };
    for workspace in workspaces {
        match same_node(workspace, &guard) {
            Ok(node) if workspace.readonly => shared.readonly.push(node),
            Ok(node) => shared.writable.push((workspace.clone(), node)),
            Err(error) => {
                // Wherever it was moved.
                shared.moved.extend(known_node(workspace));
                if !workspace.readonly {
                    shared.lost = Some(error);
                }
            }
        }
    }
    Ok(shared)
}

fn same_node(workspace: &WorkspaceRecord, guard: &Guard) -> Result<Node, WorkspaceError> {
    let path = workspace.path.as_path();
    guard.check_state(path)?;
    let meta = fs::symlink_metadata(path).map_err(|e| look_error(path, e))?;
    match (&workspace.identity, identity_of(&meta)) {
        (Some(before), Some(now)) if before.is(&now) => Ok(node_of(&meta)),
        _ => Err(WorkspaceError::Moved(path.to_path_buf())),
    }
}

/// Of this boot: devices are numbered anew at every one.
fn known_node(workspace: &WorkspaceRecord) -> Option<Node> {
    let boot_id = boot_id().ok()?;
    let identity = workspace.identity.as_ref();
    let known = identity.filter(|identity| identity.boot_id == boot_id);
    known.map(Identity::node)
}

pub(super) fn is_another(before: &WorkspaceRecord, now: &WorkspaceRecord) -> bool {
    match (&before.identity, &now.identity) {
        (Some(before), Some(now)) => !before.is(now),
        (None, _) | (_, None) => false,
    }
}

/// Whether programs inside could have put it there, by renaming what is above it, and have something of it. In place of
/// a read-only directory: they have that one under another name then. And in place of what another user owns: they are
/// shown as its owner what they could not enter. A file is replaced by every editor; and what lies in no writable
/// workspace only the user can replace.
pub(super) fn gains_by_swap(
    now: &WorkspaceRecord,
    all: &[WorkspaceRecord],
    mounts: &[Entry],
) -> bool {
    let own = aliases::names(mounts, now.path.as_path());
    let of_directory = now.readonly && now.kind == WorkspaceKind::Directory;
    let mut around = all.iter().filter(|outer| {
        let places = aliases::names_of_all(mounts, outer.path.as_path());
        let lies_in =
            |place: &PathBuf| own.iter().any(|own| own != place && own.starts_with(place));
        !outer.readonly && outer.path != now.path && places.iter().any(lies_in)
    });
    around.any(|outer| of_directory || (now.uid, now.gid) != (outer.uid, outer.gid))
}

/// None on a machine that does not say which boot this is: it has no identities to compare.
pub(super) fn identity_of(meta: &Metadata) -> Option<Identity> {
    boot_id().ok().map(|boot_id| Identity {
        device: meta.dev(),
        inode: meta.ino(),
        boot_id,
    })
}

/// The same for every path (bind mounts too) that leads to a directory.
pub(super) fn node_of(meta: &Metadata) -> Node {
    Node {
        device: meta.dev(),
        inode: meta.ino(),
    }
}

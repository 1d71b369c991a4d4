//! What of the host is visible in a sandbox, for `inspect`.

use std::path::Path;

use sbx_api::{Mount, MountKind};

use super::pins::masks;
use crate::machine::namespace::template::{HostLayout, OverlayDir};
use crate::sandbox::record::{Record, WorkspaceRecord};

/// What of the host is visible, for `inspect`.
pub fn mounts(workspaces: &[WorkspaceRecord], record: &Record, layout: &HostLayout) -> Vec<Mount> {
    let mount = |target: &Path, source: &Path, readonly, kind| Mount {
        target: target.to_string_lossy().into_owned(),
        source: source.to_string_lossy().into_owned(),
        readonly,
        kind,
    };
    let overlay = |dir: &OverlayDir, kind| {
        let lowest = dir.lowers.last().unwrap_or(&dir.target);
        mount(&dir.target, lowest, false, kind)
    };
    let masked = masks(workspaces);
    let masked = masked
        .iter()
        .map(|target| mount(target, Path::new("none"), true, MountKind::Mask));
    let workspaces = workspaces.iter().map(workspace_mount);
    let git = record.git_directories().into_iter().map(|directory| {
        let path = directory.path.as_path();
        mount(path, path, directory.readonly, MountKind::Git)
    });
    let root = mount(
        Path::new("/"),
        &layout.root_lower,
        false,
        MountKind::Template,
    );
    let overlays = layout
        .overlays
        .iter()
        .map(|d| overlay(d, MountKind::Template));
    let binds = layout.system.iter().chain(&layout.binds);
    let binds = binds.map(|b| mount(&b.target, &b.source, true, b.kind));
    let caches = layout.caches.iter().map(|d| overlay(d, MountKind::Cache));
    workspaces
        .chain(git)
        .chain(masked)
        .chain([root])
        .chain(overlays)
        .chain(binds)
        .chain(caches)
        .collect()
}

/// The same of a workspace.
pub(crate) fn workspace_mount(workspace: &WorkspaceRecord) -> Mount {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Mount {
        target: text(workspace.place()),
        source: text(workspace.path.as_path()),
        readonly: workspace.readonly,
        kind: MountKind::Workspace,
    }
}

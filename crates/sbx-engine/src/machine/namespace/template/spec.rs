//! What is to be built, and which directories of the host are shown at all.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sbx_proto::OsBytes;
use sbx_proto::plan::Mode;
use sbx_sys::mountinfo::points_below;
use serde::{Deserialize, Serialize};

use super::copy::may_enter;

/// Counts changes of what [`super::build`] makes; part of the fingerprint.
pub(super) const FORMAT: u32 = 15;

/// The allow-list: nothing else of the host's root is ever a layer.
const TOPS: &[&str] = &[
    "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt",
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    pub(super) format: u32,
    pub(super) mode: Mode,
    /// The host's root; another directory in tests.
    pub(super) host: PathBuf,
    pub(super) tops: Vec<Top>,
    /// What is mounted below them. An overlay shows what lies under a mount, not what is mounted.
    pub(super) mounts: Vec<OsBytes>,
    /// Directories below them that nothing is taken of: what programs in sandboxes can write, and our own state.
    pub(super) left_out: Vec<OsBytes>,
}

/// A top-level directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Top {
    pub(super) name: String,
    pub(super) kind: TopKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum TopKind {
    /// Made again as it is (`/bin -> usr/bin`).
    Link(PathBuf),
    Dir,
    /// Others may not enter it: an empty directory inside.
    Closed,
}

impl Spec {
    pub(super) fn of(host: &Path, mode: Mode, mountinfo: &[u8], left_out: &[PathBuf]) -> Self {
        let tops = tops(host);
        let shown = |path: &&PathBuf| tops.iter().any(|t| path.starts_with(host.join(&t.name)));
        let left_out = left_out.iter().filter(shown);
        let left_out = left_out.map(|path| path.as_path().into()).collect();
        let dirs = tops.iter().filter(|top| top.kind == TopKind::Dir);
        let mounts = dirs.flat_map(|top| points_below(mountinfo, &host.join(&top.name)));
        Self {
            format: FORMAT,
            mode,
            host: host.to_owned(),
            mounts: mounts.map(|point| point.as_path().into()).collect(),
            left_out,
            tops,
        }
    }

    pub(super) fn mounts(&self) -> BTreeSet<PathBuf> {
        self.mounts.iter().map(OsBytes::to_path_buf).collect()
    }

    pub(super) fn dirs(&self) -> impl Iterator<Item = &str> {
        self.tops
            .iter()
            .filter(|top| top.kind == TopKind::Dir)
            .map(|top| top.name.as_str())
    }
}

/// Whether a path of the host is shown by the template itself.
pub(super) fn is_system(path: &Path) -> bool {
    let mut parts = path.components().skip(1);
    parts
        .next()
        .and_then(|top| top.as_os_str().to_str())
        .is_some_and(|top| TOPS.contains(&top))
}

fn tops(host: &Path) -> Vec<Top> {
    TOPS.iter()
        .filter_map(|name| {
            let path = host.join(name);
            let meta = fs::symlink_metadata(&path).ok()?;
            let kind = if meta.file_type().is_symlink() {
                TopKind::Link(fs::read_link(&path).ok()?)
            } else if !meta.is_dir() {
                return None;
            } else if may_enter(meta.mode()) {
                TopKind::Dir
            } else {
                TopKind::Closed
            };
            Some(Top {
                name: (*name).to_owned(),
                kind,
            })
        })
        .collect()
}

/// A name for the sandbox's own layer of `target`: `/usr/local` is `usr-local`.
pub(super) fn layer_name(target: &Path) -> String {
    let name: String = target
        .as_os_str()
        .as_bytes()
        .iter()
        .map(|byte| match byte.to_ascii_lowercase() {
            byte @ (b'a'..=b'z' | b'0'..=b'9') => char::from(byte),
            _ => '-',
        })
        .collect();
    name.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_paths_are_decided_by_component() {
        assert!(is_system(Path::new("/usr/bin")) && is_system(Path::new("/lib64")));
        assert!(
            !is_system(Path::new("/usrlocal"))
                && !is_system(Path::new("/"))
                && !is_system(Path::new("/home/usr"))
        );
        assert_eq!(
            layer_name(Path::new("/home/agent/.cargo/registry")),
            "home-agent--cargo-registry"
        );
    }
}

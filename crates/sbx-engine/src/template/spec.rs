//! What is to be built, and which directories of the host are shown at all.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sbx_proto::OsBytes;
use sbx_proto::plan::Mode;
use serde::{Deserialize, Serialize};

use super::copy::may_enter;

/// Counts changes of what [`super::build`] makes; part of the fingerprint.
pub(super) const FORMAT: u32 = 13;

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
        let mounts = dirs.flat_map(|top| mounts_below(mountinfo, &host.join(&top.name)));
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

/// The mount points strictly below `dir`, from the text of `/proc/self/mountinfo`.
pub(super) fn mounts_below(mountinfo: &[u8], dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|field| PathBuf::from(OsString::from_vec(unescape(field))))
        .filter(|point| point != dir && point.starts_with(dir))
        .collect();
    found.sort();
    found.dedup();
    found
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

/// The kernel writes blanks, newlines and backslashes as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
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
    fn mount_points_below_a_directory() {
        let info = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:1 / /usr rw - x x rw\n29 27 0:1 / /usr/my\\040dir rw - x x rw\n\
            30 27 0:1 / /usrx rw - x x rw\n";
        assert_eq!(
            mounts_below(info, Path::new("/usr")),
            [PathBuf::from("/usr/my dir")]
        );
        assert_eq!(mounts_below(info, Path::new("/opt")), Vec::<PathBuf>::new());
    }

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

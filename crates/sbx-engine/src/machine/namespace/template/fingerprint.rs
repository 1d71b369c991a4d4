//! The host's version, from what a package manager or an administrator changes. A few hundred `stat` calls:
//! it is taken at every create and start, so it cannot look at every file.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;
use sbx_proto::OsBytes;

use super::spec::{FORMAT, Spec};
use crate::machine::namespace::isolation::mode_name;

/// Changed by every installation, or the source of what `/etc` of a template holds.
const FILES: &[&str] = &[
    "usr/lib/os-release",
    "etc/os-release",
    "etc/passwd",
    "etc/group",
    "etc/ld.so.cache",
    "etc/localtime",
    "etc/alternatives",
    "etc/ssl/certs",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/apt/apt.conf.d",
    "etc/yum.repos.d",
    "var/lib/dpkg/status",
    "var/lib/apt/lists",
    "var/lib/rpm/rpmdb.sqlite",
    "var/lib/rpm/Packages",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/Packages.db",
    "var/lib/pacman/local",
    "lib/apk/db/installed",
];
/// Directories of many plain files: listing them would cost more than all the rest.
const FLAT: &[&str] = &["usr/bin", "usr/sbin", "usr/include", "usr/share"];
/// Directories whose first-level directories count as well.
const NESTED: &[&str] = &[
    "usr",
    "usr/lib",
    "usr/local",
    "usr/local/lib",
    "usr/local/share",
    "opt",
];

const OTHERS_WRITE: u32 = 0o002;

/// Sixteen hexadecimal digits.
pub(super) fn fingerprint(spec: &Spec) -> String {
    let owners = TrustedOwners::of(spec);
    let mut hash = Fnv::new();
    hash.add(&FORMAT.to_le_bytes());
    hash.add(mode_name(spec.mode).as_bytes());
    for top in &spec.tops {
        hash.add(format!("{top:?}").as_bytes());
        hash.stat_trusted(&spec.host.join(&top.name), &owners);
    }
    for point in &spec.mounts {
        hash.add(point.as_bytes());
    }
    for path in FILES.iter().chain(FLAT) {
        hash.stat(&spec.host.join(path));
    }
    for path in NESTED {
        hash.children(&spec.host.join(path), &owners);
    }
    format!("{:016x}", hash.0)
}

/// Directories that only root or the caller changes. Another user who can change one at will would
/// have a template made each time.
struct TrustedOwners<'a> {
    owners: BTreeSet<u32>,
    left_out: &'a [OsBytes],
}

impl<'a> TrustedOwners<'a> {
    fn of(spec: &'a Spec) -> Self {
        // In a user namespace the host's root is the owner of the host's top directory.
        let root = fs::metadata(&spec.host).map_or(0, |meta| meta.uid());
        Self {
            owners: [0, root, geteuid().as_raw()].into(),
            left_out: &spec.left_out,
        }
    }

    fn counts(&self, path: &Path, meta: &Metadata) -> bool {
        self.owners.contains(&meta.uid())
            && meta.mode() & OTHERS_WRITE == 0
            && !self.left_out.iter().any(|left| left.as_path() == path)
    }
}

/// FNV-1a: equal in every build of this program, unlike the standard library's hasher.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.0 = (self.0 ^ 0xff).wrapping_mul(0x0100_0000_01b3);
    }

    fn stat(&mut self, path: &Path) {
        self.add_metadata(fs::symlink_metadata(path).ok().as_ref());
    }

    fn add_metadata(&mut self, meta: Option<&Metadata>) {
        let Some(meta) = meta else {
            return self.add(b"-");
        };
        self.add(&meta.mtime().to_le_bytes());
        self.add(&meta.mtime_nsec().to_le_bytes());
        self.add(&meta.size().to_le_bytes());
        self.add(&meta.mode().to_le_bytes());
    }

    /// A directory of [`TrustedOwners`]; any other is as good as not there.
    fn stat_trusted(&mut self, path: &Path, owners: &TrustedOwners<'_>) -> bool {
        let meta = fs::symlink_metadata(path).ok();
        let counted = meta.filter(|meta| owners.counts(path, meta));
        self.add_metadata(counted.as_ref());
        counted.is_some()
    }

    /// The same for those in it, too.
    fn children(&mut self, dir: &Path, owners: &TrustedOwners<'_>) {
        if !self.stat_trusted(dir, owners) {
            return;
        }
        let Ok(entries) = fs::read_dir(dir) else {
            return;
        };
        let mut names: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        for name in names {
            self.add(name.as_bytes());
            self.stat_trusted(&dir.join(&name), owners);
        }
    }
}

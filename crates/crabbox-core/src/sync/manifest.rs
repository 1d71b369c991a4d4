//! The list of what is sent: sorted, each entry as it was when it was looked at.

mod build;
mod share;

use std::fmt::Write as _;
use std::path::Path;

use rustix::fs::{FileType, Stat};
use sha2::{Digest as _, Sha256};

use super::RelPath;
use super::path::some_of;

pub(super) use build::from_git;

/// Raised when the meaning of a fingerprint changes.
const FINGERPRINT: &[u8] = b"crabbox-manifest-1\0";
const MOST_EXAMPLES: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// In the order of their bytes.
    pub entries: Vec<Entry>,
    /// The sum of the sizes.
    pub bytes: u64,
    /// Tracked, not excluded, and not in the work tree.
    pub deleted: Vec<RelPath>,
    /// Tracked files that a built-in pattern would have dropped.
    pub protected: Vec<Protected>,
    /// What is there and cannot be sent.
    pub skipped: Vec<Skipped>,
    /// What git complained about, such as a directory that cannot be read.
    pub complaints: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: RelPath,
    pub kind: Kind,
    pub size: u64,
    /// Permissions only.
    pub mode: u32,
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    pub tracked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Symlink,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protected {
    pub path: RelPath,
    pub pattern: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub path: RelPath,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    Submodule,
    /// A repository in a directory that this one does not track.
    NestedRepository,
    /// A pipe, a socket or a device.
    Special,
}

impl Manifest {
    /// A digest of paths, kinds, permissions, sizes and times. Equal digests mean that nothing was changed in between,
    /// unless a program set the times back.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(FINGERPRINT);
        for entry in &self.entries {
            let path = entry.path.as_bytes();
            let kind = match entry.kind {
                Kind::File => 0_u8,
                Kind::Symlink => 1,
            };
            // The length in front: no two lists can be written the same way.
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path);
            hash.update([kind]);
            hash.update(entry.mode.to_le_bytes());
            hash.update(entry.size.to_le_bytes());
            hash.update(entry.modified.0.to_le_bytes());
            hash.update(entry.modified.1.to_le_bytes());
        }
        let mut text = String::with_capacity(64);
        for byte in hash.finalize() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// What the user should know about the list, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.protected.is_empty() {
            let files: Vec<String> = self
                .protected
                .iter()
                .map(|file| format!("{} ({})", file.path, file.pattern))
                .collect();
            lines.push(format!(
                "warning: protected {} tracked files from built-in artifact excludes: {}",
                files.len(),
                some_of(&files, MOST_EXAMPLES)
            ));
        }
        for why in [Why::Submodule, Why::NestedRepository, Why::Special] {
            let of_this_kind = self.skipped.iter().filter(|skipped| skipped.why == why);
            let paths: Vec<&RelPath> = of_this_kind.map(|skipped| &skipped.path).collect();
            if !paths.is_empty() {
                let what = match why {
                    Why::Submodule => "submodules are",
                    Why::NestedRepository => "nested repositories are",
                    Why::Special => "pipes, sockets and devices are",
                };
                let examples = some_of(&paths, MOST_EXAMPLES);
                lines.push(format!("warning: {what} not sent: {examples}"));
            }
        }
        let complaints = self.complaints.iter().take(MOST_EXAMPLES);
        lines.extend(complaints.map(|words| format!("warning: git: {words}")));
        lines
    }

    pub(super) fn empty() -> Self {
        Self {
            entries: Vec::new(),
            bytes: 0,
            deleted: Vec::new(),
            protected: Vec::new(),
            skipped: Vec::new(),
            complaints: Vec::new(),
        }
    }

    /// From the entries of a walk, in any order.
    pub(super) fn of_walk(mut entries: Vec<Entry>, skipped: Vec<Skipped>) -> Self {
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Self {
            bytes: entries.iter().map(|entry| entry.size).sum(),
            entries,
            skipped,
            ..Self::empty()
        }
    }
}

/// What a file system entry is, as far as sending goes.
pub(super) enum Found {
    Sendable(Kind),
    Directory,
    Special,
}

pub(super) fn kind_of(stat: &Stat) -> Found {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Found::Sendable(Kind::File),
        FileType::Symlink => Found::Sendable(Kind::Symlink),
        FileType::Directory => Found::Directory,
        _ => Found::Special,
    }
}

impl Entry {
    pub(super) fn new(path: RelPath, kind: Kind, stat: &Stat, tracked: bool) -> Self {
        Self {
            path,
            kind,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: permissions(stat.st_mode),
            modified: (
                stat.st_mtime,
                u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            ),
            tracked,
        }
    }
}

/// Without setuid and setgid: what is unpacked belongs to the user who unpacks it, which may be root.
pub(super) fn permissions(mode: u32) -> u32 {
    mode & 0o777
}

/// The message that all failures to list share.
pub(super) fn cannot_list(root: &Path, why: impl std::fmt::Display) -> crate::Failure {
    let message = format!("build sync file list: {} {why}", root.display());
    crate::Failure::new(crate::Code::Sync, message)
}

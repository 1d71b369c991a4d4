//! What a sync must send and remove, where the sandbox has most of the tree already.
//!
//! One engine for all providers that are sent an archive. The steps of a sync of a sandbox that is used again
//! ([`crate::provider::Upload::delta`] is true):
//!
//! 1. Run [`listing_command`] in the sandbox and give its output to [`RemoteTree::parse`]. Only GNU find and
//!    GNU tar can list a tree so; where both are missing, or the listing fails, send the whole archive.
//! 2. [`crate::sync::Prepared::delta`] compares it with the manifest. Nothing is asked of any file's content.
//! 3. If [`Delta::is_empty`], the sync is done. If [`Delta::is_large`], send the whole archive: a shell takes longer for
//!    thousands of single files than tar for all of them.
//! 4. Pack with [`crate::sync::Prepared::part`] and apply it:
//!    - staging *inside* the workdir (which may be a mount): [`Delta::changes`] is a script for [`inside`], which moves
//!      what has to go into a backup and the unpacked files in, and can undo both;
//!    - staging *beside* the workdir, which is swapped: [`sibling`] clones the old tree with hard links, removes what has
//!      to go from the clone, and leaves unpacking and the swap to the provider.
//!
//! Files that were changed here in the second of the last sync's list, in the one before it, or later, are sent in any case: times
//! in the sandbox have no fractions. Not seen: a file whose content was changed without a change of its size and its
//! permissions, and whose time was set back, here or there; and, by tar, sockets in the sandbox. `--full-resync` sends everything.

mod changes;
pub mod inside;
mod remote;
pub mod sibling;

use std::collections::BTreeSet;

use super::manifest::{Entry, Kind, Manifest};
use crate::provider::SyncMode;

pub use changes::shell_quote;
pub use remote::{RemoteEntry, RemoteKind, RemoteTree, listing_command};

/// Directories that a change may touch, and paths: more are faster sent whole.
const MAX_DIRECTORIES: usize = 400;
const MAX_PATHS: usize = 4000;

/// What differs between here and the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Which of the manifest's entries are sent.
    pub send: Vec<usize>,
    /// Paths in the sandbox that have to go before: stale ones, with all below them, and ones that are replaced.
    /// Nothing goes in [`SyncMode::Merge`].
    pub displaced: Vec<Vec<u8>>,
    /// How many entries are as they should be.
    pub unchanged: usize,
}

impl Delta {
    /// A file that was changed in the second `before` or later is sent in any case. `target` is what a symlink here
    /// points to.
    pub(super) fn between(
        manifest: &Manifest,
        remote: &RemoteTree,
        mode: SyncMode,
        before: i64,
        mut target: impl FnMut(&Entry) -> Option<Vec<u8>>,
    ) -> Self {
        let mut delta = Self::default();
        let mut wanted = BTreeSet::new();
        let mut same = BTreeSet::new();
        for (index, entry) in manifest.entries.iter().enumerate() {
            let path = entry.path.as_bytes();
            wanted.extend(ancestors(path));
            let there = remote.get(path);
            let settled = entry.kind != Kind::File || entry.modified.0 < before;
            if settled && there.is_some_and(|there| is_same(entry, there, &mut target)) {
                same.insert(path);
                delta.unchanged += 1;
            } else {
                delta.send.push(index);
            }
        }
        if mode == SyncMode::Replace {
            delta.displaced = obstructing_paths(remote, &wanted, &same);
        }
        delta
    }

    pub fn is_empty(&self) -> bool {
        self.send.is_empty() && self.displaced.is_empty()
    }

    pub fn is_large(&self, manifest: &Manifest) -> bool {
        if self.send.len() + self.displaced.len() > MAX_PATHS {
            return true;
        }
        let sent = self.sent(manifest).map(|entry| entry.path.as_bytes());
        let gone = self.displaced.iter().map(Vec::as_slice);
        let parents: BTreeSet<_> = sent.chain(gone).map(parent).collect();
        parents.len() > MAX_DIRECTORIES
    }

    pub fn sent<'m>(&self, manifest: &'m Manifest) -> impl Iterator<Item = &'m Entry> {
        self.send
            .iter()
            .filter_map(|index| manifest.entries.get(*index))
    }
}

/// The uppermost paths that are neither wanted as directories nor the same as here.
fn obstructing_paths(
    remote: &RemoteTree,
    wanted: &BTreeSet<&[u8]>,
    same: &BTreeSet<&[u8]>,
) -> Vec<Vec<u8>> {
    let stays = |path: &[u8], entry: &RemoteEntry| {
        same.contains(path) || (wanted.contains(path) && entry.kind == RemoteKind::Directory)
    };
    let is_uppermost = |path: &[u8]| {
        let above = parent(path);
        above.is_empty() || remote.get(above).is_some_and(|entry| stays(above, entry))
    };
    remote
        .iter()
        .filter(|(path, entry)| !stays(path, entry) && is_uppermost(path))
        .map(|(path, _)| path.to_vec())
        .collect()
}

fn is_same(
    entry: &Entry,
    there: &RemoteEntry,
    target: &mut impl FnMut(&Entry) -> Option<Vec<u8>>,
) -> bool {
    match (entry.kind, &there.kind) {
        // What was unpacked has the second of its modification and no fraction: what has one was changed there.
        (Kind::File, RemoteKind::File) => {
            there.size == entry.size
                && there.mode == entry.mode
                && there.modified == Some((entry.modified.0.max(0), 0))
        }
        (Kind::Symlink, RemoteKind::Symlink(to)) => target(entry).as_ref() == Some(to),
        _ => false,
    }
}

/// The directory of a path; empty for one at the top.
fn parent(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    slash.and_then(|at| path.get(..at)).unwrap_or_default()
}

fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(parent(path)), |path| Some(parent(path)))
        .take_while(|path| !path.is_empty())
}

#[cfg(test)]
mod tests;

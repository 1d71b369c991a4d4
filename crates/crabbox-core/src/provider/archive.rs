//! What a provider does with the repository's archive.
//!
//! The lifecycle decides and this acts: it calls `upload`, then `replace` if stale files are to go, then `discard` whatever
//! happened; `roll_back` comes between when `replace` failed. All of it happens under the lease's exclusive lock.
//!
//! A provider that can do all of it in one conversation with the sandbox does so in `upload` and says that it is
//! [`Staged::finished`]; its `discard` is called only when that failed, and then puts the old tree back if need be.

use std::path::Path;
use std::time::Instant;

use super::{Verified, Workspace};
use crate::Failure;
use crate::process::Cancel;
use crate::sync::{Archive, Compression, Prepared};
use crate::timing::Timing;

/// What becomes of files in the sandbox that the archive does not have: the setting `sync.delete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// They go: the tree is staged and takes the old one's place.
    Replace,
    /// They stay: the archive is unpacked over the old tree.
    Merge,
}

/// An archive on its way.
#[derive(Debug, Clone, Copy)]
pub struct Upload<'a> {
    /// What is sent: [`Self::archive`], or the part of it that [`crate::sync::delta`] finds.
    pub tree: &'a Prepared,
    pub mode: SyncMode,
    /// Whether the sandbox may have a part of the tree already, so that only the rest needs to be sent.
    pub delta: bool,
    pub workspace: &'a Workspace,
    /// The directory in the sandbox that the tree belongs in.
    pub workdir: &'a Path,
    /// Random hex digits, for the names of what is staged: two uploads never meet.
    pub nonce: &'a str,
}

/// What [`ArchiveSync::upload`] left in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Where the new tree is, in [`SyncMode::Replace`].
    pub path: String,
    /// Whether all is done: the tree is in its place and nothing is left to remove. Then neither
    /// [`ArchiveSync::replace`] nor [`ArchiveSync::discard`] is called.
    pub finished: bool,
}

impl Upload<'_> {
    /// The whole tree. It is packed by the first call, where that was not done before the sandbox was created.
    pub fn archive(&self, compression: Compression, cancel: &Cancel) -> Result<&Archive, Failure> {
        self.tree.archive(compression, cancel)
    }
}

/// The parts of a sync, for `syncPhases`. Beginning one ends the one before.
#[derive(Debug)]
pub struct SyncPhases {
    timing: Timing,
}

pub trait ArchiveSync: Sync {
    /// How the archive is packed. Asked before the sandbox exists.
    fn compression(&self) -> Compression;

    /// Creates the workdir and changes nothing else, for `--no-sync`.
    fn ensure_workdir(
        &self,
        sandbox: &Verified<'_>,
        workdir: &Path,
        cancel: &Cancel,
    ) -> Result<(), Failure>;

    /// Sends the archive. In [`SyncMode::Replace`] it is unpacked beside the workspace or in a hidden directory of it,
    /// which the workspace's own files do not notice; in [`SyncMode::Merge`] into the workspace. A transfer that takes
    /// several steps begins a phase for each.
    fn upload(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        phases: &mut SyncPhases,
        cancel: &Cancel,
    ) -> Result<Staged, Failure>;

    /// Puts the staged tree in the place of the old one, which is kept until [`Self::discard`].
    fn replace(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        staged: &Staged,
        cancel: &Cancel,
    ) -> Result<(), Failure>;

    /// After a replacement that failed: puts the old tree back if it is not in its place. Called whether or not
    /// [`Self::replace`] has done so itself, since its answer may have been lost.
    fn roll_back(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        staged: &Staged,
        cancel: &Cancel,
    ) -> Result<(), Failure>;

    /// Removes what an upload left: the archive, the staged tree, the old tree. Also called when the upload failed half
    /// way.
    fn discard(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        cancel: &Cancel,
    ) -> Result<(), Failure>;
}

impl SyncPhases {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            timing: Timing::new(now),
        }
    }

    pub fn begin(&mut self, name: &str) {
        self.timing.start(name, Instant::now());
    }

    pub(crate) fn end(&mut self) {
        self.timing.stop(Instant::now());
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }
}

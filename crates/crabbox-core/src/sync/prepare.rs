//! The half of a sync that needs no sandbox: manifest, guardrails, archive.
//!
//! It comes before create, so that a repository that cannot be sent costs no sandbox. The archive can be left for later:
//! a lease that has this very tree needs none.

use std::cell::{Cell, OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::guard::{self, Candidate};
use super::{
    Archive, Compression, Delta, Entry, Manifest, Options, RemoteTree, Rules, Source, list, tree,
};
use jiff::Timestamp;

use crate::git::Repository;
use crate::process::{Cancel, Reason};
use crate::provider::{SyncMode, SyncPhases};
use crate::timing::format_ms;
use crate::{Code, Failure};

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    pub root: &'a Path,
    pub repository: Option<&'a Repository>,
    pub source: Source,
    /// Where the archive lies until it is sent.
    pub temp: &'a Path,
}

/// A tree that is listed and may be sent. It is packed when that is asked for.
#[derive(Debug)]
pub struct Prepared {
    root: PathBuf,
    temp: PathBuf,
    manifest: Manifest,
    /// See [`Manifest::fingerprint`].
    pub fingerprint: String,
    archive: OnceCell<Archive>,
    packing: Cell<Duration>,
    /// In seconds since the epoch, before the first file was looked at.
    listed_at: i64,
    trusted_before: Cell<i64>,
    warnings: RefCell<Vec<String>>,
}

impl Prepared {
    /// Lists the tree and checks that it is not too large. `tell` gets lines for people.
    pub fn list(
        tree: &Tree<'_>,
        options: &Options,
        phases: &mut SyncPhases,
        tell: &dyn Fn(&str),
    ) -> Result<Self, Failure> {
        phases.begin("manifest");
        let listed_at = Timestamp::now().as_second();
        let root = tree.repository.map_or(tree.root, Repository::root);
        let rules = Rules::load(root, &options.exclude, &options.include)?;
        let manifest = list(tree.root, tree.repository, tree.source, &rules)?;
        phases.begin("preflight");
        for warning in manifest.warnings() {
            tell(&warning);
        }
        let verdict = guard::check(&Candidate::of(&manifest), &options.limits, options.allow);
        for line in &verdict.lines {
            tell(line);
        }
        phases.end();
        if let Some(failure) = verdict.failure() {
            return Err(failure);
        }
        Ok(Self {
            root: root.to_path_buf(),
            temp: tree.temp.to_path_buf(),
            fingerprint: manifest.fingerprint(),
            manifest,
            archive: OnceCell::new(),
            packing: Cell::default(),
            listed_at,
            trusted_before: Cell::new(i64::MAX),
            warnings: RefCell::default(),
        })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The whole tree, packed unless that is done.
    pub fn archive(&self, compression: Compression, cancel: &Cancel) -> Result<&Archive, Failure> {
        if let Some(archive) = self.archive.get() {
            return Ok(archive);
        }
        let archive = self.pack(&self.manifest, compression, cancel)?;
        Ok(self.archive.get_or_init(|| archive))
    }

    /// How the tree in the sandbox differs from this one.
    pub fn delta(&self, remote: &RemoteTree, mode: SyncMode) -> Result<Delta, Failure> {
        let root = &self.root;
        let mut files = tree::Tree::open(root).map_err(|error| {
            let message = format!("read {} for the sync", root.display());
            Failure::new(Code::Sync, message).because(&error)
        })?;
        // A link that cannot be read is sent, and then it is an error.
        let target = |entry: &Entry| files.link(&entry.path).ok().flatten();
        let before = self.trusted_before.get();
        Ok(Delta::between(&self.manifest, remote, mode, before, target))
    }

    pub(crate) fn listed_at(&self) -> i64 {
        self.listed_at
    }

    /// Says when the tree that the sandbox has was listed. Times in a sandbox have no fractions: a file that was changed
    /// in the second of that list, or in the one before it, may have been changed again without a trace, and is sent.
    pub(crate) fn trust_before(&self, listed: i64) {
        self.trusted_before.set(listed.saturating_sub(1));
    }

    /// Only what a delta sends, packed.
    pub fn part(
        &self,
        delta: &Delta,
        compression: Compression,
        cancel: &Cancel,
    ) -> Result<Archive, Failure> {
        let entries: Vec<_> = delta.sent(&self.manifest).cloned().collect();
        let part = Manifest {
            bytes: entries.iter().map(|entry| entry.size).sum(),
            entries,
            ..Manifest::empty()
        };
        self.pack(&part, compression, cancel)
    }

    /// What packing took of the time for the sync, before it began.
    pub(crate) fn packing(&self) -> Duration {
        self.packing.get()
    }

    /// Lines for people about files that changed while they were packed, once each.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    fn pack(
        &self,
        manifest: &Manifest,
        compression: Compression,
        cancel: &Cancel,
    ) -> Result<Archive, Failure> {
        let started = Instant::now();
        let packed = Archive::pack(manifest, &self.root, &self.temp, compression, cancel);
        self.packing.set(self.packing.get() + started.elapsed());
        let archive = packed?;
        let warnings = archive.stats.warnings.iter().cloned();
        self.warnings.borrow_mut().extend(warnings);
        Ok(archive)
    }
}

/// What a step that was cut short failed for.
pub(crate) fn interrupted(
    failure: Failure,
    reason: Option<Reason>,
    timeout: Option<Duration>,
) -> Failure {
    let (code, message) = match (reason, timeout) {
        (Some(Reason::Late), Some(timeout)) => {
            let message = format!("sync did not finish within {}", format_ms(timeout));
            (Code::Timeout, message)
        }
        (Some(Reason::Late), None) => return failure,
        (Some(reason), _) => (Code::Canceled, format!("canceled: {reason}")),
        (None, _) => return failure,
    };
    let cause = Failure {
        exit: reason.and_then(Reason::exit_code),
        ..Failure::new(code, message)
    };
    match code {
        Code::Timeout => Failure {
            causes: vec![failure.to_string()],
            hints: failure.hints,
            ..cause
        }
        .hint("set a longer `sync.timeout` (CRABBOX_SYNC_TIMEOUT)"),
        _ => cause,
    }
}

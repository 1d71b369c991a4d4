//! The half of a sync that needs no sandbox: manifest, guardrails, archive.
//!
//! It comes before create, so that a repository that cannot be sent costs no sandbox. The archive can be left for later:
//! a lease that has this very tree needs none.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::guard::{self, Candidate};
use super::{Archive, Compression, Manifest, Options, Rules, Source, list};
use crate::git::Repository;
use crate::process::{Cancel, Reason};
use crate::provider::SyncPhases;
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

#[derive(Debug)]
pub struct Prepared {
    root: PathBuf,
    temp: PathBuf,
    manifest: Manifest,
    /// See [`Manifest::fingerprint`].
    pub fingerprint: String,
    archive: Option<Archive>,
    /// What packing took of the time for the sync.
    pub packing: Duration,
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
            archive: None,
            packing: Duration::ZERO,
        })
    }

    /// Packs the tree, unless that is done.
    pub fn pack(
        &mut self,
        compression: Compression,
        timeout: Option<Duration>,
        phases: &mut SyncPhases,
        tell: &dyn Fn(&str),
        cancel: &Cancel,
    ) -> Result<&Archive, Failure> {
        let archive = match self.archive.take() {
            Some(archive) => archive,
            None => {
                phases.begin("archive");
                let started = Instant::now();
                let bounded = match timeout.and_then(|timeout| started.checked_add(timeout)) {
                    Some(deadline) => cancel.until(deadline),
                    None => cancel.clone(),
                };
                let (root, temp) = (&self.root, &self.temp);
                let packed = Archive::pack(&self.manifest, root, temp, compression, &bounded)
                    .map_err(|failure| interrupted(failure, bounded.reason(), timeout));
                self.packing = started.elapsed();
                phases.end();
                let archive = packed?;
                for warning in &archive.stats.warnings {
                    tell(warning);
                }
                archive
            }
        };
        Ok(self.archive.insert(archive))
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
    let cause = Failure::new(code, message);
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

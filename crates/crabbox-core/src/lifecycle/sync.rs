//! The sync step of a run: prepare before the sandbox exists, upload and replace afterwards.
//!
//! What is decided here: whether there is a sync at all, whether it would change anything, how long it may take, and what
//! happens when a step fails. A failed upload leaves the workspace as it was; a failed replacement is rolled back; what was
//! staged is removed in any case, with a time limit of its own that a cancellation does not cut short.

use std::path::Path;
use std::time::{Duration, Instant};

use super::lease::{Lease, Origin};
use super::{Context, deadline};
use crate::claims::{Claim, random_hex};
use crate::process::Cancel;
use crate::provider::{
    ArchiveSync, Staged, SyncMode, SyncPhases, Upload, Use, Verified, Workspace, WorkspaceKind,
    verify,
};
use crate::sync::{Options, Prepared, Tree, interrupted};
use crate::timing::{SyncPhase, format_ms, millis};
use crate::{Code, Failure};

/// The label of a claim that says which tree the sandbox has. It is there only as long as no command ran in the sandbox
/// since, because a command may change any file.
pub(super) const SYNCED: &str = "synced";

/// The label that says when the tree that was sent last was listed here, in seconds since the epoch.
pub(super) const LISTED: &str = "synced-at";

/// Whether the repository is sent, where the provider does not mount it.
#[derive(Debug, Clone, Copy)]
pub enum Sync<'a> {
    /// `--no-sync`.
    Skip,
    Send {
        tree: Tree<'a>,
        options: &'a Options,
    },
}

/// The step of one run.
pub(super) enum Step<'a> {
    /// The provider mounts the workspace.
    Mounted,
    /// `--no-sync`: only the workdir is created.
    Skipped {
        archive: &'a dyn ArchiveSync,
    },
    Archive(Box<Transfer<'a>>),
}

pub(super) struct Transfer<'a> {
    archive: &'a dyn ArchiveSync,
    options: &'a Options,
    prepared: Prepared,
    phases: SyncPhases,
    started: Instant,
    unchanged: bool,
}

/// Where the tree goes.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) workdir: &'a str,
}

impl<'a> Step<'a> {
    /// The half before create. `known` is the claim of a lease that is used again: then packing is left for later, since
    /// the sandbox may have most of the tree.
    pub(super) fn prepare(
        context: Context<'a>,
        sync: Sync<'a>,
        known: Option<&Claim>,
    ) -> Result<Self, Failure> {
        if context.provider.spec().workspace == WorkspaceKind::Mounted {
            return Ok(Self::Mounted);
        }
        let Some(archive) = context.provider.archive() else {
            return Err(context.provider.unsupported("sync"));
        };
        let (tree, options) = match sync {
            Sync::Skip => return Ok(Self::Skipped { archive }),
            Sync::Send { tree, options } => (tree, options),
        };
        context.provider.validate()?;
        let started = Instant::now();
        let mut phases = SyncPhases::new(started);
        let tell = |line: &str| context.report.line(line);
        let prepared = Prepared::list(&tree, options, &mut phases, &tell)?;
        let mut transfer = Transfer {
            archive,
            options,
            prepared,
            phases,
            started,
            unchanged: false,
        };
        // What a lease that is used again has already is known only when it is asked.
        if known.is_none() {
            transfer.phases.begin("archive");
            transfer.pack(context)?;
            transfer.phases.end();
        }
        Ok(Self::Archive(Box::new(transfer)))
    }

    /// Whether the lease must be ours alone.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(self, Self::Archive(_))
    }

    pub(super) fn has_sync(&self) -> bool {
        !matches!(self, Self::Mounted)
    }

    /// The half after create.
    pub(super) fn transfer(
        &mut self,
        context: Context<'_>,
        lease: &Lease,
        to: Destination<'_>,
    ) -> Result<(), Failure> {
        let claim = &lease.claim;
        match self {
            Self::Mounted => Ok(()),
            Self::Skipped { archive } => {
                let sandbox = context.verify(claim, Use::Upload)?;
                archive.ensure_workdir(&sandbox, Path::new(to.workdir), context.cancel)
            }
            Self::Archive(transfer) => {
                transfer.unchanged = lease.origin == Origin::Reused
                    && transfer.is_what(lease.synced.as_deref(), to.workdir);
                if transfer.unchanged {
                    context.report.line("sync skipped: unchanged");
                    return Ok(());
                }
                let sent = transfer.send(context, lease, to);
                transfer.phases.end();
                for warning in transfer.prepared.take_warnings() {
                    context.report.line(&warning);
                }
                sent?;
                let took = format_ms(transfer.started.elapsed());
                context.report.line(&format!("sync complete in {took}"));
                Ok(())
            }
        }
    }

    /// For the claim, after a sync that sent something: when its tree was listed.
    pub(super) fn listed(&self) -> Option<i64> {
        match self {
            Self::Archive(transfer) if !transfer.unchanged => Some(transfer.prepared.listed_at()),
            Self::Archive(_) | Self::Mounted | Self::Skipped { .. } => None,
        }
    }

    /// For the claim, after a sync that no command follows.
    pub(super) fn synced(&self, workdir: &str) -> Option<String> {
        match self {
            Self::Archive(transfer) => Some(transfer.label(workdir)),
            Self::Mounted | Self::Skipped { .. } => None,
        }
    }

    /// For the timing report: the phases, and whether nothing was sent. `took` is all that the step took.
    pub(super) fn phases(&self, provider: &str, took: Duration) -> (Vec<SyncPhase>, bool) {
        let skipped = |reason: &str| {
            let phase = SyncPhase {
                name: "sync".to_owned(),
                ms: None,
                skipped: Some(true),
                reason: Some(reason.to_owned()),
            };
            (vec![phase], true)
        };
        match self {
            Self::Mounted => skipped("provider-delegated workspace"),
            Self::Skipped { .. } => skipped("--no-sync"),
            Self::Archive(transfer) if transfer.unchanged => skipped("unchanged"),
            Self::Archive(transfer) => {
                let total = (format!("{}_sync", provider.replace('-', "_")), took);
                let parts = transfer.phases.timing().named().iter().cloned();
                let phase = |(name, took): (String, Duration)| SyncPhase {
                    name,
                    ms: Some(millis(took)),
                    ..SyncPhase::default()
                };
                (parts.chain([total]).map(phase).collect(), false)
            }
        }
    }
}

impl Transfer<'_> {
    /// The part that needs no sandbox, so that what cannot be packed costs none.
    fn pack(&self, context: Context<'_>) -> Result<(), Failure> {
        let timeout = self.options.timeout;
        let cancel = match timeout.and_then(|timeout| Instant::now().checked_add(timeout)) {
            Some(deadline) => context.cancel.until(deadline),
            None => context.cancel.clone(),
        };
        let packed = self.prepared.archive(self.archive.compression(), &cancel);
        for warning in self.prepared.take_warnings() {
            context.report.line(&warning);
        }
        packed
            .map(drop)
            .map_err(|failure| interrupted(failure, cancel.reason(), timeout))
    }

    /// With the mode: after a merge, files may be left that a replacement would remove.
    fn label(&self, workdir: &str) -> String {
        let mode = match self.options.mode {
            SyncMode::Replace => "replace",
            SyncMode::Merge => "merge",
        };
        format!("{mode} {workdir} {}", self.prepared.fingerprint)
    }

    fn is_what(&self, synced: Option<&str>, workdir: &str) -> bool {
        self.options.fingerprint
            && !self.options.full
            && synced == Some(self.label(workdir).as_str())
    }

    fn send(
        &mut self,
        context: Context<'_>,
        lease: &Lease,
        to: Destination<'_>,
    ) -> Result<(), Failure> {
        let claim = &lease.claim;
        // Packing has used up a part of the time.
        let timeout = self.options.timeout;
        let left = timeout.map(|timeout| timeout.saturating_sub(self.prepared.packing()));
        let cancel = match left.and_then(|left| Instant::now().checked_add(left)) {
            Some(deadline) => context.cancel.until(deadline),
            None => context.cancel.clone(),
        };
        let nonce = random_hex(3)?;
        // Of a lease that does not say when, no file is known to be as it was.
        self.prepared.trust_before(lease.listed.unwrap_or(i64::MIN));
        let upload = Upload {
            tree: &self.prepared,
            mode: self.options.mode,
            delta: lease.origin == Origin::Reused && !self.options.full,
            workspace: to.workspace,
            workdir: Path::new(to.workdir),
            nonce: &nonce,
        };
        let sync = Sending {
            context,
            archive: self.archive,
            claim,
            cancel: &cancel,
        };
        let sent = sync.upload(&upload, &mut self.phases);
        let left = match &sent {
            Ok(left) => *left,
            Err(failed) => failed.left,
        };
        let discarded = match left {
            Remains::Nothing | Remains::Untouchable => Ok(()),
            Remains::Removable => {
                self.phases.begin("cleanup");
                sync.discard(&upload)
            }
        };
        let late = |failed: TransferFailure| interrupted(*failed.failure, cancel.reason(), timeout);
        match (sent.map(drop).map_err(late), discarded) {
            (Ok(()), Ok(())) => Ok(()),
            (Ok(()), Err(failure)) => {
                let lease = &claim.lease_id;
                let line = format!(
                    "warning: cannot remove temporary sync files in lease {lease}: {failure}"
                );
                context.report.line(&line);
                Ok(())
            }
            (Err(failure), Ok(())) => Err(failure),
            (Err(failure), Err(other)) => Err(failure.and(&other)),
        }
    }
}

/// A transfer that failed.
struct TransferFailure {
    failure: Box<Failure>,
    left: Remains,
}

/// What is left in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remains {
    /// The provider has cleaned up.
    Nothing,
    /// Perhaps an archive or a staged tree, which can go.
    Removable,
    /// The sandbox is not proved to be ours, or what is left holds the only copy of the old tree.
    Untouchable,
}

impl Remains {
    fn after(self, failure: Failure) -> TransferFailure {
        TransferFailure {
            failure: Box::new(failure),
            left: self,
        }
    }
}

/// One transfer to one sandbox.
#[derive(Clone, Copy)]
struct Sending<'a> {
    context: Context<'a>,
    archive: &'a dyn ArchiveSync,
    claim: &'a Claim,
    /// With the time limit of the sync.
    cancel: &'a Cancel,
}

impl Sending<'_> {
    fn upload(
        &self,
        upload: &Upload<'_>,
        phases: &mut SyncPhases,
    ) -> Result<Remains, TransferFailure> {
        let (removable, untouchable) = (Remains::Removable, Remains::Untouchable);
        phases.begin("upload");
        let sandbox = self
            .verify(Use::Upload, self.cancel)
            .map_err(|failure| untouchable.after(failure))?;
        let staged = self
            .archive
            .upload(&sandbox, upload, phases, self.cancel)
            .map_err(|failure| removable.after(failure))?;
        if staged.finished {
            return Ok(Remains::Nothing);
        }
        if upload.mode == SyncMode::Merge {
            return Ok(removable);
        }
        phases.begin("replace");
        let sandbox = self
            .verify(Use::Replace, self.cancel)
            .map_err(|failure| untouchable.after(failure))?;
        self.archive
            .replace(&sandbox, upload, &staged, self.cancel)
            .map(|()| removable)
            .map_err(|failure| self.roll_back(upload, &staged, failure))
    }

    /// The answer may have been lost after the trees were swapped: only the provider can tell what is where.
    fn roll_back(&self, upload: &Upload<'_>, staged: &Staged, failure: Failure) -> TransferFailure {
        let rolled_back = deadline::cleanup(self.context.cancel, |cancel| {
            let sandbox = self.verify(Use::Replace, cancel)?;
            self.archive.roll_back(&sandbox, upload, staged, cancel)
        });
        match rolled_back {
            Ok(()) => Remains::Removable.after(failure),
            Err(other) => {
                let lease = &self.claim.lease_id;
                let message = format!(
                    "the workspace of lease {lease} may be incomplete, because the old tree could not be put back: {other}"
                );
                let failure = failure.and(&Failure::new(Code::Sync, message));
                Remains::Untouchable.after(failure)
            }
        }
    }

    fn discard(&self, upload: &Upload<'_>) -> Result<(), Failure> {
        deadline::cleanup(self.context.cancel, |cancel| {
            let sandbox = self.verify(Use::Upload, cancel)?;
            self.archive.discard(&sandbox, upload, cancel)
        })
    }

    fn verify(&self, intent: Use, cancel: &Cancel) -> Result<Verified<'_>, Failure> {
        verify(self.context.provider, self.claim, intent, cancel)
    }
}

//! The static description of a provider.

use crate::claims::Claim;
use crate::command::Rules;
use crate::settings::ProviderTable;

/// What is known about a provider without a request. Drives discovery, the refusal of flags, and the docs.
#[derive(Debug)]
pub struct Spec {
    pub name: &'static str,
    pub family: &'static str,
    pub kind: &'static str,
    pub category: &'static str,
    pub targets: &'static [&'static str],
    pub features: &'static [&'static str],
    pub runtime: &'static [&'static str],
    pub evidence: &'static [&'static str],
    pub lifecycle: &'static [&'static str],
    pub coordinator: &'static str,
    pub table: ProviderTable,
    /// How its lease ids begin.
    pub lease_prefix: &'static str,
    /// Whether the user may choose the id of a new lease.
    pub fixed_lease_id: bool,
    pub workspace: WorkspaceKind,
    pub command: Rules<'static>,
    pub stop_by: StopBy,
    /// Whether a sandbox that the provider does not list is gone. Where another account or cluster may answer, it is
    /// not: such leases stay visible.
    pub absence_is_proof: bool,
    pub expired: ExpiredLease,
    pub busy: BusyLease,
    /// Whether `ports` and `cp` exist.
    pub ports: bool,
    pub copy: bool,
    /// Whether a build cache can be kept for a repository.
    pub build_cache: bool,
    /// What to use in place of `--class` and `--type`.
    pub instead_of_class: &'static str,
    pub instead_of_type: &'static str,
    /// Variables that hold its credentials: they never go into a sandbox.
    pub credentials: &'static [&'static str],
}

/// How the repository gets into the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceKind {
    /// The provider mounts the directory itself: there is nothing to sync.
    Mounted,
    /// We send an archive, see [`super::ArchiveSync`].
    Archive,
}

/// What `run --id` does with a lease that reached its time to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiredLease {
    /// It refuses to run, and leaves the lease to `cleanup`.
    Refuse,
    /// It removes the lease and runs nothing.
    Remove,
}

/// What `cleanup` does with a lease that is due while a command runs in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyLease {
    /// It leaves the lease alone.
    Skip,
    /// It waits for the command, and decides again.
    Wait,
}

/// Which name a command for cleaning up shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopBy {
    Slug,
    LeaseId,
}

impl Spec {
    /// What a lease is called in commands that are shown.
    pub fn shown_id<'c>(&self, claim: &'c Claim) -> &'c str {
        match (self.stop_by, &claim.slug) {
            (StopBy::Slug, Some(slug)) => slug.as_str(),
            (StopBy::Slug, None) | (StopBy::LeaseId, _) => claim.lease_id.as_str(),
        }
    }
}

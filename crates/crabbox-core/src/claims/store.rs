//! The claim files of one state directory.
//!
//! Reads take no lock and create nothing. A write is a compare-and-swap: under the claim's lock the file is read again,
//! and if it differs from what the caller had read (each write has a new random revision), the write fails with
//! [`Code::ClaimChanged`] and the caller decides anew. A damaged file is a [`Problem`] of its own; it concerns only
//! callers that ask for exactly that lease.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::claim::Claim;
use super::files::{self, Presence, WriteMode};
use super::lease_id::{LeaseId, random_hex};
use super::locks::{LockMode, Locks, OperationLock, Wait};
use super::problem::{CLAIM_SUFFIX, Fault, Problem};
use super::slug::{Slug, SlugChoice};
use crate::{Code, Failure};

const DIR: &str = "claims";
const MAX_PROBLEMS: usize = 100;

#[derive(Debug, Clone)]
pub struct ClaimStore {
    dir: PathBuf,
    locks: Locks,
}

/// Everything that is there, good and bad, in the order of file names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    pub claims: Vec<Claim>,
    pub problems: Vec<Problem>,
}

/// Where to look for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderFilter<'a> {
    All,
    /// The user named this one.
    Only(&'a str),
}

impl ClaimStore {
    /// Nothing is read or made yet.
    pub fn open(state_dir: &Path) -> Self {
        Self {
            dir: state_dir.join(DIR),
            locks: Locks::new(state_dir),
        }
    }

    /// Records a new lease, under a slug that no other claim has.
    pub fn create(&self, mut claim: Claim, slug: &SlugChoice) -> Result<Claim, Failure> {
        files::create_dir(&self.dir)?;
        let _slugs = self.locks.slugs()?;
        files::sweep_leftovers(&self.dir, SystemTime::now());
        let taken = self.taken_slugs(&claim.lease_id)?;
        claim.slug = slug.resolve(&claim.lease_id, &taken)?;
        let _lock = self.locks.claim(&claim.lease_id)?;
        self.write(claim, WriteMode::CreateNew)
    }

    /// None when there is no such claim.
    pub fn read(&self, lease: &LeaseId) -> Result<Option<Claim>, Failure> {
        match files::check_dir(&self.dir)? {
            Presence::Absent => Ok(None),
            Presence::Present => self
                .load(lease)
                .map_err(|fault| fault.of_lease(lease).into_failure()),
        }
    }

    /// Writes `new` in the place of `old`, which must be what is there. Returns what was written.
    pub fn replace(&self, old: &Claim, new: Claim) -> Result<Claim, Failure> {
        if new.lease_id != old.lease_id || new.slug != old.slug {
            let message = format!("cannot change the id or slug of lease {}", old.lease_id);
            return Err(Failure::new(Code::State, message));
        }
        let _lock = self.locks.claim(&old.lease_id)?;
        self.check_unchanged(old)?;
        self.write(new, WriteMode::Replace)
    }

    /// Forgets a lease whose claim is still `old`. The sandbox must be gone by then.
    pub fn remove(&self, old: &Claim) -> Result<(), Failure> {
        let _lock = self.locks.claim(&old.lease_id)?;
        self.check_unchanged(old)?;
        let name = file_name(&old.lease_id);
        files::remove(&self.dir, &name)
            .map_err(|e| files::io_failure("remove claim", &self.dir.join(&name), &e))
    }

    /// All claims. Fails only when the directory as a whole cannot be read.
    pub fn scan(&self) -> Result<Scan, Failure> {
        let mut scan = Scan::default();
        let mut problems = Vec::new();
        for name in self.file_names()? {
            match self.load_entry(&name) {
                Ok(Some(claim)) => scan.claims.push(claim),
                // Not a claim file, or removed since its name was read.
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
        }
        scan.problems = truncate_problems(problems);
        Ok(scan)
    }

    /// The claim that the user means: by lease id, else by slug.
    pub fn find(
        &self,
        identifier: &str,
        among: ProviderFilter<'_>,
    ) -> Result<Option<Claim>, Failure> {
        if let Ok(lease) = LeaseId::parse(identifier)
            && let Some(claim) = self.read(&lease)?
        {
            return match among {
                ProviderFilter::Only(provider) if provider != claim.provider => {
                    let message = format!(
                        "lease {lease} belongs to provider={}, not to provider={provider}",
                        claim.provider
                    );
                    Err(Failure::usage(message).hint("omit --provider"))
                }
                ProviderFilter::All | ProviderFilter::Only(_) => Ok(Some(claim)),
            };
        }
        let Some(slug) = Slug::normalize(identifier) else {
            return Ok(None);
        };
        let mut found = self.scan()?.claims;
        found.retain(|claim| {
            let here = match among {
                ProviderFilter::All => true,
                ProviderFilter::Only(provider) => provider == claim.provider,
            };
            here && claim.slug.as_ref() == Some(&slug)
        });
        match found.as_slice() {
            [_, _, ..] => Err(ambiguous(&slug, &found)),
            [] | [_] => Ok(found.pop()),
        }
    }

    /// Keeps others from running in, stopping or cleaning up this lease. Read the claim again once it is held.
    /// `command` is what they are told meanwhile; it must not hold secrets.
    pub fn operation(
        &self,
        lease: &LeaseId,
        command: &str,
        wait: Wait<'_>,
    ) -> Result<OperationLock, Failure> {
        self.locks
            .operation(lease, command, LockMode::Exclusive, wait)
    }

    /// The same, together with others that run in it.
    pub fn operation_shared(
        &self,
        lease: &LeaseId,
        command: &str,
        wait: Wait<'_>,
    ) -> Result<OperationLock, Failure> {
        self.locks.operation(lease, command, LockMode::Shared, wait)
    }

    /// Shares a lock that was held alone.
    pub fn downgrade(
        &self,
        lock: &mut OperationLock,
        lease: &LeaseId,
        wait: Wait<'_>,
    ) -> Result<(), Failure> {
        lock.downgrade(&format!("lease {lease}"), wait)
    }

    /// Slugs of damaged claims cannot be known and count as free.
    fn taken_slugs(&self, lease: &LeaseId) -> Result<BTreeMap<Slug, LeaseId>, Failure> {
        let claims = self.scan()?.claims;
        if claims.iter().any(|claim| claim.lease_id == *lease) {
            return Err(already_claimed(lease));
        }
        let taken = claims
            .into_iter()
            .filter_map(|claim| Some((claim.slug?, claim.lease_id)));
        Ok(taken.collect())
    }

    fn write(&self, mut claim: Claim, mode: WriteMode) -> Result<Claim, Failure> {
        claim.revision = random_hex(16)?;
        let name = file_name(&claim.lease_id);
        match files::write(&self.dir, &name, &claim.encode()?, mode) {
            Ok(()) => Ok(claim),
            Err(e) if mode == WriteMode::CreateNew && e.kind() == io::ErrorKind::AlreadyExists => {
                Err(already_claimed(&claim.lease_id))
            }
            Err(e) => Err(files::io_failure("write claim", &self.dir.join(&name), &e)),
        }
    }

    /// The comparison before a swap. The caller has the claim's lock.
    fn check_unchanged(&self, old: &Claim) -> Result<(), Failure> {
        let lease = &old.lease_id;
        if self.read(lease)?.as_ref() == Some(old) {
            return Ok(());
        }
        let message = format!("lease {lease} claim changed; retry");
        Err(Failure::new(Code::ClaimChanged, message))
    }

    fn load(&self, lease: &LeaseId) -> Result<Option<Claim>, Fault> {
        match files::read(&self.dir.join(file_name(lease)))? {
            None => Ok(None),
            Some(bytes) => Claim::decode(lease, &bytes).map(Some),
        }
    }

    fn load_entry(&self, name: &OsString) -> Result<Option<Claim>, Problem> {
        let bytes = name.as_bytes();
        if !bytes.ends_with(CLAIM_SUFFIX.as_bytes())
            || name.to_str().is_some_and(files::is_temporary)
        {
            return Ok(None);
        }
        let stem = name
            .to_str()
            .and_then(|name| name.strip_suffix(CLAIM_SUFFIX));
        match stem.map(LeaseId::parse) {
            Some(Ok(lease)) => self.load(&lease).map_err(|fault| fault.of_lease(&lease)),
            Some(Err(_)) | None => Err(Problem::invalid_name(bytes)),
        }
    }

    fn file_names(&self) -> Result<Vec<OsString>, Failure> {
        let failed = |e: io::Error| files::io_failure("read directory", &self.dir, &e);
        if files::check_dir(&self.dir)? == Presence::Absent {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        names.sort();
        Ok(names)
    }
}

fn file_name(lease: &LeaseId) -> String {
    format!("{lease}{CLAIM_SUFFIX}")
}

/// The last entry says how many are left out.
fn truncate_problems(mut problems: Vec<Problem>) -> Vec<Problem> {
    let count = problems.len();
    if count > MAX_PROBLEMS {
        problems.truncate(MAX_PROBLEMS - 1);
        problems.push(Problem::truncated(count - problems.len()));
    }
    problems
}

fn already_claimed(lease: &LeaseId) -> Failure {
    let message = format!("lease {lease} is already claimed");
    Failure::new(Code::State, message).hint("crabbox claims list")
}

/// Two claims have one slug only if something else than this store wrote them.
fn ambiguous(slug: &Slug, found: &[Claim]) -> Failure {
    let leases: Vec<_> = found
        .iter()
        .map(|claim| format!("{} (provider={})", claim.lease_id, claim.provider))
        .collect();
    let providers = found.iter().map(|claim| claim.provider.as_str());
    let several = providers.collect::<std::collections::BTreeSet<_>>().len() > 1;
    let ask = if several {
        "the lease id or --provider"
    } else {
        "the lease id"
    };
    Failure::usage(format!(
        "slug `{slug}` is ambiguous; use {ask}: {}",
        leases.join(", ")
    ))
}

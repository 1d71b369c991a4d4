//! The claim files of one state directory.
//!
//! Reads take no lock and create nothing. A write is a compare-and-swap: under the claim's lock the file is read again,
//! and if it differs from what the caller had read (each write has a new random revision), the write fails with
//! [`Code::ClaimChanged`] and the caller decides anew. A damaged file is a [`Problem`] of its own; it concerns only
//! callers that ask for exactly that lease.

use std::collections::{BTreeMap, BTreeSet};
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
/// The records of fixed leases that were released.
const RELEASED_DIR: &str = "released";
const MAX_PROBLEMS: usize = 100;

#[derive(Debug, Clone)]
pub struct ClaimStore {
    dir: PathBuf,
    released: PathBuf,
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
        let dir = state_dir.join(DIR);
        Self {
            locks: Locks::new(state_dir, &dir),
            released: state_dir.join(RELEASED_DIR),
            dir,
        }
    }

    /// Records a new lease, under a slug that no other claim has.
    pub fn create(&self, mut claim: Claim, slug: &SlugChoice) -> Result<Claim, Failure> {
        files::create_dir(&self.dir)?;
        let _slugs = self.locks.slugs()?;
        files::sweep_leftovers(&self.dir, SystemTime::now());
        self.locks.sweep();
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
        same_lease(old, &new)?;
        let _lock = self.locks.claim(&old.lease_id)?;
        self.check_unchanged(old)?;
        self.write(new, WriteMode::Replace)
    }

    /// Changes whatever is there by now. `change` must refuse a claim that is no longer what its caller decided about.
    /// Returns what is there afterwards.
    pub fn update(
        &self,
        lease: &LeaseId,
        change: impl FnOnce(&Claim) -> Result<Claim, Failure>,
    ) -> Result<Claim, Failure> {
        let _lock = self.locks.claim(lease)?;
        let Some(old) = self.read(lease)? else {
            let message = format!("lease {lease} was released meanwhile");
            return Err(Failure::new(Code::NotFound, message));
        };
        let new = change(&old)?;
        if new == old {
            return Ok(old);
        }
        same_lease(&old, &new)?;
        self.write(new, WriteMode::Replace)
    }

    /// Gives a lease its final id, where the provider chose it. Everything else stays, the slug too. A process that dies in
    /// between leaves both claims: each names its creator, so both are swept.
    pub fn rename(&self, old: &Claim, lease_id: LeaseId) -> Result<Claim, Failure> {
        let _slugs = self.locks.slugs()?;
        let _lock = self.locks.claim(&old.lease_id)?;
        self.check_unchanged(old)?;
        let _new_lock = self.locks.claim(&lease_id)?;
        let new = Claim {
            lease_id,
            ..old.clone()
        };
        let new = self.write(new, WriteMode::CreateNew)?;
        let name = file_name(&old.lease_id);
        files::remove(&self.dir, &name)
            .map_err(|e| files::io_failure("remove claim", &self.dir.join(&name), &e))?;
        Ok(new)
    }

    /// The same for a lease whose id the user chose: a record stays, so that the id is never used again.
    pub fn retire(&self, old: &Claim) -> Result<(), Failure> {
        let _lock = self.locks.claim(&old.lease_id)?;
        self.check_unchanged(old)?;
        files::create_dir(&self.released)?;
        let name = file_name(&old.lease_id);
        // First the record: whatever happens then, the id is never used again.
        files::write(&self.released, &name, &old.encode()?, WriteMode::Replace)
            .map_err(|e| files::io_failure("write record", &self.released.join(&name), &e))?;
        self.remove_file(&name)
    }

    /// Whether a lease of this id was retired.
    pub fn is_retired(&self, lease: &LeaseId) -> Result<bool, Failure> {
        let path = self.released.join(file_name(lease));
        path.try_exists()
            .map_err(|e| files::io_failure("read record", &path, &e))
    }

    /// Forgets a lease whose claim is still `old`. The sandbox must be gone by then.
    pub fn remove(&self, old: &Claim) -> Result<(), Failure> {
        let _lock = self.locks.claim(&old.lease_id)?;
        self.check_unchanged(old)?;
        self.remove_file(&file_name(&old.lease_id))
    }

    fn remove_file(&self, name: &str) -> Result<(), Failure> {
        files::remove(&self.dir, name)
            .map_err(|e| files::io_failure("remove claim", &self.dir.join(name), &e))
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

    /// The claim that the user means: by lease id, else by slug. What is spelled as a lease id is never a slug.
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
        match typed_slug(identifier) {
            Some(wanted) => self.only_one(identifier, among, |slug| *slug == wanted),
            None => Ok(None),
        }
    }

    /// The one claim whose slug begins so. Several are an error: which one is meant is not ours to choose.
    pub fn find_by_prefix(
        &self,
        identifier: &str,
        among: ProviderFilter<'_>,
    ) -> Result<Option<Claim>, Failure> {
        match typed_slug(identifier) {
            Some(start) => self.only_one(identifier, among, |slug| {
                slug.as_str().starts_with(start.as_str())
            }),
            None => Ok(None),
        }
    }

    fn only_one(
        &self,
        identifier: &str,
        among: ProviderFilter<'_>,
        is_meant: impl Fn(&Slug) -> bool,
    ) -> Result<Option<Claim>, Failure> {
        let mut found = self.scan()?.claims;
        found.retain(|claim| {
            let here = match among {
                ProviderFilter::All => true,
                ProviderFilter::Only(provider) => provider == claim.provider,
            };
            here && claim.slug.as_ref().is_some_and(&is_meant)
        });
        match found.as_slice() {
            [_, _, ..] => Err(ambiguous(identifier, &found)),
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

    /// Waits until a lock that was shared is held alone.
    pub fn upgrade(
        &self,
        lock: &mut OperationLock,
        lease: &LeaseId,
        wait: Wait<'_>,
    ) -> Result<(), Failure> {
        lock.upgrade(&format!("lease {lease}"), wait)
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
        claim.foreign = false;
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

fn same_lease(old: &Claim, new: &Claim) -> Result<(), Failure> {
    if new.lease_id == old.lease_id && new.slug == old.slug {
        return Ok(());
    }
    let message = format!("cannot change the id or slug of lease {}", old.lease_id);
    Err(Failure::new(Code::State, message))
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

/// The slug that a user may mean by a word.
fn typed_slug(identifier: &str) -> Option<Slug> {
    match LeaseId::is_spelled(identifier) {
        true => None,
        false => Slug::normalize(identifier),
    }
}

/// A beginning of several slugs; or one slug of several claims, which only another program can have written.
fn ambiguous(identifier: &str, found: &[Claim]) -> Failure {
    let one = |claim: &Claim| match claim.slug_str() {
        Some(slug) if slug != identifier => {
            format!(
                "{slug} (lease {}, provider={})",
                claim.lease_id, claim.provider
            )
        }
        Some(_) | None => format!("{} (provider={})", claim.lease_id, claim.provider),
    };
    let leases: Vec<_> = found.iter().map(one).collect();
    let slugs = found.iter().map(Claim::slug_str).collect::<BTreeSet<_>>();
    let providers = found.iter().map(|claim| claim.provider.as_str());
    let several = providers.collect::<BTreeSet<_>>().len() > 1;
    let ask = match (slugs.len() > 1, several) {
        (true, _) => "the whole slug or the lease id",
        (false, true) => "the lease id or --provider",
        (false, false) => "the lease id",
    };
    Failure::usage(format!(
        "slug `{}` is ambiguous; use {ask}: {}",
        identifier.escape_debug(),
        leases.join(", ")
    ))
}

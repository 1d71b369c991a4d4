//! Which repository a lease belongs to, and what its use changes in the claim. Pure: the caller stores the result.
//!
//! The check comes before anything is done in the sandbox, the write after the provider proved that the sandbox is
//! the one of the claim.

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::claim::{Claim, whole_seconds};
use crate::{Code, Failure};

/// The absolute path of a repository, as text that a claim can hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RepoRoot(String);

/// Whether the user wants a lease of another repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    No,
    Yes,
}

/// How a claim relates to the repository that uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    Ours,
    /// It had no owner, or belonged to another repository and the user reclaims it.
    Taken,
}

impl RepoRoot {
    /// Symbolic links are the caller's to resolve.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        let refuse = |why| {
            let message = format!("cannot claim a lease for `{}`: {why}", path.display());
            Err(Failure::new(Code::Local, message))
        };
        if !path.is_absolute() {
            return refuse("the path is not absolute");
        }
        match path.to_str() {
            // Guessing would make two repositories one.
            None => refuse("the path is not UTF-8"),
            Some(text) => Ok(Self(text.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_same(&self, other: &Self) -> bool {
        Path::new(&self.0) == Path::new(&other.0)
    }
}

/// Refuses the lease of another repository unless the user reclaims it.
pub fn check(claim: &Claim, repo: &RepoRoot, reclaim: Reclaim) -> Result<Binding, Failure> {
    let owner = match &claim.repo_root {
        None => return Ok(Binding::Taken),
        Some(owner) if owner.as_str().is_empty() => return Ok(Binding::Taken),
        Some(owner) if owner.is_same(repo) => return Ok(Binding::Ours),
        Some(owner) => owner,
    };
    match reclaim {
        Reclaim::Yes => Ok(Binding::Taken),
        Reclaim::No => Err(Failure::new(
            Code::OtherRepository,
            format!(
                "lease {} is claimed by repo {}; use --reclaim to claim it for {}",
                claim.lease_id,
                owner.as_str(),
                repo.as_str()
            ),
        )),
    }
}

/// The claim after a use by `repo`, which [`check`] allowed. The creator is cleared: from now on the claim does not depend on that process.
#[must_use]
pub fn bind(
    claim: &Claim,
    repo: &RepoRoot,
    binding: Binding,
    now: Timestamp,
    idle_timeout_seconds: u64,
) -> Claim {
    let mut claim = touch(claim, now, idle_timeout_seconds);
    claim.creator = None;
    match binding {
        Binding::Ours => {}
        Binding::Taken => {
            claim.repo_root = Some(repo.clone());
            claim.claimed_at = claim.last_used_at;
        }
    }
    claim
}

/// The claim after a use. The end that the TTL sets stays.
#[must_use]
pub fn touch(claim: &Claim, now: Timestamp, idle_timeout_seconds: u64) -> Claim {
    Claim {
        last_used_at: whole_seconds(now),
        idle_timeout_seconds,
        ..claim.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{claim, time};
    use super::*;

    fn repo(path: &str) -> RepoRoot {
        RepoRoot::new(Path::new(path)).unwrap()
    }

    #[test]
    fn another_repository_is_refused_in_the_known_words() {
        let failure = check(&claim("x_1"), &repo("/src/other"), Reclaim::No).unwrap_err();
        assert_eq!(failure.code, Code::OtherRepository);
        assert_eq!(failure.code.exit_code(), 2);
        assert_eq!(
            failure.message,
            "lease x_1 is claimed by repo /src/app; use --reclaim to claim it for /src/other"
        );
    }

    #[test]
    fn our_own_needs_no_reclaim() {
        for reclaim in [Reclaim::No, Reclaim::Yes] {
            for path in ["/src/app", "/src/app/", "/src//app"] {
                let binding = check(&claim("x_1"), &repo(path), reclaim);
                assert_eq!(binding, Ok(Binding::Ours), "{path}");
            }
        }
        // Not by prefix.
        assert!(check(&claim("x_1"), &repo("/src/app2"), Reclaim::No).is_err());
        assert!(check(&claim("x_1"), &repo("/src"), Reclaim::No).is_err());
    }

    #[test]
    fn a_reclaim_rewrites_owner_and_time_and_nothing_else() {
        let before = claim("x_1").kept().ready();
        let other = repo("/src/other");
        let binding = check(&before, &other, Reclaim::Yes).unwrap();
        assert_eq!(binding, Binding::Taken);
        let now = time("2026-08-01T12:20:00.7Z");
        let after = bind(&before, &other, binding, now, 60);
        let expected = Claim {
            repo_root: Some(other),
            claimed_at: time("2026-08-01T12:20:00Z"),
            last_used_at: time("2026-08-01T12:20:00Z"),
            idle_timeout_seconds: 60,
            ..before
        };
        assert_eq!(after, expected);
    }

    #[test]
    fn a_use_moves_the_idle_end_only() {
        let before = claim("x_1").kept().ready();
        let now = time("2026-08-01T12:20:00Z");
        let after = bind(&before, &repo("/src/app"), Binding::Ours, now, 60);
        let expected = Claim {
            last_used_at: now,
            idle_timeout_seconds: 60,
            ..before.clone()
        };
        assert_eq!(after, expected);
        assert_eq!(after, touch(&before, now, 60));
        // Of one whose maker was to remove it, the user is in charge from now on.
        let left = claim("x_1").ready();
        assert!(left.creator.is_some());
        let taken = bind(&left, &repo("/src/app"), Binding::Ours, now, 60);
        assert_eq!(taken.creator, None);
    }

    #[test]
    fn a_claim_without_a_repository_is_taken_by_its_first_user() {
        let mut claim = claim("x_1");
        claim.repo_root = None;
        let ours = repo("/src/app");
        assert_eq!(check(&claim, &ours, Reclaim::No), Ok(Binding::Taken));
    }

    #[test]
    fn paths_that_a_claim_cannot_hold() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        assert!(RepoRoot::new(Path::new("app")).is_err());
        assert!(RepoRoot::new(Path::new(OsStr::from_bytes(b"/src/\xff"))).is_err());
    }
}

//! The life of a lease, written once for every provider: take or reuse, sync, run, keep or release; stop, clean up, look.
//!
//! Claims are the only thing that is written here. What happens to a sandbox is the [`Provider`]'s, and only of
//! sandboxes that a claim names. Every use of one goes through [`Context::verify`].

mod attach;
mod cleanup;
mod deadline;
mod exclusive;
mod fixed;
mod lease;
mod list;
mod outcome;
mod prune;
mod ready;
mod run;
mod settle;
mod status;
mod stop;
mod sync;

use crate::claims::{Claim, ClaimStore, ProviderFilter};
use crate::process::Cancel;
use crate::provider::{self, Provider, Use, Verified};
use crate::{Code, Failure};

pub use attach::{copy, ports};
pub use cleanup::{Action, Cleaned, DryRun, Subject, Swept, cleanup};
pub use deadline::within;
pub use fixed::parse_fixed_id;
pub use lease::{Lease, Terms, warmup};
pub use list::{Listed, Listing, count, list};
pub use outcome::{Outcome, Session};
pub use prune::prune;
pub use run::{Job, Keep, RunRequest, Streams, Target, run};
pub use status::{Status, Watch, status};
pub use stop::{Running, Stopped, stop, stop_with};
pub use sync::Sync;

/// What all of it works with.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub provider: &'a dyn Provider,
    pub store: &'a ClaimStore,
    pub cancel: &'a Cancel,
    /// Lines for people, as they come.
    pub report: &'a dyn Report,
}

/// Where lines for people go.
pub trait Report {
    fn line(&self, line: &str);
    /// A `key=value` line that programs parse, and that a person at a terminal does not need.
    fn fact(&self, line: &str) {
        self.line(line);
    }
    /// Only shown to a user who watches: why this takes so long.
    fn progress(&self, line: &str);
}

impl Context<'_> {
    fn name(&self) -> &'static str {
        self.provider.spec().name
    }

    /// Whether a claim is of this provider, as it is configured.
    fn is_ours(&self, claim: &Claim) -> bool {
        claim.provider == self.name() && self.provider.scope_mismatch(claim).is_none()
    }

    /// The claim that a slug, a lease id, the provider's own name of a sandbox, or the beginning of one slug means. A sandbox without a claim is not
    /// ours.
    pub fn find(&self, identifier: &str) -> Result<Claim, Failure> {
        let claim = self.find_any(identifier)?;
        match self.provider.scope_mismatch(&claim) {
            None => Ok(claim),
            Some(failure) => Err(failure),
        }
    }

    fn find_any(&self, identifier: &str) -> Result<Claim, Failure> {
        let spec = self.provider.spec();
        let among = ProviderFilter::Only(spec.name);
        let prefixed = format!("{}{identifier}", spec.lease_prefix);
        for identifier in [identifier, &prefixed] {
            if let Some(claim) = self.store.find(identifier, among)? {
                return Ok(claim);
            }
        }
        let named = |claim: &Claim| {
            let name = claim.labels.get("claim");
            claim.provider == spec.name && name.is_some_and(|name| name == identifier)
        };
        if let Some(claim) = self.store.scan()?.claims.into_iter().find(named) {
            return Ok(claim);
        }
        if let Some(claim) = self.store.find_by_prefix(identifier, among)? {
            return Ok(claim);
        }
        let shown = identifier.escape_debug();
        let message = format!(
            "{} sandbox \"{shown}\" is not claimed by Crabbox; use a Crabbox slug or {}<sandbox-name>",
            self.provider.called(),
            spec.lease_prefix
        );
        Err(Failure::new(Code::NotFound, message).hint("crabbox list"))
    }

    /// The proof that a sandbox is the one of its claim, for one operation that follows at once.
    fn verify<'c>(&self, claim: &'c Claim, intent: Use) -> Result<Verified<'c>, Failure> {
        provider::verify(self.provider, claim, intent, self.cancel)
    }

    fn canceled(&self) -> bool {
        self.cancel.is_set()
    }
}

//! The life of a lease, written once for every provider: take or reuse, run, keep or release; stop, clean up, look.
//!
//! Claims are the only thing that is written here. What happens to a sandbox is the [`Provider`]'s, and only of
//! sandboxes that a claim names.

mod alone;
mod bounded;
mod cleanup;
mod lease;
mod list;
mod run;
mod status;
mod stop;

use crate::claims::{Claim, ClaimStore, ProviderFilter};
use crate::process::Cancel;
use crate::provider::Provider;
use crate::{Code, Failure};

pub use bounded::within;
pub use cleanup::{Action, Cleaned, DryRun, Subject, Swept, cleanup};
pub use lease::{Lease, Terms, warmup};
pub use list::{Listed, list};
pub use run::{Keep, Outcome, RunRequest, Session, Streams, Target, run};
pub use status::{Status, Watch, status};
pub use stop::stop;

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
    /// For somebody who watches and wonders what takes so long.
    fn progress(&self, line: &str);
}

impl Context<'_> {
    fn name(&self) -> &'static str {
        self.provider.spec().name
    }

    /// The claim that a slug, a lease id or the provider's own name of a sandbox means. Whatever has no claim is not ours.
    pub fn find(&self, identifier: &str) -> Result<Claim, Failure> {
        let spec = self.provider.spec();
        let among = ProviderFilter::Only(spec.name);
        let prefixed = format!("{}{identifier}", spec.lease_prefix);
        for identifier in [identifier, &prefixed] {
            if let Some(claim) = self.store.find(identifier, among)? {
                return Ok(claim);
            }
        }
        let shown = identifier.escape_debug();
        let message = format!(
            "{} sandbox \"{shown}\" is not claimed by Crabbox; use a Crabbox slug or {}<sandbox-name>",
            spec.name, spec.lease_prefix
        );
        Err(Failure::new(Code::NotFound, message).hint("crabbox list"))
    }

    fn canceled(&self) -> bool {
        self.cancel.is_set()
    }
}

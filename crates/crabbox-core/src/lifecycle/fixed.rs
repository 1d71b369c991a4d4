//! Leases whose id the user chose: the same request again is the same lease, and a released id is never used again.

use jiff::Timestamp;

use super::lease::{self, Lease, Origin, Terms};
use super::{Context, ready};
use crate::claims::{Claim, LeaseId, RepoRoot, SlugChoice, State, Wait, binding};
use crate::provider::{Demand, Use, Workspace};
use crate::{Code, Failure};

const PREFIX: &str = "cbx_";
const DIGITS: usize = 12;

/// The form that such ids have.
pub fn parse_fixed_id(text: &str) -> Result<LeaseId, Failure> {
    let digits = text.strip_prefix(PREFIX).unwrap_or("");
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != DIGITS || !digits.bytes().all(is_hex) {
        let message =
            format!("invalid --lease-id {text:?}: it must be {PREFIX}<{DIGITS} hex digits>");
        return Err(Failure::usage(message));
    }
    LeaseId::parse(text)
}

/// The lease of an earlier request with this id; `None` where there is none.
pub(super) fn replay(
    context: Context<'_>,
    workspace: &Workspace,
    terms: &Terms,
    demand: Demand,
    command: &str,
) -> Result<Option<Lease>, Failure> {
    let Some(id) = &terms.lease_id else {
        return Ok(None);
    };
    if context.store.is_retired(id)? {
        let message = format!("lease id {id} was used before and is never used again");
        return Err(Failure::new(Code::State, message).hint("choose another id"));
    }
    if context.store.read(id)?.is_none() {
        return Ok(None);
    }
    let canceled = || context.canceled();
    let wait = Wait::until_canceled(&canceled);
    let lock = context.store.operation(id, command, wait)?;
    // It may have changed by the time it is our turn.
    let Some(claim) = context.store.read(id)? else {
        return Ok(None);
    };
    if let Some(what) = difference(context, workspace, terms, &claim)? {
        let message = format!("lease id {id} belongs to another request: its {what} differs");
        return Err(Failure::new(Code::State, message).hint("choose another id"));
    }
    let mut lease = Lease::new(claim, Origin::Fresh, lock);
    match lease.claim.state {
        State::Releasing => {
            let message = format!("lease {id} is being released");
            let stop = context.provider.stop_command(&lease.claim);
            return Err(Failure::new(Code::NotFound, message).hint(stop));
        }
        // What a process that died has begun is finished: the provider finds its own sandbox again.
        State::Creating => lease::finish(context, workspace, &mut lease, demand, command)?,
        State::Ready => {
            lease::usable(context, &lease.claim)?;
            context.verify(&lease.claim, Use::Reuse)?;
            let labels = ready::wait(context, &lease.claim)?;
            let idle = lease.claim.idle_timeout_seconds;
            let mut used = binding::touch(&lease.claim, Timestamp::now(), idle);
            used.labels.extend(labels);
            lease.claim = context.store.replace(&lease.claim, used)?;
        }
    }
    Ok(Some(lease))
}

/// What the first request asked for that this one does not.
fn difference(
    context: Context<'_>,
    workspace: &Workspace,
    terms: &Terms,
    claim: &Claim,
) -> Result<Option<&'static str>, Failure> {
    let slug = match &terms.slug {
        SlugChoice::Requested(slug) => claim.slug.as_ref() == Some(slug),
        SlugChoice::Generated | SlugChoice::None => true,
    };
    let labels = |(key, value): (&String, &String)| claim.labels.get(key) == Some(value);
    let checks = [
        (claim.is_fixed(), "id"),
        (claim.provider == context.name(), "provider"),
        (context.provider.scope_mismatch(claim).is_none(), "scope"),
        (
            claim.repo_root == Some(RepoRoot::new(&workspace.root)?),
            "repository",
        ),
        (claim.ttl_seconds == terms.ttl.as_secs(), "ttl"),
        (
            claim.idle_timeout_seconds == terms.idle_timeout.as_secs(),
            "idle timeout",
        ),
        (slug, "slug"),
        (terms.labels.iter().all(labels), "pond"),
    ];
    Ok(checks.iter().find(|(same, _)| !same).map(|(_, what)| *what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_twelve_hex_digits_make_an_id() {
        assert!(parse_fixed_id("cbx_0123456789ab").is_ok());
        for bad in [
            "",
            "cbx_",
            "cbx_0123456789AB",
            "cbx_0123456789a",
            "cbx_0123456789abc",
            "asbx_0123456789ab",
        ] {
            assert_eq!(parse_fixed_id(bad).unwrap_err().code, Code::Usage, "{bad}");
        }
    }
}

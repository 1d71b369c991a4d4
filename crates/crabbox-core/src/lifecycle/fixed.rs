//! Leases whose id the user chose: the same request again is the same lease, and a released id is never used again.

use jiff::Timestamp;

use super::lease::{self, Lease, Origin, Terms};
use super::{Context, ready};
use crate::claims::{Claim, LeaseId, OperationLock, RepoRoot, SlugChoice, State, Wait, binding};
use crate::provider::{Demand, MISSING, Use, Workspace};
use crate::{Code, Failure};

const PREFIX: &str = "cbx_";
const DIGITS: usize = 12;
const POND: &str = "pond";

/// The form that such ids have.
pub fn parse_fixed_id(text: &str) -> Result<LeaseId, Failure> {
    let digits = text.strip_prefix(PREFIX).unwrap_or("");
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != DIGITS || !digits.bytes().all(is_hex) {
        let message = format!(
            "invalid --lease-id `{}`: it must be {PREFIX}<{DIGITS} hex digits>",
            crate::printable(text)
        );
        return Err(Failure::usage(message));
    }
    LeaseId::parse(text)
}

/// What is known of the id of a request.
pub(super) enum Replay {
    /// The user chose none.
    NotChosen,
    /// It was never used. No other process uses it as long as the lock is held.
    New(OperationLock),
    /// The lease of an earlier request with the same id.
    Known(Box<Lease>),
}

/// Waits for other requests with the same id.
pub(super) fn replay(
    context: Context<'_>,
    workspace: &Workspace,
    terms: &Terms,
    demand: Demand,
    command: &str,
) -> Result<Replay, Failure> {
    let Some(id) = &terms.lease_id else {
        return Ok(Replay::NotChosen);
    };
    never_released(context, id)?;
    let canceled = || context.canceled();
    let tell = |line: &str| context.report.progress(line);
    let wait = Wait::until_canceled(&canceled).with_notice(&tell);
    let mut lock = context.store.operation(id, command, wait)?;
    // It may have been released, or used for the first time, by the time it is our turn.
    never_released(context, id)?;
    let Some(claim) = context.store.read(id)? else {
        return Ok(Replay::New(lock));
    };
    if let Some(what) = difference(context, workspace, terms, &claim)? {
        let message = format!("lease id {id} belongs to another request: its {what} differs");
        return Err(Failure::new(Code::State, message).hint("choose another id"));
    }
    if claim.state == State::Ready {
        lease::usable(context, &claim, lease::REPLAY)?;
        let verified = context.verify(&claim, Use::Reuse)?;
        if let Some(why) = verified.fact(MISSING) {
            let is_forgotten = why.is_empty();
            return Err(lease::missing(context, &claim, &mut lock, is_forgotten));
        }
    }
    let mut lease = Lease::new(claim, Origin::Fresh, lock);
    match lease.claim.state {
        State::Releasing => {
            let message = format!("lease {id} is being released");
            let stop = context.provider.stop_command(&lease.claim);
            return Err(Failure::new(Code::NotFound, message).hint(stop));
        }
        // What a process that died has begun is finished: the provider finds its own sandbox again.
        State::Creating => {
            lease::resumable(context, &lease.claim)?;
            lease::resume(context, workspace, &mut lease, demand, command)?;
        }
        State::Ready => {
            let labels = ready::wait(context, &lease.claim)
                .map_err(|failure| lease.ended(context, failure))?;
            let idle = lease.claim.idle_timeout_seconds;
            let mut used = binding::touch(&lease.claim, Timestamp::now(), idle);
            used.labels.extend(labels);
            lease.claim = context.store.replace(&lease.claim, used)?;
        }
    }
    Ok(Replay::Known(Box::new(lease)))
}

fn never_released(context: Context<'_>, id: &LeaseId) -> Result<(), Failure> {
    match context.store.is_retired(id)? {
        false => Ok(()),
        true => {
            let message = format!("lease id {id} was used before and is never used again");
            Err(Failure::new(Code::State, message).hint("choose another id"))
        }
    }
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
        (claim.labels.get(POND) == terms.labels.get(POND), "pond"),
        (terms.labels.iter().all(labels), "labels"),
    ];
    match checks.iter().find(|(same, _)| !same) {
        Some((_, what)) => Ok(Some(what)),
        None => context.provider.request_difference(claim, context.cancel),
    }
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

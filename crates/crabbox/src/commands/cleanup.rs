//! `crabbox cleanup`

use clap::ArgMatches;
use crabbox_core::lifecycle::{self, Action, Cleaned, DryRun, Subject, Swept};
use crabbox_core::{Failure, printable};
use serde::Serialize;

use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// Remove expired and idle leases
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Output as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Done<'a> {
    provider: &'a str,
    dry_run: bool,
    entries: Vec<Entry<'a>>,
    removed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims_removed: Option<usize>,
    checked: usize,
    failed: usize,
}

/// What became of one lease, or of a file that is not a claim.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slug: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    action: Action,
    reason: &'a str,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let settings = app.lenient_settings(matches)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let store = app.store()?;
    let dry_run = if args.dry_run {
        DryRun::Yes
    } else {
        app.sweep_env_files()?;
        DryRun::No
    };
    let mut cleaned = lifecycle::cleanup(app.context(&*provider, &store), dry_run)?;
    let name = provider.spec().name;
    // Only where a claim can go without its sandbox is there a second number.
    let alone = !provider.spec().absence_is_proof;
    if args.json {
        app.ui.json(&Done {
            provider: name,
            dry_run: args.dry_run,
            entries: cleaned.swept.iter().map(entry).collect(),
            removed: cleaned.removed,
            claims_removed: alone.then_some(cleaned.claims_removed),
            checked: cleaned.checked,
            failed: cleaned.failures.len(),
        })?;
    } else {
        let is_for_people = app.ui.data_is_for_people(false);
        for swept in &cleaned.swept {
            let line = match is_for_people {
                true => printable(&for_people(swept)),
                false => swept.line(&*provider),
            };
            match swept.action {
                Action::Skip => app.ui.say(&line),
                Action::Delete | Action::WouldDelete | Action::Forget => {
                    app.ui.data(&format!("{line}\n"))?;
                }
            }
        }
        if !args.dry_run {
            let Cleaned {
                removed,
                claims_removed,
                checked,
                ..
            } = &cleaned;
            let claims = match alone {
                true => format!(" claims_removed={claims_removed}"),
                false => String::new(),
            };
            let called = match is_for_people {
                true => provider.called(),
                false => name.to_owned(),
            };
            app.ui.data(&format!(
                "{called} cleanup removed={removed}{claims} checked={checked}\n"
            ))?;
        }
    }
    if cleaned.failures.is_empty() {
        return Ok(0);
    }
    let first = cleaned.failures.remove(0);
    Err(cleaned
        .failures
        .iter()
        .fold(first, |all, other| all.and(other)))
}

/// People call leases by their slugs.
fn for_people(swept: &Swept) -> String {
    let name = match &swept.subject {
        Subject::Claim(claim) => claim.slug_str().unwrap_or(claim.lease_id.as_str()),
        Subject::File(name) => name,
    };
    let done = match swept.action {
        Action::Skip => "kept",
        Action::Delete => "✓ removed",
        Action::WouldDelete => "would remove",
        Action::Forget => "✓ forgot",
    };
    format!("{done} {name}: {}", swept.reason)
}

pub(super) fn entry(swept: &Swept) -> Entry<'_> {
    let (claim, file) = match &swept.subject {
        Subject::Claim(claim) => (Some(claim), None),
        Subject::File(name) => (None, Some(name.as_str())),
    };
    Entry {
        lease_id: claim.map(|claim| claim.lease_id.as_str()),
        slug: claim.and_then(|claim| claim.slug_str()),
        sandbox: claim.and_then(|claim| claim.sandbox()),
        file,
        action: swept.action,
        reason: &swept.reason,
    }
}

//! `crabbox list`

use std::collections::BTreeMap;

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::claims::{Claim, Deadlines};
use crabbox_core::lifecycle::{self, Listed, Listing};
use crabbox_core::provider::Observed;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::cli::parsed;
use crate::ui::table::{rough, table};
use crate::unsupported::{self, CommandKind};

/// List the leases of a provider
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output as JSON
    #[arg(long)]
    json: bool,
    /// Show only leases of this group
    #[arg(long, value_name = "NAME")]
    pond: Option<String>,
    /// Print every field, also on a terminal
    #[arg(long)]
    verbose: bool,
    #[arg(long, hide = true)]
    all: bool,
    #[arg(long, hide = true)]
    refresh: bool,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let settings = app.lenient_settings(matches)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let store = app.store()?;
    let Listing {
        leases: mut listed,
        problems,
        others,
        out_of_scope,
        failure,
    } = lifecycle::list(app.context(&*provider, &store))?;
    for problem in problems {
        app.ui.say(&format!(
            "warning: claim {}: {}",
            problem.file, problem.message
        ));
    }
    if let Some(pond) = &args.pond {
        listed.retain(|one| one.claim.labels.get("pond") == Some(pond));
    }
    let kind = provider.spec().name;
    if args.json {
        let all: Vec<_> = listed.iter().map(|one| entry(one, kind)).collect();
        app.ui.json(&all)?;
    } else if app.ui.data_is_for_people(args.verbose) {
        let notes = notes(&others, kind, out_of_scope.len());
        // That there are none is only said where there are none anywhere.
        if !listed.is_empty() || notes.is_empty() {
            app.ui.data(&for_people(&listed))?;
        }
        for line in notes {
            app.ui.say(&line);
        }
    } else {
        let lines: String = listed.iter().map(|one| line(one, kind)).collect();
        app.ui.data(&lines)?;
        for line in notes(&others, kind, out_of_scope.len()) {
            app.ui.say(&line);
        }
    }
    failure.map_or(Ok(0), Err)
}

/// Where the leases are that are not listed.
fn notes(others: &[Claim], kind: &str, out_of_scope: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for claim in others {
        *counts.entry(&claim.provider).or_default() += 1;
    }
    let leases = |count| match count {
        1 => "1 lease".to_owned(),
        count => format!("{count} leases"),
    };
    let note = |(provider, count): (&str, usize)| {
        let leases = leases(count);
        format!("note: {leases} of provider={provider}: crabbox list --provider {provider}")
    };
    let mut notes: Vec<_> = counts.into_iter().map(note).collect();
    if out_of_scope > 0 {
        let leases = leases(out_of_scope);
        notes.push(format!(
            "note: {leases} of provider={kind} in another scope: crabbox claims list"
        ));
    }
    notes
}

/// What the claim and the provider say of a lease, and what the original says of every lease.
pub(super) fn labels<'a>(
    claim: &'a Claim,
    observed: &'a Observed,
    provider: &'a str,
) -> BTreeMap<&'a str, &'a str> {
    let mut labels = claim.labels_and(&observed.labels);
    labels.extend([
        ("provider", provider),
        ("lease", claim.lease_id.as_str()),
        ("slug", claim.slug_str().unwrap_or("")),
        ("target", "linux"),
        ("state", &observed.state),
    ]);
    labels
}

fn sandbox(one: &Listed) -> &str {
    let labels = one.claim.labels_and(&one.observed.labels);
    labels.get("sandbox").copied().unwrap_or("")
}

/// The original's shape, with the times that it has not.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    #[serde(rename = "CloudID")]
    cloud_id: &'a str,
    #[serde(rename = "Provider")]
    provider: &'a str,
    #[serde(rename = "HostID")]
    host_id: &'a str,
    id: u64,
    name: &'a str,
    status: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    public_net: Value,
    private_net: Value,
    server_type: Value,
    #[serde(flatten)]
    lease: Lease<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lease<'a> {
    lease_id: &'a str,
    slug: Option<&'a str>,
    keep: bool,
    created_at: Timestamp,
    last_used_at: Timestamp,
    idle_timeout_seconds: u64,
    ttl_seconds: u64,
    #[serde(flatten)]
    ends: Deadlines,
}

fn entry<'a>(one: &'a Listed, provider: &'a str) -> Entry<'a> {
    let claim = &one.claim;
    Entry {
        cloud_id: sandbox(one),
        provider,
        host_id: "",
        id: 0,
        name: sandbox(one),
        status: &one.observed.state,
        labels: labels(claim, &one.observed, provider),
        public_net: json!({"ipv4": {"ip": ""}}),
        private_net: json!({"ipv4": {"ip": ""}}),
        server_type: json!({"name": provider}),
        lease: Lease {
            lease_id: claim.lease_id.as_str(),
            slug: claim.slug_str(),
            keep: claim.keep,
            created_at: claim.claimed_at,
            last_used_at: claim.last_used_at,
            idle_timeout_seconds: claim.idle_timeout_seconds,
            ttl_seconds: claim.ttl_seconds,
            ends: claim.deadlines(),
        },
    }
}

/// As people are told of it.
pub(super) fn time(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

/// A table with headers, or a sentence.
fn for_people(listed: &[Listed]) -> String {
    if listed.is_empty() {
        return "No leases. `crabbox warmup` creates a sandbox and keeps it.\n".to_owned();
    }
    let now = Timestamp::now();
    let row = |one: &Listed| {
        let claim = &one.claim;
        let ends = claim.deadlines().due_at;
        [
            claim.slug_str().unwrap_or("-").to_owned(),
            one.observed.state.clone(),
            since(claim.claimed_at, now),
            since(claim.last_used_at, now),
            ends.map_or_else(|| "-".to_owned(), |at| since(now, at)),
            directory(claim),
        ]
    };
    let rows: Vec<_> = listed.iter().map(row).collect();
    let header = ["SLUG", "STATE", "AGE", "IDLE", "ENDS IN", "DIRECTORY"];
    table(header, &rows)
}

/// From one time to a later one.
pub(super) fn since(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.duration_since(from).as_secs();
    rough(u64::try_from(seconds).unwrap_or(0))
}

pub(super) fn directory(claim: &Claim) -> String {
    let root = claim.repo_root.as_ref();
    root.map_or_else(|| "-".to_owned(), |root| root.as_str().to_owned())
}

fn line(one: &Listed, provider: &str) -> String {
    let slug = one.claim.slug_str().unwrap_or("-");
    let ends = one.claim.deadlines();
    let (expires, due) = (time(ends.expires_at), time(ends.due_at));
    format!(
        "{:<20} {:<28} {:<12} {:<14} lease={} slug={slug} keep={} target=linux expires={expires} due={due}\n",
        slug,
        sandbox(one),
        one.observed.state,
        provider,
        one.claim.lease_id,
        one.claim.keep,
    )
}

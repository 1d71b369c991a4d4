//! `crabbox list`

use std::collections::BTreeMap;

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::claims::Deadlines;
use crabbox_core::lifecycle::{self, Listed};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::cli::parsed;
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
    let (mut listed, problems) = lifecycle::list(app.context(&*provider, &store))?;
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
    } else {
        let lines: String = listed.iter().map(|one| line(one, kind)).collect();
        app.ui.data(&lines)?;
    }
    Ok(0)
}

fn labels<'a>(one: &'a Listed, provider: &'a str) -> BTreeMap<&'a str, &'a str> {
    let mut labels = one.claim.labels_and(&one.observed.labels);
    labels.extend([
        ("provider", provider),
        ("lease", one.claim.lease_id.as_str()),
        ("slug", one.claim.slug_str().unwrap_or("")),
        ("target", "linux"),
        ("state", &one.observed.state),
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
        labels: labels(one, provider),
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

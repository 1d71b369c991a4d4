//! `crabbox list`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::lifecycle::{self, Listed};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::cli::parsed;

/// List the leases of a provider
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Only the leases of this group
    #[arg(long, value_name = "NAME")]
    pond: Option<String>,
    #[arg(long, hide = true)]
    all: bool,
    #[arg(long, hide = true)]
    refresh: bool,
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let settings = app.settings(matches)?;
    let provider = app.provider(&settings)?;
    let store = app.store();
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

fn labels(one: &Listed, provider: &str) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut put = |key: &str, value: &str| {
        labels.insert(key.to_owned(), value.into());
    };
    for (key, value) in &one.claim.labels {
        put(key, value);
    }
    for (key, value) in &one.observed.labels {
        put(key, value);
    }
    put("provider", provider);
    put("lease", one.claim.lease_id.as_str());
    put(
        "slug",
        one.claim.slug.as_ref().map_or("", |slug| slug.as_str()),
    );
    put("target", "linux");
    put("state", &one.observed.state);
    labels
}

fn sandbox(one: &Listed) -> &str {
    let name = one
        .observed
        .labels
        .get("sandbox")
        .or_else(|| one.claim.labels.get("sandbox"));
    name.map_or("", String::as_str)
}

/// The original's shape, with the times that it has not.
fn entry(one: &Listed, provider: &str) -> Value {
    json!({
        "CloudID": sandbox(one),
        "Provider": provider,
        "HostID": "",
        "id": 0,
        "name": sandbox(one),
        "status": one.observed.state,
        "labels": labels(one, provider),
        "public_net": {"ipv4": {"ip": ""}},
        "private_net": {"ipv4": {"ip": ""}},
        "server_type": {"name": provider},
        "leaseId": one.claim.lease_id.as_str(),
        "slug": one.claim.slug.as_ref().map(|slug| slug.as_str()),
        "keep": one.claim.keep,
        "createdAt": one.claim.claimed_at,
        "lastUsedAt": one.claim.last_used_at,
        "idleTimeoutSeconds": one.claim.idle_timeout_seconds,
        "ttlSeconds": one.claim.ttl_seconds,
        "expiresAt": one.expires_at,
    })
}

fn line(one: &Listed, provider: &str) -> String {
    let slug = one.claim.slug.as_ref().map_or("-", |slug| slug.as_str());
    let expires = one
        .expires_at
        .map_or_else(|| "-".to_owned(), |time| time.to_string());
    format!(
        "{:<20} {:<28} {:<12} {:<14} lease={} slug={slug} keep={} target=linux expires={expires}\n",
        slug,
        sandbox(one),
        one.observed.state,
        provider,
        one.claim.lease_id,
        one.claim.keep,
    )
}

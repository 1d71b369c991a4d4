//! `crabbox status`

use std::time::Duration;

use clap::ArgMatches;
use crabbox_core::lifecycle::{self, Status, Watch};
use crabbox_core::provider::Phase;
use crabbox_core::settings::{format_duration, parse_duration};
use crabbox_core::{Code, Failure};
use serde_json::{Value, json};

use super::routing::{self, Which};
use crate::app::App;
use crate::cli::parsed;

/// Show one lease
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Wait until it is ready
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    wait_timeout: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let id = args.which.identifier("status")?;
    let patience = parse_duration(&args.wait_timeout)
        .map_err(|error| Failure::new(Code::Usage, format!("--wait-timeout: {error}")))?;
    let settings = routing::settings_for(app, matches, id)?;
    let provider = app.provider(&settings)?;
    let store = app.store();
    let watch = if args.wait {
        Watch::UntilReady(patience)
    } else {
        Watch::Once
    };
    let status = lifecycle::status(app.context(&*provider, &store), id, watch)?;
    let name = provider.spec().name;
    if args.json {
        app.ui.json(&entry(&status, name))?;
    } else {
        app.ui.data(&line(&status, name))?;
    }
    Ok(0)
}

fn slug(status: &Status) -> Option<&str> {
    status.claim.slug.as_ref().map(|slug| slug.as_str())
}

/// To the second: this is for people.
fn seconds(duration: Duration) -> String {
    format_duration(Duration::from_secs(duration.as_secs()))
}

fn entry(status: &Status, provider: &str) -> Value {
    let claim = &status.claim;
    let mut labels = claim.labels.clone();
    labels.extend(status.observed.labels.clone());
    json!({
        "id": claim.lease_id.as_str(),
        "slug": slug(status),
        "provider": provider,
        "target": "linux",
        "state": status.observed.state,
        "serverId": labels.get("sandbox"),
        "serverType": provider,
        "host": "",
        "network": "public",
        "sshHost": "", "sshUser": "", "sshPort": "", "sshKey": "",
        "lastTouchedAt": claim.last_used_at,
        "idleFor": seconds(status.idle_for),
        "idleTimeout": seconds(Duration::from_secs(claim.idle_timeout_seconds)),
        "expiresAt": status.expires_at,
        "repoRoot": claim.repo_root,
        "labels": labels,
        "hasHost": false,
        "ready": status.observed.phase == Phase::Ready,
    })
}

fn line(status: &Status, provider: &str) -> String {
    let claim = &status.claim;
    let expires = status
        .expires_at
        .map_or_else(|| "-".to_owned(), |time| time.to_string());
    format!(
        "{} slug={} provider={provider} target=linux windows_mode=- state={} type={provider} host= pond={} network=public ready={} has_host=false idle_for={} idle_timeout={} expires={expires}\n",
        claim.lease_id,
        slug(status).unwrap_or("-"),
        status.observed.state,
        claim.labels.get("pond").map_or("-", String::as_str),
        status.observed.phase == Phase::Ready,
        seconds(status.idle_for),
        seconds(Duration::from_secs(claim.idle_timeout_seconds)),
    )
}

//! `crabbox status`

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ArgMatches;
use crabbox_core::claims::{Claim, Deadlines, RepoRoot};
use crabbox_core::lifecycle::{self, Status, Watch};
use crabbox_core::provider::Phase;
use crabbox_core::settings::{format_duration, parse_duration};
use crabbox_core::{Code, Failure};
use jiff::Timestamp;
use serde::Serialize;

use super::list::{directory, labels, since, time};
use super::routing::{self, Which};
use crate::app::App;
use crate::cli::parsed;
use crate::ui::table::{rough, table};
use crate::unsupported::{self, CommandKind};

/// Show a lease
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Wait until the lease is ready
    #[arg(long)]
    wait: bool,
    /// Maximum time to wait
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        allow_hyphen_values = true
    )]
    wait_timeout: String,
    /// Output as JSON
    #[arg(long)]
    json: bool,
    /// Print every field, also on a terminal
    #[arg(long)]
    verbose: bool,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let id = args.which.identifier("status")?;
    let timeout = parse_duration(&args.wait_timeout).map_err(|error| {
        Failure::new(
            Code::Usage,
            format!(
                "invalid duration `{}` for --wait-timeout: {error}",
                args.wait_timeout
            ),
        )
    })?;
    let settings = routing::lenient_settings_for(app, matches, id)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let store = app.store()?;
    let watch = if args.wait {
        Watch::UntilReady(timeout)
    } else {
        Watch::Once
    };
    let (status, ended) = lifecycle::status(app.context(&*provider, &store), id, watch)?;
    let name = provider.spec().name;
    // What it ended in is told, also where the wait was in vain.
    if args.json {
        app.ui.json(&entry(&status, name))?;
    } else if app.ui.data_is_for_people(args.verbose) {
        app.ui.data(&for_people(&status))?;
    } else {
        app.ui.data(&line(&status, name))?;
    }
    ended.map(|()| 0)
}

/// To the second: this is for people.
fn seconds(duration: Duration) -> String {
    format_duration(Duration::from_secs(duration.as_secs()))
}

/// The original's shape.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slug: Option<&'a str>,
    provider: &'a str,
    target: &'a str,
    state: &'a str,
    server_id: Option<&'a str>,
    server_type: &'a str,
    host: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pond: Option<&'a str>,
    network: &'a str,
    ssh_host: &'a str,
    ssh_user: &'a str,
    ssh_port: &'a str,
    ssh_key: &'a str,
    last_touched_at: Timestamp,
    idle_for: String,
    idle_timeout: String,
    #[serde(flatten)]
    ends: Deadlines,
    repo_root: Option<&'a RepoRoot>,
    labels: BTreeMap<&'a str, &'a str>,
    has_host: bool,
    ready: bool,
}

pub(super) fn entry<'a>(status: &'a Status, provider: &'a str) -> Entry<'a> {
    let claim = &status.claim;
    let labels = labels(claim, &status.observed, provider);
    Entry {
        id: claim.lease_id.as_str(),
        slug: claim.slug_str(),
        provider,
        target: "linux",
        state: &status.observed.state,
        server_id: labels.get("sandbox").copied(),
        server_type: provider,
        host: "",
        pond: pond(claim),
        network: "public",
        ssh_host: "",
        ssh_user: "",
        ssh_port: "",
        ssh_key: "",
        last_touched_at: claim.last_used_at,
        idle_for: seconds(status.idle_for),
        idle_timeout: seconds(Duration::from_secs(claim.idle_timeout_seconds)),
        ends: claim.deadlines(),
        repo_root: claim.repo_root.as_ref(),
        labels,
        has_host: false,
        ready: status.observed.phase == Phase::Ready,
    }
}

fn pond(claim: &Claim) -> Option<&str> {
    claim.labels.get("pond").map(String::as_str)
}

fn for_people(status: &Status) -> String {
    let claim = &status.claim;
    let ends = claim.deadlines().due_at;
    let ready = match status.observed.phase == Phase::Ready {
        true => "yes",
        false => "no",
    };
    let row = [
        claim.slug_str().unwrap_or("-").to_owned(),
        status.observed.state.clone(),
        ready.to_owned(),
        rough(status.idle_for.as_secs()),
        ends.map_or_else(|| "-".to_owned(), |at| since(Timestamp::now(), at)),
        directory(claim),
        claim.lease_id.to_string(),
    ];
    let header = [
        "SLUG",
        "STATE",
        "READY",
        "IDLE",
        "ENDS IN",
        "DIRECTORY",
        "LEASE",
    ];
    table(header, &[row])
}

fn line(status: &Status, provider: &str) -> String {
    let claim = &status.claim;
    let ends = claim.deadlines();
    let (expires, due) = (time(ends.expires_at), time(ends.due_at));
    format!(
        "{} slug={} provider={provider} target=linux windows_mode=- state={} type={provider} host= pond={} network=public ready={} has_host=false idle_for={} idle_timeout={} expires={expires} due={due}\n",
        claim.lease_id,
        claim.slug_str().unwrap_or("-"),
        status.observed.state,
        pond(claim).unwrap_or("-"),
        status.observed.phase == Phase::Ready,
        seconds(status.idle_for),
        seconds(Duration::from_secs(claim.idle_timeout_seconds)),
    )
}

//! `crabbox inspect`

use clap::ArgMatches;
use crabbox_core::claims::State;
use crabbox_core::history::{Bounds, Record, RunStore};
use crabbox_core::lifecycle::{self, Status, Watch};
use crabbox_core::provider::{Phase, Provider};
use crabbox_core::{Failure, printable};
use jiff::Timestamp;
use serde::Serialize;

use super::list::{labels, time};
use super::routing::{self, Which};
use super::status;
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// How many runs are shown.
const RUNS: usize = 5;

/// Show everything about a lease
///
/// What `status` shows, the local claim, the last runs in it, and the command that removes it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Output as JSON
    #[arg(long)]
    json: bool,
}

/// The keys of `status`, and more.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Inspected<'a> {
    #[serde(flatten)]
    status: status::Entry<'a>,
    claim_state: State,
    keep: bool,
    created_at: Timestamp,
    ttl_seconds: u64,
    idle_timeout_seconds: u64,
    provider_scope: &'a str,
    stop_command: String,
    runs: &'a [Record],
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let id = args.which.identifier("inspect")?;
    let settings = routing::lenient_settings_for(app, matches, id)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let store = app.store()?;
    let (status, _) = lifecycle::status(app.context(&*provider, &store), id, Watch::Once)?;
    let lease = status.claim.lease_id.as_str();
    let mut runs = RunStore::new(&app.host.state()?, Bounds::default())
        .list()?
        .runs;
    runs.retain(|run| run.lease_id == lease);
    runs.truncate(RUNS);
    if args.json {
        app.ui.json(&inspected(&status, &*provider, &runs))?;
    } else {
        app.ui.data(&text(&status, &*provider, &runs))?;
    }
    Ok(0)
}

fn inspected<'a>(
    status: &'a Status,
    provider: &'a dyn Provider,
    runs: &'a [Record],
) -> Inspected<'a> {
    let claim = &status.claim;
    Inspected {
        status: status::entry(status, provider.spec().name),
        claim_state: claim.state,
        keep: claim.keep,
        created_at: claim.claimed_at,
        ttl_seconds: claim.ttl_seconds,
        idle_timeout_seconds: claim.idle_timeout_seconds,
        provider_scope: &claim.provider_scope,
        stop_command: provider.stop_command(claim),
        runs,
    }
}

/// One thing per line: what it is, and its value.
fn text(status: &Status, provider: &dyn Provider, runs: &[Record]) -> String {
    let claim = &status.claim;
    let ready = match status.observed.phase {
        Phase::Ready => "ready",
        _ => "not ready",
    };
    let ends = claim.deadlines();
    let repository = claim.repo_root.as_ref();
    let mut rows = vec![
        ("lease", claim.lease_id.to_string()),
        ("slug", claim.slug_str().unwrap_or("-").to_owned()),
        ("provider", provider.spec().name.to_owned()),
        ("state", format!("{} ({ready})", status.observed.state)),
        (
            "repository",
            repository.map_or("-", |root| root.as_str()).to_owned(),
        ),
        ("keep", claim.keep.to_string()),
        ("created", claim.claimed_at.to_string()),
        ("last used", claim.last_used_at.to_string()),
        ("expires", time(ends.expires_at)),
        ("due", time(ends.due_at)),
    ];
    let own = ["lease", "provider", "slug", "state", "target"];
    let labels = labels(claim, &status.observed, provider.spec().name);
    let further = labels.iter().filter(|(key, _)| !own.contains(key));
    rows.extend(further.map(|(key, value)| ("label", format!("{key}={value}"))));
    rows.extend(runs.iter().map(|run| ("run", run_line(run))));
    rows.push(("stop", provider.stop_command(claim)));
    // Some of it is text of a server or of a repository.
    let line = |(name, value): (&str, String)| format!("{name:<11} {}\n", printable(&value));
    rows.into_iter().map(line).collect()
}

fn run_line(run: &Record) -> String {
    let exit = run
        .exit_code
        .map_or("-".to_owned(), |code| code.to_string());
    let (id, status, command) = (&run.run_id, run.run_status.as_str(), &run.command);
    format!("{id} {status} exit={exit} {command}")
}

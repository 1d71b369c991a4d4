//! `crabbox warmup`

use std::time::{Duration, Instant};

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::claims::{Claim, Deadlines};
use crabbox_core::lifecycle;
use crabbox_core::provider::Provider;
use crabbox_core::timing::{ErrorKind, Phase, RunStatus, classify, format_ms, millis};
use serde::Serialize;

use super::run::{requested_slug, terms};
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// Create a sandbox and keep it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the new lease
    #[arg(long, value_name = "NAME")]
    slug: Option<String>,
    /// Group of leases that this one belongs to
    #[arg(long, value_name = "NAME")]
    pond: Option<String>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide = true)]
    keep: Option<bool>,
    #[arg(long, hide = true)]
    reclaim: bool,
    /// Print how long it took, as one line of JSON
    #[arg(long)]
    timing_json: bool,
    /// Output the lease or failure as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Leased<'a> {
    lease_id: &'a str,
    slug: &'a str,
    provider: &'a str,
    sandbox: &'a str,
    #[serde(flatten)]
    ends: Deadlines,
    cleanup_command: String,
}

/// The part of a run's report that applies.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Timing<'a> {
    provider: &'a str,
    lease_id: &'a str,
    slug: &'a str,
    sync_ms: u64,
    command_ms: u64,
    total_ms: u64,
    exit_code: u8,
    run_status: RunStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
    phases: [Phase; 1],
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let slug = requested_slug(args.slug.as_deref())?;
    let settings = app.settings(matches)?;
    let provider = app.provider(&settings)?;
    let spec = provider.spec();
    unsupported::check(matches, CommandKind::Warmup, spec)?;
    if args.keep == Some(false) {
        return Err(Failure::usage(format!(
            "{} warmup keeps its sandbox; --keep=false is not possible",
            spec.name
        ))
        .hint("crabbox run -- <command> removes its sandbox"));
    }
    app.warn_no_effect(&settings, spec);
    app.sweep_env_files()?;
    let started = Instant::now();
    let store = app.store()?;
    let terms = terms(&settings, slug, true, args.pond.as_deref());
    let workspace = app.named_workspace()?;
    let made = lifecycle::warmup(app.context(&*provider, &store), &workspace, &terms);
    let total = started.elapsed();
    let told = made
        .as_ref()
        .map_or(Ok(()), |claim| tell(app, &args, &*provider, claim, total));
    if args.timing_json {
        app.ui.timing(&timing(spec.name, &made, millis(total)))?;
    }
    made.and(told.map(|()| 0))
}

fn tell(
    app: &App<'_>,
    args: &Args,
    provider: &dyn Provider,
    claim: &Claim,
    total: Duration,
) -> Result<(), Failure> {
    let spec = provider.spec();
    let lease = claim.lease_id.as_str();
    let slug = claim.slug_str().unwrap_or("-");
    let sandbox = claim.sandbox().unwrap_or("-");
    if args.json {
        app.ui.json(&Leased {
            lease_id: lease,
            slug,
            provider: spec.name,
            sandbox,
            ends: claim.deadlines(),
            cleanup_command: provider.stop_command(claim),
        })
    } else {
        app.ui.data(&format!(
            "leased {lease} slug={slug} provider={} sandbox={sandbox}\nwarmup complete total={}\n",
            spec.name,
            format_ms(total)
        ))
    }
}

/// Also for a warmup that failed: then there is no lease to name.
fn timing<'a>(provider: &'a str, made: &'a Result<Claim, Failure>, ms: u64) -> Timing<'a> {
    let ended = made.as_ref().map(|_| 0).map_err(Clone::clone);
    let (run_status, error_kind) = classify(&ended);
    let claim = made.as_ref().ok();
    Timing {
        provider,
        lease_id: claim.map_or("", |claim| claim.lease_id.as_str()),
        slug: claim.map_or("", |claim| claim.slug_str().unwrap_or("-")),
        sync_ms: 0,
        command_ms: 0,
        total_ms: ms,
        exit_code: ended.map_or_else(|failure| failure.code.exit_code(), |_| 0),
        run_status,
        error_kind,
        phases: [Phase {
            name: "lease".to_owned(),
            ms,
        }],
    }
}

//! `crabbox warmup`

use std::time::{Duration, Instant};

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::claims::{Claim, Deadlines, LeaseId};
use crabbox_core::lifecycle::{self, Keep, Terms, parse_fixed_id};
use crabbox_core::provider::Provider;
use crabbox_core::timing::{ErrorKind, Phase, RunStatus, classify, format_ms, millis};
use serde::Serialize;

use super::ending::next_steps;
use super::run::{requested_slug, terms};
use crate::app::App;
use crate::cli::parsed;
use crate::ui::table::took;
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
    /// Print `key=value` lines, also on a terminal
    #[arg(long)]
    verbose: bool,
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
    sync_skipped: bool,
    command_ms: u64,
    total_ms: u64,
    end_to_end_ms: u64,
    exit_code: u8,
    run_status: RunStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
    phases: [Phase; 1],
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let WarmedLease {
        provider,
        claim: made,
        took: total,
    } = make(app, &args, matches)?;
    let told = made
        .as_ref()
        .map_or(Ok(()), |claim| tell(app, &args, &*provider, claim, total));
    if args.timing_json {
        let name = provider.spec().name;
        app.ui.timing(&timing(name, &made, millis(total)))?;
    }
    made.and(told.map(|()| 0))
}

/// A lease for another command of ours, which tells of it where it tells everything else.
pub(super) fn lease(app: &App<'_>, matches: &ArgMatches) -> Result<Claim, Failure> {
    let args: Args = parsed(matches)?;
    let WarmedLease {
        provider, claim, ..
    } = make(app, &args, matches)?;
    let claim = claim?;
    app.ui.say(&leased(&*provider, &claim));
    Ok(claim)
}

/// What came of it.
struct WarmedLease {
    provider: Box<dyn Provider>,
    claim: Result<Claim, Failure>,
    took: Duration,
}

fn make(app: &App<'_>, args: &Args, matches: &ArgMatches) -> Result<WarmedLease, Failure> {
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
    let terms = Terms {
        lease_id: fixed_id(matches)?,
        ..terms(&settings, slug, Keep::Yes, args.pond.as_deref())
    };
    let workspace = app.named_workspace()?;
    let slow = app.ui.notice_if_slow(creating(&*provider));
    let claim = lifecycle::warmup(app.context(&*provider, &store), &workspace, &terms);
    drop(slow);
    Ok(WarmedLease {
        provider,
        claim,
        took: started.elapsed(),
    })
}

/// `--lease-id`, where the provider takes it: it is among the flags that others refuse.
fn fixed_id(matches: &ArgMatches) -> Result<Option<LeaseId>, Failure> {
    let mut given = matches.get_many::<String>("lease-id").into_iter().flatten();
    given.next_back().map(|id| parse_fixed_id(id)).transpose()
}

/// What a person is told who waits for a sandbox.
pub(super) fn creating(provider: &dyn Provider) -> String {
    format!("Creating a sandbox ({})...", provider.runner())
}

fn leased(provider: &dyn Provider, claim: &Claim) -> String {
    let lease = claim.lease_id.as_str();
    let slug = claim.slug_str().unwrap_or("-");
    let names = provider.names_when_leased(claim);
    let provider = provider.spec().name;
    format!("leased {lease} slug={slug} provider={provider} {names}")
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
    } else if app.ui.data_is_for_people(args.verbose) {
        let took = took(millis(total));
        app.ui.data(&format!(
            "✓ {took}  {slug} is ready\n{}\n",
            next_steps(provider, slug)
        ))
    } else {
        let leased = leased(provider, claim);
        let took = format_ms(total);
        app.ui
            .data(&format!("{leased}\nwarmup complete total={took}\n"))
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
        sync_skipped: true,
        command_ms: 0,
        total_ms: ms,
        end_to_end_ms: ms,
        exit_code: ended.map_or_else(|failure| failure.exit_code(), |_| 0),
        run_status,
        error_kind,
        phases: [Phase {
            name: "lease".to_owned(),
            ms,
        }],
    }
}

//! `crabbox warmup`

use std::time::Instant;

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::claims::Ends;
use crabbox_core::lifecycle;
use crabbox_core::timing::{Phase, RunStatus, format_ms, millis};
use serde::Serialize;

use super::run::{requested_slug, terms};
use crate::app::App;
use crate::cli::parsed;
use crate::refusals::{self, Of};

/// Make a sandbox and keep it
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
    /// The lease, or the failure, as JSON
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
    ends: Ends,
    cleanup_command: String,
}

/// What there is to say of it in the words of a run's report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Timing<'a> {
    provider: &'a str,
    lease_id: &'a str,
    slug: &'a str,
    sync_ms: u64,
    command_ms: u64,
    total_ms: u64,
    exit_code: i32,
    run_status: RunStatus,
    phases: [Phase; 1],
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let slug = requested_slug(args.slug.as_deref())?;
    let settings = app.settings(matches)?;
    let provider = app.provider(&settings)?;
    let spec = provider.spec();
    refusals::check(matches, Of::Warmup, spec)?;
    if args.keep == Some(false) {
        return Err(Failure::usage(format!(
            "{} warmup keeps its sandbox; --keep=false is not possible",
            spec.name
        ))
        .hint("crabbox run -- <command> removes its sandbox"));
    }
    app.sweep_env_files()?;
    let started = Instant::now();
    let store = app.store()?;
    let terms = terms(&settings, slug, true, args.pond.as_deref());
    let claim = lifecycle::warmup(
        app.context(&*provider, &store),
        &app.named_workspace()?,
        &terms,
    )?;
    let total = started.elapsed();
    let lease = claim.lease_id.as_str();
    let slug = claim.slug_str().unwrap_or("-");
    let sandbox = claim.sandbox().unwrap_or("-");
    if args.json {
        app.ui.json(&Leased {
            lease_id: lease,
            slug,
            provider: spec.name,
            sandbox,
            ends: claim.ends(),
            cleanup_command: provider.stop_command(&claim),
        })?;
    } else {
        app.ui.data(&format!(
            "leased {lease} slug={slug} provider={} sandbox={sandbox}\nwarmup complete total={}\n",
            spec.name,
            format_ms(total)
        ))?;
    }
    if args.timing_json {
        let ms = millis(total);
        app.ui.timing(&Timing {
            provider: spec.name,
            lease_id: lease,
            slug,
            sync_ms: 0,
            command_ms: 0,
            total_ms: ms,
            exit_code: 0,
            run_status: RunStatus::Succeeded,
            phases: [Phase {
                name: "lease".to_owned(),
                ms,
            }],
        })?;
    }
    Ok(0)
}

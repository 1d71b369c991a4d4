//! `crabbox cleanup`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::lifecycle::{self, DryRun};
use serde::Serialize;

use crate::app::App;
use crate::cli::parsed;

/// Remove leases whose time is over
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Done<'a> {
    lines: &'a [String],
    removed: usize,
    checked: usize,
    failed: usize,
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let settings = app.settings_whatever_the_repository_says(matches)?;
    let provider = app.provider(&settings)?;
    let store = app.store()?;
    let dry_run = if args.dry_run {
        DryRun::Yes
    } else {
        DryRun::No
    };
    let mut cleaned = lifecycle::cleanup(app.context(&*provider, &store), dry_run)?;
    if args.json {
        app.ui.json(&Done {
            lines: &cleaned.lines,
            removed: cleaned.removed,
            checked: cleaned.checked,
            failed: cleaned.failures.len(),
        })?;
    } else {
        let text: String = cleaned
            .lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect();
        app.ui.data(&text)?;
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

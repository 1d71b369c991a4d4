//! `crabbox history`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::command::display;
use crabbox_core::history::{Bounds, Record, RunStore};
use jiff::Timestamp;
use serde::Serialize;

use super::list::since;
use crate::app::App;
use crate::cli::parsed;
use crate::ui::table::{columns, cut, table, took};

/// List local runs, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Maximum number of runs to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Show only runs with this label
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Output as JSON
    #[arg(long)]
    json: bool,
    /// Print every field, also on a terminal
    #[arg(long)]
    verbose: bool,
}

#[derive(Debug, Serialize)]
struct Runs<'a> {
    version: u32,
    runs: &'a [Record],
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let ledger = RunStore::new(&app.host.state()?, Bounds::default());
    let mut listing = ledger.list()?;
    if let Some(label) = &args.label {
        listing.runs.retain(|run| run.label.as_ref() == Some(label));
    }
    listing.runs.truncate(args.limit);
    for problem in &listing.problems {
        app.ui.say(&format!(
            "warning: run {}: {}",
            problem.run_id, problem.reason
        ));
    }
    if args.json {
        app.ui.json(&Runs {
            version: 1,
            runs: &listing.runs,
        })?;
    } else if app.ui.data_is_for_people(args.verbose) {
        app.ui.data(&for_people(&listing.runs, columns()))?;
    } else {
        let lines: String = listing.runs.iter().map(line).collect();
        app.ui.data(&lines)?;
    }
    Ok(0)
}

/// A table with headers, or a sentence. Commands end where the terminal does: one of many words would fill it.
fn for_people(runs: &[Record], columns: Option<usize>) -> String {
    if runs.is_empty() {
        return "No runs recorded. Try: crabbox run -- COMMAND\n".to_owned();
    }
    let now = Timestamp::now();
    let none = || "-".to_owned();
    let row = |run: &Record| {
        [
            run.run_id.clone(),
            run.run_status.as_str().to_owned(),
            run.exit_code.map_or_else(none, |code| code.to_string()),
            run.timing
                .as_ref()
                .map_or_else(none, |timing| took(timing.end_to_end_ms)),
            format!("{} ago", since(run.started_at, now)),
            run.command.clone(),
        ]
    };
    let rows: Vec<_> = runs.iter().map(row).collect();
    let text = table(
        ["RUN", "STATUS", "EXIT", "TOOK", "STARTED", "COMMAND"],
        &rows,
    );
    match columns {
        Some(columns) => text.lines().map(|line| cut(line, columns) + "\n").collect(),
        None => text,
    }
}

fn line(run: &Record) -> String {
    let code = run
        .exit_code
        .map_or_else(|| "-".to_owned(), |code| code.to_string());
    let took = run.timing.as_ref().map_or_else(
        || "-".to_owned(),
        |timing| format!("{}ms", timing.end_to_end_ms),
    );
    let slug = if run.slug.is_empty() { "-" } else { &run.slug };
    let label = run
        .label
        .as_ref()
        .map_or_else(String::new, |label| format!(" label={}", display(&[label])));
    format!(
        "{} {:<11} exit={code:<3} {took:>8} {:.3} slug={slug}{label}{} {}\n",
        run.run_id,
        run.run_status.as_str(),
        run.started_at,
        phases(run),
        run.command
    )
}

/// How long each part took.
fn phases(run: &Record) -> String {
    let timing = run.timing.iter();
    timing
        .flat_map(|timing| &timing.phases)
        .map(|phase| format!(" {}={}ms", phase.name, phase.ms))
        .collect()
}

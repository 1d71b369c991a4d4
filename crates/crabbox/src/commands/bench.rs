//! `crabbox bench report`

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use crabbox_core::bench::{Group, default_ledger, parse, report};
use crabbox_core::{Code, Failure};
use serde::Serialize;

use crate::app::App;
use crate::cli;

const LEDGER: &str = "timing-record";
const MIN_SAMPLES: &str = "min-samples";

pub(crate) fn command(name: &'static str) -> Command {
    Command::new(name)
        .about("Compare recorded timings")
        .subcommand_required(true)
        .subcommand(
            Command::new("report")
                .about("Show median and 95th percentile by provider and command")
                .long_about(
                    "Show median and 95th percentile by provider and command\n\n\
                     `crabbox run --timing-record default -- COMMAND` records a run. Only runs that succeeded are counted.",
                )
                .arg(
                    Arg::new(LEDGER)
                        .long(LEDGER)
                        .value_name("FILE")
                        .help("Ledger to read [default: that of `run --timing-record default`]"),
                )
                .arg(
                    Arg::new(MIN_SAMPLES)
                        .long(MIN_SAMPLES)
                        .value_name("N")
                        .default_value("2")
                        .value_parser(value_parser!(usize))
                        .help("Minimum number of runs for a reliable result"),
                )
                .arg(cli::switch("json", "Output as JSON")),
        )
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    schema_version: u32,
    ledger: String,
    min_samples: usize,
    observations: usize,
    unread_lines: usize,
    groups: &'a [Group],
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let Some((_, matches)) = matches.subcommand() else {
        return Err(Failure::usage("usage: crabbox bench report"));
    };
    let path = match matches.get_one::<String>(LEDGER).map(String::as_str) {
        None | Some("default") => default_ledger(&app.host.state()?),
        Some(path) => app.host.cwd.join(path),
    };
    let min_samples = matches.get_one::<usize>(MIN_SAMPLES).copied();
    let min_samples = min_samples.unwrap_or_default();
    let (observations, unread_lines) = parse(&read(&path)?);
    if unread_lines > 0 {
        let path = path.display();
        app.ui.say(&format!(
            "warning: {path}: {unread_lines} lines are not timing records"
        ));
    }
    let groups = report(&observations, min_samples);
    if matches.get_flag("json") {
        app.ui.json(&Shown {
            schema_version: 1,
            ledger: path.display().to_string(),
            min_samples,
            observations: observations.len(),
            unread_lines,
            groups: &groups,
        })?;
    } else {
        let lines: String = groups.iter().map(line).collect();
        app.ui.data(&lines)?;
    }
    Ok(0)
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => {
            let message = format!("cannot read the timing record `{}`", path.display());
            Err(Failure::new(Code::NotFound, message)
                .because(&error)
                .hint("crabbox run --timing-record default -- <command>"))
        }
    }
}

fn line(group: &Group) -> String {
    let note = match group.insufficient_evidence {
        true => " insufficient_evidence=true",
        false => "",
    };
    format!(
        "{} samples={} failed={} total_median={}ms total_p95={}ms command_median={}ms command_p95={}ms{note} {}\n",
        group.provider,
        group.samples,
        group.failed,
        group.total_ms.median,
        group.total_ms.p95,
        group.command_ms.median,
        group.command_ms.p95,
        group.command
    )
}

//! `crabbox logs`

use std::io::Read;

use clap::ArgMatches;
use crabbox_core::history::{Bounds, RunStore};
use crabbox_core::process::Stream;
use crabbox_core::{Code, Failure};

use crate::app::App;
use crate::cli::parsed;

/// Print the output of a run
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print stderr instead of stdout
    #[arg(long)]
    stderr: bool,
    /// Output failures as JSON
    #[arg(long)]
    json: bool,
    /// Run id or unique prefix, slug, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    run: String,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let ledger = RunStore::new(&app.host.state()?, Bounds::default());
    let record = ledger.find(&args.run)?;
    let stream = if args.stderr {
        Stream::Stderr
    } else {
        Stream::Stdout
    };
    let mut text = Vec::new();
    if let Some(mut log) = ledger.read_log(&record.run_id, stream)? {
        log.read_to_end(&mut text).map_err(|error| {
            Failure::new(Code::State, "cannot read the run log").because(&error)
        })?;
    }
    if record.terminal {
        let id = &record.run_id;
        app.ui.say(&format!(
            "run {id} used a terminal (`run -t`); its output was not recorded"
        ));
    }
    app.ui.bytes(&text)?;
    Ok(0)
}

//! `crabbox completion`

use clap::ArgMatches;
use clap_complete::Shell;
use crabbox_core::Failure;
use crabbox_providers::DEFAULT;

use crate::app::App;
use crate::cli::{parsed, tree};

/// Print a shell completion script
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut tree(DEFAULT), "crabbox", &mut script);
    app.ui.bytes(&script)?;
    Ok(0)
}

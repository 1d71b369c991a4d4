//! `sbx policy profile`

use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;

/// Show organization profiles (there are none)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List profiles
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        let Command::Ls { json } = &self.command;
        *json
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.json() {
        return context.ui.json(&json!({"profiles": []}));
    }
    context.ui.data("No profiles found.\n")
}

//! `sbx network`: the older commands, kept for compatibility.

mod log;
mod proxy;

use crate::context::Context;
use crate::failure::Failure;

/// Older network commands; use `sbx policy` instead
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Proxy(proxy::Args),
    Log(log::Args),
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        matches!(&self.command, Command::Log(args) if args.shown.json)
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Proxy(args) => proxy::run(context, args),
        Command::Log(args) => log::run(context, args),
    }
}

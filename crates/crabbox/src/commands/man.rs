//! `crabbox man`

use clap::ArgMatches;
use crabbox_core::{Code, Failure};
use crabbox_providers::DEFAULT;

use crate::app::App;
use crate::cli::{parsed, tree};

/// Print the manual page of crabbox or one of its commands
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Command, such as `run` or `config show`
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let root = tree(DEFAULT);
    let mut command = &root;
    for name in &args.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let named = args.command.join(" ");
            Failure::usage(format!("unknown command `{named}`")).hint("crabbox --help")
        })?;
    }
    let words = std::iter::once("crabbox").chain(args.command.iter().map(String::as_str));
    let words: Vec<_> = words.collect();
    let mut text = Vec::new();
    // Below the program the tree does not know how its commands are called.
    clap_mangen::Man::new(command.clone().bin_name(words.join(" ")))
        .title(words.join("-"))
        .render(&mut text)
        .map_err(|error| {
            Failure::new(Code::Local, "cannot render the manual page").because(&error)
        })?;
    app.ui.bytes(&text)?;
    Ok(0)
}

//! `crabbox man`

use clap::ArgMatches;
use crabbox_core::{Code, Failure};
use crabbox_providers::DEFAULT;

use crate::app::App;
use crate::cli::{parsed, tree};

/// Print the manual page of crabbox or of one of its commands
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let root = tree(DEFAULT);
    let (title, command) = match &args.command {
        None => ("crabbox".to_owned(), root),
        Some(name) => {
            let found = root.find_subcommand(name).cloned();
            let missing =
                || Failure::usage(format!("there is no command `{name}`")).hint("crabbox --help");
            (format!("crabbox-{name}"), found.ok_or_else(missing)?)
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .title(title)
        .render(&mut text)
        .map_err(|error| Failure::new(Code::Local, "cannot write the page").because(&error))?;
    app.ui.bytes(&text)?;
    Ok(0)
}

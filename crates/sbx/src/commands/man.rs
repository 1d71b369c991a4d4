//! `sbx man`

use crate::context::Context;
use crate::failure::Failure;

/// Print the manual page of sbx or of one of its commands
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(crate) fn run(context: &Context, args: &Args, sbx: clap::Command) -> Result<(), Failure> {
    let (title, command) = match &args.command {
        None => ("sbx".to_owned(), sbx),
        Some(name) => {
            let found = sbx.find_subcommand(name).cloned();
            let missing =
                || Failure::usage(format!("there is no command `{name}`")).hint("sbx --help");
            (format!("sbx-{name}"), found.ok_or_else(missing)?)
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .title(title)
        .render(&mut text)
        .map_err(|error| Failure::failed(format!("cannot write the page: {error}")))?;
    context.ui.data(text)
}

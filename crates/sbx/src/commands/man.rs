//! `sbx man`

use crate::context::Context;
use crate::failure::Failure;

/// Print the manual page of sbx or of a command
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, such as `policy allow network`
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(context: &Context, args: &Args, sbx: clap::Command) -> Result<(), Failure> {
    let mut title = "sbx".to_owned();
    let mut command = &sbx;
    for word in &args.command {
        command = command.find_subcommand(word).ok_or_else(|| {
            let name = args.command.join(" ");
            Failure::usage(format!("unknown command `{name}`")).hint("sbx --help")
        })?;
        title = format!("{title}-{}", command.get_name());
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(title)
        .render(&mut text)
        .map_err(|error| Failure::failed(format!("cannot write the manual page: {error}")))?;
    context.ui.data(text)
}

//! `sbx completion`

use clap_complete::Shell;

use crate::context::Context;
use crate::failure::Failure;

/// Print a shell completion script
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell to complete for
    #[arg(value_enum)]
    shell: ShellName,
    /// Omit descriptions
    #[arg(long)]
    no_descriptions: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ShellName {
    Bash,
    Fish,
    Powershell,
    Zsh,
}

pub(crate) fn run(context: &Context, args: &Args, mut sbx: clap::Command) -> Result<(), Failure> {
    if args.no_descriptions {
        sbx = without_descriptions(sbx);
    }
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Fish => Shell::Fish,
        ShellName::Powershell => Shell::PowerShell,
        ShellName::Zsh => Shell::Zsh,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut sbx, "sbx", &mut script);
    context.ui.data(script)
}

fn without_descriptions(command: clap::Command) -> clap::Command {
    command
        .about(None::<&str>)
        .mut_args(|arg| arg.help(None::<&str>))
        .mut_subcommands(without_descriptions)
}

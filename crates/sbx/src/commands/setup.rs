//! `sbx setup`

use std::path::PathBuf;

use crate::context::Context;
use crate::env::SBX_HOME;
use crate::failure::{Failure, Kind};
use crate::ssh::Alias;
use crate::ssh::config::{Block, Config};

/// Make other programs of this machine use sandboxes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make `ssh NAME.sbx` open a session in a sandbox
    ///
    /// Writes a marked block into ~/.ssh/config; the rest of the file stays as it is. No port is opened and no key is needed:
    /// ssh starts `sbx ssh proxy` for each connection. Programs that use ssh work too, as scp, sftp, rsync and remote editors.
    #[command(
        after_help = "Examples:\n  sbx setup ssh\n  ssh dev.sbx\n  scp file dev.sbx:/tmp/\n  sbx setup ssh remove"
    )]
    Ssh(Ssh),
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct Ssh {
    /// Host names that stand for sandboxes: `*` is the sandbox's name
    #[arg(long, value_name = "PATTERN", default_value = Alias::DEFAULT)]
    alias: String,
    /// Print the block and change nothing
    #[arg(long)]
    print: bool,
    #[command(subcommand)]
    command: Option<SshCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum SshCommand {
    /// Remove the block
    Remove,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let Command::Ssh(args) = &args.command;
    match args.command {
        Some(SshCommand::Remove) => remove(context),
        None => install(context, args),
    }
}

pub(crate) fn config(context: &Context) -> Result<Config, Failure> {
    let home = context.env.home().filter(|home| home.is_absolute());
    home.map(|home| Config::of(&home)).ok_or_else(|| {
        Failure::new(Kind::BadRequest, "HOME is not set").hint("set HOME to your home directory")
    })
}

fn install(context: &Context, args: &Ssh) -> Result<(), Failure> {
    let alias = Alias::parse(&args.alias)?;
    let state = context.state()?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let given = context.env.get(SBX_HOME).filter(|path| !path.is_empty());
    // As the environment of ssh may lack it.
    let sbx_home: Option<PathBuf> = given.map(|_| state.root().to_owned());
    let block = Block {
        alias: &alias,
        program: &program,
        state: state.root(),
        sbx_home: sbx_home.as_deref(),
    };
    let block = block.text()?;
    if args.print {
        return context.ui.data(block);
    }
    let config = config(context)?;
    let path = config.path();
    let host = alias.pattern().replace('*', "NAME");
    if config.install(&block)? {
        context.ui.note(format!("Changed {}", path.display()));
    } else {
        context
            .ui
            .note(format!("{} is as it should be", path.display()));
    }
    context.ui.note(format!("hint: ssh {host}"));
    Ok(())
}

fn remove(context: &Context) -> Result<(), Failure> {
    let config = config(context)?;
    let path = config.path();
    if config.remove(None)? {
        context.ui.note(format!("Changed {}", path.display()));
    } else {
        context
            .ui
            .note(format!("{} has no block of sbx", path.display()));
    }
    Ok(())
}

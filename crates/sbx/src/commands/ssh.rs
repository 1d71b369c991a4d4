//! `sbx ssh`: what ssh starts by itself.

use crate::context::Context;
use crate::failure::Failure;
use crate::ssh::{self, Alias};

/// What `ssh NAME.sbx` starts by itself, see `sbx setup ssh`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Serve one SSH connection to a sandbox on stdin and stdout (ProxyCommand)
    Proxy(Proxy),
    /// Print the host key as a line of known_hosts (KnownHostsCommand)
    KnownHosts(KnownHosts),
}

#[derive(Debug, clap::Args)]
struct Proxy {
    /// Pattern of host names that stand for sandboxes
    #[arg(long, value_name = "PATTERN", default_value = Alias::DEFAULT)]
    alias: String,
    /// Host name as it was given to ssh
    #[arg(value_name = "HOST")]
    host: String,
}

#[derive(Debug, clap::Args)]
struct KnownHosts {
    /// Host name that ssh looks for
    #[arg(value_name = "HOST")]
    host: String,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Proxy(args) => {
            let alias = Alias::parse(&args.alias)?;
            ssh::proxy(context, alias.sandbox(&args.host))
        }
        Command::KnownHosts(args) => known_hosts(context, args),
    }
}

fn known_hosts(context: &Context, args: &KnownHosts) -> Result<(), Failure> {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '*' | '?' | '!' | '|' | '#');
    if args.host.is_empty() || !args.host.chars().all(plain) {
        return Err(Failure::usage(format!(
            "invalid host name `{}`",
            args.host.escape_debug()
        )));
    }
    let state = context.state()?;
    // Without a state directory there is no sandbox, and no key.
    if !state.is_claimed() {
        return Ok(());
    }
    let key = ssh::host_key::load_or_make(&state)?;
    context
        .ui
        .data(format!("{} {}\n", args.host, key.public_line()))
}

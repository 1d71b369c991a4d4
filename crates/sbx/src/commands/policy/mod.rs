//! `sbx policy`: what sandboxes may reach. Commands that only look read the files, whether a daemon runs or not.

mod add;
mod allow;
mod check;
mod deny;
mod init;
mod inspect;
pub(crate) mod log;
mod ls;
mod profile;
mod reset;
mod rm;
mod suggest;

pub(crate) use init::{choose, presets};

use sbx_engine::SandboxName;
use sbx_engine::policy::{PolicyBook, PolicyBookError};

use crate::client::unknown;
use crate::context::Context;
use crate::failure::Failure;
use crate::reading;

/// Decide what sandboxes may reach, and see what they did
///
/// Rules allow or deny hosts, for all sandboxes or for one. A deny always wins; what no rule allows is denied.
/// Rules take effect at once, also for connections that are open.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(alias = "set-default")]
    Init(init::Args),
    Allow(allow::Args),
    Deny(deny::Args),
    Rm(rm::Args),
    #[command(visible_alias = "list")]
    Ls(ls::Args),
    Inspect(inspect::Args),
    Check(check::Args),
    Log(log::Args),
    Suggest(suggest::Args),
    Reset(reset::Args),
    #[command(hide = true)]
    Profile(profile::Args),
}

/// What rules and log entries are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RuleType {
    All,
    Network,
    Filesystem,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.command {
            Command::Ls(args) => args.json,
            Command::Inspect(args) => args.json,
            Command::Check(args) => args.json(),
            Command::Log(args) => args.shown.json,
            Command::Suggest(args) => args.json,
            Command::Profile(args) => args.json(),
            Command::Init(_)
            | Command::Allow(_)
            | Command::Deny(_)
            | Command::Rm(_)
            | Command::Reset(_) => false,
        }
    }
}

/// The number is the exit code.
pub(crate) fn run(context: &Context, args: &Args) -> Result<u8, Failure> {
    let done = |()| 0;
    match &args.command {
        Command::Init(args) => init::run(context, args).map(done),
        Command::Allow(args) => allow::run(context, args).map(done),
        Command::Deny(args) => deny::run(context, args).map(done),
        Command::Rm(args) => rm::run(context, args).map(done),
        Command::Ls(args) => ls::run(context, args).map(done),
        Command::Inspect(args) => inspect::run(context, args).map(done),
        Command::Check(args) => check::run(context, args),
        Command::Log(args) => log::run(context, args).map(done),
        Command::Suggest(args) => suggest::run(context, args).map(done),
        Command::Reset(args) => reset::run(context, args).map(done),
        Command::Profile(args) => profile::run(context, args).map(done),
    }
}

/// The rules as they lie on disk.
pub(crate) fn book(context: &Context) -> Result<PolicyBook, Failure> {
    Ok(PolicyBook::new(
        &context.state()?,
        context.env.default_proxy_config(),
    ))
}

/// The name of a sandbox that exists, without a daemon.
pub(crate) fn existing(context: &Context, name: &str) -> Result<SandboxName, Failure> {
    let state = context.state()?;
    let found = SandboxName::parse(name)
        .ok()
        .filter(|name| state.sandbox(name).record().exists());
    match found {
        Some(name) => Ok(name),
        None => Err(unknown(name, &reading::list(context)?)),
    }
}

/// Said beside the rules while nobody has chosen.
fn note_when_unchosen(context: &Context, book: &PolicyBook) -> Result<(), PolicyBookError> {
    if book.load()?.is_none() {
        context.ui.note(
            "No network policy has been chosen yet: \"balanced\" holds. \
             Choose with: sbx policy init allow-all|balanced|deny-all",
        );
    }
    Ok(())
}

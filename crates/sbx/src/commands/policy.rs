//! `sbx policy`: the network policy. Read-only commands read the files directly, with or without a daemon.

mod add;
mod allow;
mod check;
mod deny;
mod init;
mod inspect;
pub(crate) mod log;
mod ls;
mod profile;
pub(crate) mod repo;
mod reset;
mod rm;
mod suggest;

pub(crate) use init::{choose, presets};

use sbx_engine::SandboxName;
use sbx_engine::policy::{PolicyBook, PolicyBookError};
use sbx_policy::Scope;

use crate::client::unknown;
use crate::context::Context;
use crate::failure::Failure;
use crate::lookup;

/// Manage the network policy and show the network log
///
/// Rules allow or deny hosts, for all sandboxes, for those of a repository or for one sandbox. A deny rule always wins; what no rule allows is denied.
/// Changes take effect immediately, also for open connections.
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

/// The type of rules and log entries.
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

/// Returns the exit code.
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

/// The rules on disk.
pub(crate) fn book(context: &Context) -> Result<PolicyBook, Failure> {
    Ok(PolicyBook::new(
        &context.state()?,
        context.env.default_proxy_config(),
    ))
}

/// The name of an existing sandbox, checked without a daemon.
pub(crate) fn existing(context: &Context, name: &str) -> Result<SandboxName, Failure> {
    let state = context.state()?;
    let found = SandboxName::parse(name)
        .ok()
        .filter(|name| state.sandbox(name).record().exists());
    match found {
        Some(name) => Ok(name),
        None => Err(unknown(name, &lookup::list(context)?)),
    }
}

/// The scope of an existing sandbox.
fn sandbox_scope(context: &Context, name: &str) -> Result<Scope, Failure> {
    existing(context, name).map(|name| Scope::Sandbox(name.to_string()))
}

/// Shown beside the rules until a preset has been chosen.
fn note_default_preset(context: &Context, book: &PolicyBook) -> Result<(), PolicyBookError> {
    if book.load()?.is_none() {
        context.ui.note(
            "No network policy has been chosen yet; the default is \"balanced\". \
             Choose one with: sbx policy init allow-all|balanced|deny-all",
        );
    }
    Ok(())
}

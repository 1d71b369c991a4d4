//! `sbx policy reset`

use crate::client::{Absent, Client};
use crate::commands::daemon;
use crate::context::Context;
use crate::failure::{Failure, Kind};

/// Take the choice of a preset back and remove all rules
///
/// Stops the daemon and with it all sandboxes; what is in them is kept, and so is the network log.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do not ask
    #[arg(short = 'f', long)]
    force: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    if !context.state()?.is_claimed() {
        context.ui.note("There is no network policy to reset.");
        return Ok(());
    }
    confirm(context, args)?;
    // Started if need be: sandboxes may run without a daemon.
    Client::new(context, Absent::Start)?.reset_policy()?;
    daemon::end(&Client::new(context, Absent::Report)?)?;
    context.ui.note(
        "Network policy reset: all rules are removed, the sandboxes are stopped. \
         Choose again with: sbx policy init allow-all|balanced|deny-all",
    );
    Ok(())
}

fn confirm(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.force {
        return Ok(());
    }
    if !context.ui.interactive() {
        return Err(Failure::new(
            Kind::BadRequest,
            "resetting the network policy needs a confirmation, and there is no terminal to ask on",
        )
        .hint("use --force"));
    }
    let question = "Remove all network rules and stop all sandboxes?";
    if context.ui.confirm(question) {
        Ok(())
    } else {
        Err(Failure::failed("nothing was reset"))
    }
}

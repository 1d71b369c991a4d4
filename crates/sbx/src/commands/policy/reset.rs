//! `sbx policy reset`

use crate::client::{Absent, Client};
use crate::commands::daemon;
use crate::context::Context;
use crate::failure::Failure;

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
    let question = "Remove all network rules and stop all sandboxes?";
    context
        .ui
        .agreed(args.force, "resetting the network policy", question)?;
    // Started if need be: sandboxes may run without a daemon.
    Client::new(context, Absent::Start)?.reset_policy()?;
    daemon::end(context)?;
    context.ui.note(
        "Network policy reset: all rules are removed, the sandboxes are stopped. \
         Choose again with: sbx policy init allow-all|balanced|deny-all",
    );
    Ok(())
}

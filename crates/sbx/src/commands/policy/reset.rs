//! `sbx policy reset`

use crate::client::{Absent, Client};
use crate::commands::daemon;
use crate::context::Context;
use crate::failure::Failure;

/// Remove all network rules and the chosen preset
///
/// Stops the daemon and all sandboxes. The files of sandboxes and the network log are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do not ask for confirmation
    #[arg(short = 'f', long)]
    force: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    if !context.state()?.is_claimed() {
        context.ui.note("No network policy to reset.");
        return Ok(());
    }
    let question = "Remove all network rules and stop all sandboxes?";
    context
        .ui
        .confirm(args.force, "resetting the network policy", question)?;
    // Started if necessary: sandboxes may run without a daemon.
    Client::new(context, Absent::Start)?.reset_policy()?;
    daemon::end(context)?;
    context.ui.note(
        "Network policy reset: all rules were removed and all sandboxes stopped. \
         Choose a new one with: sbx policy init allow-all|balanced|deny-all",
    );
    Ok(())
}

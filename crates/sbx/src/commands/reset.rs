//! `sbx reset`

use sbx_engine::machine::Machines;
use sbx_engine::machine::namespace::helper::Helper;
use sbx_engine::machine::namespace::{Namespace, ids};
use sbx_engine::reset;

use crate::commands::daemon;
use crate::context::Context;
use crate::failure::{Failure, Kind};

/// Stop everything and remove all sandboxes, templates, network rules, logs and settings
///
/// Workspaces are not touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do not ask for confirmation
    #[arg(short = 'f', long)]
    force: bool,
    /// Keep stored secrets (no effect: this version stores none)
    #[arg(long)]
    preserve_secrets: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let state = context.state()?;
    if !state.is_claimed() {
        state.check_own()?;
        context.ui.note("Nothing to reset.");
        return Ok(());
    }
    let question = "Remove all sandboxes, templates, network rules, logs and settings?";
    context.ui.confirm(args.force, "the reset", question)?;
    daemon::end(context)?;
    let path = context.env.get("PATH").unwrap_or_default();
    let facts = ids::Facts::read(&std::env::split_paths(path).collect::<Vec<_>>());
    let helper = Helper::new().map_err(|error| {
        Failure::new(
            Kind::Engine,
            format!("cannot prepare the set-up helper: {error}"),
        )
    })?;
    reset(&state, &Machines::new(Namespace::new(facts, helper, None)))?;
    context
        .ui
        .note(format!("Removed everything in {}", state.root().display()));
    Ok(())
}

//! `sbx reset`

use std::path::Path;

use sbx_api::{Sandbox, Status};
use sbx_engine::machine::Machines;
use sbx_engine::machine::namespace::helper::Helper;
use sbx_engine::machine::namespace::{Namespace, ids};
use sbx_engine::sandbox::offline;
use sbx_engine::{StateDir, reset};

use crate::commands::{daemon, setup};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::lookup;

/// How many sandboxes are named; more are counted.
const MAX_NAMES: usize = 20;

/// Stop everything and remove all sandboxes, templates, build caches, network rules, logs and settings
///
/// Shows what will be removed and asks for confirmation. Workspaces are not touched. A block of `sbx setup ssh` in ~/.ssh/config is removed too.
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
    context.ui.note(announcement(
        &state,
        &listed(context, &state)?,
        saved(&state),
    ));
    context
        .ui
        .confirm(args.force, "the reset", "Remove all of this?")?;
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
    forget_ssh(context, state.root());
    context
        .ui
        .note(format!("Removed everything in {}", state.root().display()));
    Ok(())
}

/// A daemon that answers nothing is ended by the reset, and does not keep it from saying what it removes.
fn listed(context: &Context, state: &StateDir) -> Result<Vec<Sandbox>, Failure> {
    match lookup::list(context) {
        Err(failure) if failure.kind == Kind::Unreachable => {
            offline::list(state).map_err(Failure::from)
        }
        other => other,
    }
}

/// Everything else is gone by then: what cannot be changed there is said, and no failure.
fn forget_ssh(context: &Context, state: &Path) {
    let removed = setup::config(context).and_then(|config| config.remove(Some(state)));
    if let Err(failure) = removed {
        context.ui.warning(failure.message);
    }
}

/// How many templates were saved, as far as that can be told.
fn saved(state: &StateDir) -> usize {
    sbx_engine::saved::list(state).map_or(0, |saved| saved.len())
}

/// What will be gone.
fn announcement(state: &StateDir, sandboxes: &[Sandbox], saved: usize) -> String {
    let running = sandboxes.iter().filter(|it| it.status == Status::Running);
    let names: Vec<&str> = sandboxes.iter().map(|it| it.name.as_str()).collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    let mut listed = names
        .into_iter()
        .take(MAX_NAMES)
        .collect::<Vec<_>>()
        .join(", ");
    if more > 0 {
        listed.push_str(&format!(" and {more} more"));
    }
    let sandboxes = match sandboxes.len() {
        0 => "no sandboxes".to_owned(),
        1 => format!("1 sandbox, {} running: {listed}", running.count()),
        count => format!("{count} sandboxes, {} running: {listed}", running.count()),
    };
    let templates = match saved {
        0 => "templates".to_owned(),
        count => format!("templates, with {count} saved from sandboxes,"),
    };
    format!(
        "This removes everything in {}:\n  {sandboxes}\n  {templates} and build caches\n  network rules and the \
         network log\n  settings and the daemon's log\nWorkspaces are not touched.",
        state.root().display()
    )
}

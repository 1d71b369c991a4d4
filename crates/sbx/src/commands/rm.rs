//! `sbx rm`

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::client::{Absent, Client, unknown_as};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::lookup;

/// How many sandboxes are removed at the same time.
const MAX_PARALLEL: usize = 8;

/// Remove sandboxes; workspaces are not touched
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of sandboxes
    #[arg(value_name = "SANDBOX", required_unless_present = "all")]
    names: Vec<String>,
    /// Remove all sandboxes
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Do not ask for confirmation, and also remove sandboxes with open sessions
    #[arg(short = 'f', long)]
    force: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // Without starting a daemon: there may be nothing to do.
    let existing = lookup::list(context)?;
    let names: Vec<String> = if args.all {
        existing
            .iter()
            .map(|sandbox| sandbox.name.clone())
            .collect()
    } else {
        args.names.clone()
    };
    let mut failed = false;
    let mut wanted = Vec::new();
    for name in names {
        if wanted.contains(&name) {
            continue;
        }
        if existing.iter().any(|sandbox| sandbox.name == name) {
            wanted.push(name);
        } else {
            // Programs that drive Docker's sbx read these words.
            let message = format!("sandbox '{}' not found", name.escape_debug());
            let failure = unknown_as(message, &name, &existing);
            context.ui.failure(&failure);
            failed = true;
        }
    }
    if !wanted.is_empty() {
        let names = wanted.join(", ");
        let them = if wanted.len() == 1 { "it" } else { "them" };
        context.ui.confirm(
            args.force,
            &format!("removing {names}"),
            &format!("Remove {names} and everything in {them}?"),
        )?;
        failed |= !remove_all(context, &wanted, args.force)?;
    } else if args.all {
        context.ui.note("No sandboxes found.");
    }
    if failed {
        return Err(Failure::quiet(1));
    }
    Ok(())
}

/// Removes several at a time, as each may have to wait for processes that do not end. False when one could not be removed.
fn remove_all(context: &Context, names: &[String], force: bool) -> Result<bool, Failure> {
    let client = Client::new(context, Absent::Start)?;
    let next = AtomicUsize::new(0);
    let all_removed = AtomicBool::new(true);
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            context.ui.note(format!("Deleting sandbox {name}..."));
            match client.remove(name, force) {
                Ok(removed) => {
                    context.ui.note(format!("Sandbox '{name}' removed"));
                    for warning in &removed.warnings {
                        context.ui.warning(warning);
                    }
                }
                // Another `rm` was faster, or the daemon's clean-up of half-created sandboxes.
                Err(failure) if failure.kind == Kind::NotFound => {
                    context
                        .ui
                        .note(format!("Sandbox '{name}' was already removed"));
                }
                Err(failure) => {
                    context.ui.failure(&failure);
                    all_removed.store(false, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..names.len().min(MAX_PARALLEL) {
            // If no thread can be started, this one does all the work.
            drop(std::thread::Builder::new().spawn_scoped(scope, work));
        }
        work();
    });
    Ok(all_removed.into_inner())
}

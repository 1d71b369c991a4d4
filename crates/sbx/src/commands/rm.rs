//! `sbx rm`

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sbx_api::Removed;

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
    /// Nothing is asked: `docker sandbox rm` never did.
    #[arg(skip)]
    confirmed: bool,
}

impl Args {
    /// As the plugin of Docker's command line wants it.
    pub(crate) fn confirmed(self) -> Self {
        Self {
            confirmed: true,
            ..self
        }
    }
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
            args.force || args.confirmed,
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

/// False when one could not be removed.
fn remove_all(context: &Context, names: &[String], force: bool) -> Result<bool, Failure> {
    let client = Client::new(context, Absent::Start)?;
    let all_removed = AtomicBool::new(true);
    several_at_a_time(names, |name| {
        context.ui.note(format!("Deleting sandbox {name}..."));
        if let Err(failure) = told(context, name, client.remove(name, force)) {
            context.ui.failure(&failure);
            all_removed.store(false, Ordering::Relaxed);
        }
    });
    Ok(all_removed.into_inner())
}

/// Says what became of a sandbox that was to be removed. One that no longer exists is not a failure: another `rm` was
/// faster, or the daemon's clean-up of half-created sandboxes.
pub(crate) fn told(
    context: &Context,
    name: &str,
    removed: Result<Removed, Failure>,
) -> Result<(), Failure> {
    match removed {
        Ok(removed) => {
            context.ui.note(format!("Sandbox '{name}' removed"));
            for warning in &removed.warnings {
                context.ui.warning(warning);
            }
            Ok(())
        }
        Err(failure) if failure.kind == Kind::NotFound => {
            context
                .ui
                .note(format!("Sandbox '{name}' was already removed"));
            Ok(())
        }
        Err(failure) => Err(failure),
    }
}

/// Each may have to wait for processes that do not end.
pub(crate) fn several_at_a_time<T: Sync>(items: &[T], remove: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            remove(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..items.len().min(MAX_PARALLEL) {
            // If no thread can be started, this one does all the work.
            drop(std::thread::Builder::new().spawn_scoped(scope, work));
        }
        work();
    });
}

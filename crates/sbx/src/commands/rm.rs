//! `sbx rm`

use crate::client::{Absent, Client, unknown};
use crate::context::Context;
use crate::failure::Failure;
use crate::reading;

/// Remove sandboxes and everything in them; workspaces are not touched
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of sandboxes
    #[arg(value_name = "SANDBOX", required_unless_present = "all")]
    names: Vec<String>,
    /// Remove all sandboxes
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Do not ask, and also remove sandboxes with an open session
    #[arg(short = 'f', long)]
    force: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // Looked up first, without starting anything: there may be nothing to do.
    let existing = reading::list(context)?;
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
        if existing.iter().any(|sandbox| sandbox.name == name) {
            wanted.push(name);
        } else {
            context.ui.failure(&unknown(&name, &existing));
            failed = true;
        }
    }
    if !wanted.is_empty() {
        let names = wanted.join(", ");
        context.ui.agreed(
            args.force,
            &format!("removing {names}"),
            &format!("Remove {names} and everything in it?"),
        )?;
        let client = Client::new(context, Absent::Start)?;
        for name in &wanted {
            context.ui.note(format!("Deleting sandbox {name}..."));
            match client.remove(name, args.force) {
                Ok(()) => context.ui.note(format!("Sandbox '{name}' removed")),
                Err(failure) => {
                    context.ui.failure(&failure);
                    failed = true;
                }
            }
        }
    } else if args.all {
        context.ui.note("No sandboxes found.");
    }
    if failed {
        return Err(Failure::quiet(1));
    }
    Ok(())
}

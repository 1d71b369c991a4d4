//! `sbx stop`

use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::Failure;
use crate::reading;

/// Stop sandboxes; what is in them is kept
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of sandboxes
    #[arg(value_name = "SANDBOX", required = true)]
    names: Vec<String>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // Looked up first, without starting anything: there may be nothing to do.
    let existing = reading::list(context)?;
    let client = Client::new(context, Absent::Start)?;
    let mut failed = false;
    for name in &args.names {
        let stopped = reading::pick(&existing, name).and_then(|_| client.stop(name));
        match stopped {
            Ok(sandbox) if sandbox.temporary => context.ui.note(format!(
                "Sandbox '{name}' stopped and removed: it was started with --rm"
            )),
            Ok(_) => context.ui.note(format!(
                "Sandbox '{name}' stopped; start it again with: sbx run --name {name}"
            )),
            Err(failure) => {
                context.ui.failure(&failure);
                failed = true;
            }
        }
    }
    if failed {
        return Err(Failure::quiet(1));
    }
    Ok(())
}

//! `sbx stop`

use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::Failure;
use crate::lookup;

/// Stop sandboxes; their files are kept
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of sandboxes
    #[arg(value_name = "SANDBOX", required = true)]
    names: Vec<String>,
    /// Print the names and nothing else, as `docker sandbox stop` does.
    #[arg(skip)]
    names_only: bool,
}

impl Args {
    /// As the plugin of Docker's command line wants it.
    pub(crate) fn names_only(self) -> Self {
        Self {
            names_only: true,
            ..self
        }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // Without starting a daemon: there may be nothing to do.
    let existing = lookup::list(context)?;
    let client = Client::new(context, Absent::Start)?;
    let mut failed = false;
    for name in &args.names {
        let stopped = lookup::find(&existing, name).and_then(|_| client.stop(name));
        match stopped {
            Ok(_) if args.names_only => context.ui.data(format!("{name}\n"))?,
            Ok(sandbox) if sandbox.temporary => context.ui.note(format!(
                "Sandbox '{name}' stopped and removed (it was started with --rm)"
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

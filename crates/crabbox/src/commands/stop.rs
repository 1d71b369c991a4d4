//! `crabbox stop`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::lifecycle::{self, Report as _, Running};
use serde::Serialize;

use super::routing::{self, Which};
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// Remove a lease and its sandbox
///
/// Waits for running commands. The lease is forgotten only after the sandbox is proved gone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// End running commands instead of waiting for them
    #[arg(long)]
    force: bool,
    #[arg(long, hide = true)]
    reclaim: bool,
    /// Output the result or failure as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stopped<'a> {
    lease_id: &'a str,
    slug: Option<&'a str>,
    sandbox: &'a str,
    released: bool,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let id = args.which.identifier("stop")?;
    let settings = routing::lenient_settings_for(app, matches, id)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    if args.reclaim {
        return Err(provider.unsupported("stop --reclaim"));
    }
    app.sweep_env_files()?;
    let store = app.store()?;
    let running = match args.force {
        true => Running::End,
        false => Running::Wait,
    };
    let stopped = lifecycle::stop_with(app.context(&*provider, &store), id, running)?;
    let claim = &stopped.claim;
    let sandbox = claim.sandbox().unwrap_or("-");
    if args.json {
        app.ui.json(&Stopped {
            lease_id: claim.lease_id.as_str(),
            slug: claim.slug_str(),
            sandbox,
            released: !stopped.forgotten,
        })?;
    } else {
        let id = &claim.lease_id;
        // Of a sandbox that is only believed to be gone, the warning says all there is to say.
        if !stopped.forgotten {
            let name = provider.removed_name(claim);
            app.ui.fact(&format!("released lease={id} {name}"));
        }
        let name = claim.slug_str().unwrap_or(id.as_str());
        app.ui.brief(&format!("✓ removed {name}"));
    }
    Ok(0)
}

//! `crabbox cp`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::provider::{CopyEnd, CopyRequest};

use super::routing;
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// Copy files between the host and a sandbox
///
/// Exactly one of SRC and DST is `SANDBOX:PATH`; the other is a path on the host.
#[derive(Debug, clap::Args)]
#[command(override_usage = "crabbox cp --id LEASE [-L] SRC DST")]
pub(crate) struct Args {
    /// Lease slug, lease id or sandbox name
    #[arg(long, value_name = "LEASE", required = true)]
    id: String,
    /// Follow symbolic links in the source
    #[arg(short = 'L')]
    follow_links: bool,
    /// Output failures as JSON
    #[arg(long)]
    json: bool,
    /// Source
    #[arg(value_name = "SRC")]
    from: String,
    /// Destination
    #[arg(value_name = "DST")]
    to: String,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let (from, to) = (end(&args.from), end(&args.to));
    let one_is_inside = matches!(from, CopyEnd::Sandbox(_)) != matches!(to, CopyEnd::Sandbox(_));
    if !one_is_inside {
        return Err(Failure::usage(
            "usage: crabbox cp --id <lease> [-L] <src> <dst>, with exactly one SANDBOX:PATH",
        ));
    }
    let settings = routing::settings_for(app, matches, &args.id)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let store = app.store()?;
    let claim = app.context(&*provider, &store).find(&args.id)?;
    let request = CopyRequest {
        from,
        to,
        follow_links: args.follow_links,
    };
    provider.copy(&claim, &request, &app.cancel)?;
    Ok(0)
}

fn end(text: &str) -> CopyEnd {
    const INSIDE: &str = "sandbox:";
    match text.get(..INSIDE.len()) {
        Some(prefix) if prefix.eq_ignore_ascii_case(INSIDE) => {
            CopyEnd::Sandbox(text.get(INSIDE.len()..).unwrap_or_default().to_owned())
        }
        _ => CopyEnd::Here(text.into()),
    }
}

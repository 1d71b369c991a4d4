//! `crabbox cp`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::lifecycle;
use crabbox_core::provider::{CopyEnd, CopyRequest};

use super::routing;
use crate::app::App;
use crate::cli::parsed;
use crate::refusals::{self, Of};

/// Copy files between here and a sandbox
///
/// One of the two is a path here, and the other one `SANDBOX:PATH`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "crabbox cp --id LEASE [-L] SRC DST")]
pub(crate) struct Args {
    /// The lease: its slug, id or sandbox name
    #[arg(long, value_name = "LEASE", required = true)]
    id: String,
    /// Follow links in the source
    #[arg(short = 'L')]
    follow_links: bool,
    /// Failures as JSON
    #[arg(long)]
    json: bool,
    /// What to copy
    #[arg(value_name = "SRC")]
    from: String,
    /// Where to
    #[arg(value_name = "DST")]
    to: String,
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let (from, to) = (end(&args.from), end(&args.to));
    let one_is_inside = matches!(from, CopyEnd::Sandbox(_)) != matches!(to, CopyEnd::Sandbox(_));
    if !one_is_inside {
        return Err(Failure::usage(
            "usage: crabbox cp --id <lease> [-L] <src> <dst>, with exactly one of them as SANDBOX:PATH",
        ));
    }
    let settings = routing::settings_for(app, matches, &args.id)?;
    let provider = app.provider(&settings)?;
    refusals::check(matches, Of::Other, provider.spec())?;
    let store = app.store()?;
    let request = CopyRequest {
        from,
        to,
        follow_links: args.follow_links,
    };
    lifecycle::copy(app.context(&*provider, &store), &args.id, &request)?;
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

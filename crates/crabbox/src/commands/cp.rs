//! `crabbox cp`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::lifecycle;
use crabbox_core::provider::{CopyEnd, CopyRequest};

use super::routing;
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// Copy files between the host and a sandbox
///
/// Exactly one of SRC and DST is `SANDBOX:PATH`; the other is a path on the host.
#[derive(Debug, clap::Args)]
#[command(override_usage = "crabbox cp [-L] [--id LEASE | LEASE] SRC DST")]
pub(crate) struct Args {
    /// Lease slug, lease id or sandbox name
    #[arg(long, value_name = "LEASE")]
    id: Option<String>,
    /// Follow symbolic links in the source
    #[arg(short = 'L')]
    follow_links: bool,
    /// Output failures as JSON
    #[arg(long)]
    json: bool,
    /// Source and destination, after the lease unless `--id` gives it
    #[arg(value_name = "SRC DST", num_args = 0..=3, hide = true)]
    words: Vec<String>,
}

const USAGE: &str =
    "usage: crabbox cp --id <lease> [-L] <src> <dst>, with exactly one SANDBOX:PATH";

impl Args {
    /// The lease, the source and the destination.
    fn ends(&self) -> Result<(&str, &str, &str), Failure> {
        match (&self.id, self.words.as_slice()) {
            (Some(id), [from, to]) | (None, [id, from, to]) if !id.is_empty() => Ok((id, from, to)),
            (Some(_) | None, _) => Err(Failure::usage(USAGE)),
        }
    }
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let (id, from, to) = args.ends()?;
    let (from, to) = (end(from), end(to));
    let one_is_inside = matches!(from, CopyEnd::Sandbox(_)) != matches!(to, CopyEnd::Sandbox(_));
    if !one_is_inside {
        return Err(Failure::usage(USAGE));
    }
    let settings = routing::settings_for(app, matches, id)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let store = app.store()?;
    let request = CopyRequest {
        from,
        to,
        follow_links: args.follow_links,
    };
    lifecycle::copy(app.context(&*provider, &store), id, &request)?;
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

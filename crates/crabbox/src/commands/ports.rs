//! `crabbox ports`

use clap::ArgMatches;
use crabbox_core::lifecycle;
use crabbox_core::provider::PortsRequest;
use crabbox_core::{Code, Failure};
use serde_json::Value;

use super::routing::{self, Which};
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// List, publish or unpublish ports of a sandbox
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Port to publish (can be repeated)
    #[arg(long, value_name = "PORT")]
    publish: Vec<String>,
    /// Port to unpublish (can be repeated)
    #[arg(long, value_name = "PORT")]
    unpublish: Vec<String>,
    /// Output as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    if !args.publish.is_empty() && !args.unpublish.is_empty() {
        return Err(Failure::usage(
            "use either --publish or --unpublish, not both",
        ));
    }
    let id = args.which.identifier("ports")?;
    let settings = routing::settings_for(app, matches, id)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let store = app.store()?;
    let request = PortsRequest {
        publish: args.publish.clone(),
        unpublish: args.unpublish.clone(),
        json: args.json,
    };
    let said = lifecycle::ports(app.context(&*provider, &store), id, &request)?;
    if args.json {
        if said.trim_ascii().is_empty() {
            app.ui.data("[]\n")?;
            return Ok(0);
        }
        let value: Value = serde_json::from_slice(&said).map_err(|error| {
            Failure::new(Code::ProviderMalformed, "parse sbx ports --json output").because(&error)
        })?;
        app.ui.json(&value)?;
        return Ok(0);
    }
    let text = String::from_utf8_lossy(&said);
    let lines: String = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    app.ui.data(&lines)?;
    Ok(0)
}

//! `sbx version`

use sbx_api::{CONTRACT, VERSION};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::reading;

/// Show the versions of client and daemon
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // A daemon that cannot be reached is no reason to hide the client's version.
    let server = match reading::daemon(context) {
        Ok(daemon) => daemon.map(|daemon| daemon.version),
        Err(failure) => {
            context.ui.debug(|| failure.message);
            None
        }
    };
    if args.json {
        return context
            .ui
            .json(&json!({"client": VERSION, "server": server, "contract": CONTRACT}));
    }
    let server = match server {
        Some(version) => format!("v{version}"),
        None => "unavailable".to_owned(),
    };
    context.ui.data(format!(
        "client: v{VERSION}\nserver: {server}\ncontract: {CONTRACT}\n"
    ))
}

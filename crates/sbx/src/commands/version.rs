//! `sbx version`

use sbx_api::{CONTRACT, VERSION};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::{lookup, text};

/// Show the versions of client and daemon
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // The client's version is shown even when the daemon cannot be reached.
    let (server, failure) = match lookup::daemon(context) {
        Ok(daemon) => (daemon.map(|daemon| daemon.version), None),
        Err(failure) => (None, Some(failure)),
    };
    if args.json {
        let mut value = json!({"client": VERSION, "server": server, "contract": CONTRACT});
        if let (Some(failure), Some(object)) = (failure, value.as_object_mut()) {
            object.insert("server_error".to_owned(), failure.message.into());
        }
        return context.ui.json(&value);
    }
    let server = match (server, &failure) {
        (Some(version), _) => format!("v{version}"),
        (None, Some(failure)) => format!("unavailable ({})", text::one_line(&failure.message)),
        (None, None) => "unavailable".to_owned(),
    };
    if let Some(hint) = failure.and_then(|failure| failure.hint) {
        context.ui.note(format!("hint: {hint}"));
    }
    context.ui.data(format!(
        "client: v{VERSION} (contract {CONTRACT})\nserver: {server}\ncontract: {CONTRACT}\n"
    ))
}

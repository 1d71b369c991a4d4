//! Sandboxes for commands that only look: from the daemon when one runs, else from the files it left. Nothing is
//! started and nothing is created.

use sbx_api::{DaemonInfo, Sandbox};
use sbx_engine::SandboxName;
use sbx_engine::sandbox::offline;

use crate::client::{Absent, Client, unknown};
use crate::context::Context;
use crate::failure::{Failure, Kind};

/// All sandboxes, sorted by name.
pub(crate) fn list(context: &Context) -> Result<Vec<Sandbox>, Failure> {
    let client = Client::new(context, Absent::Report)?;
    let mut sandboxes = match client.list() {
        Err(failure) if failure.kind == Kind::NoDaemon => {
            offline::list(client.state()).map_err(Failure::from)?
        }
        other => other?,
    };
    sandboxes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(sandboxes)
}

/// The one with that name among them.
pub(crate) fn pick<'a>(sandboxes: &'a [Sandbox], name: &str) -> Result<&'a Sandbox, Failure> {
    sandboxes
        .iter()
        .find(|sandbox| sandbox.name == name)
        .ok_or_else(|| unknown(name, sandboxes))
}

/// That there is one of that name, whatever it is doing. The others are looked at only when there is none.
pub(crate) fn known(context: &Context, client: &Client<'_>, name: &str) -> Result<(), Failure> {
    if is_known(client, name) {
        return Ok(());
    }
    pick(&list(context)?, name).map(drop)
}

pub(crate) fn is_known(client: &Client<'_>, name: &str) -> bool {
    SandboxName::parse(name).is_ok_and(|name| offline::is_known(client.state(), &name))
}

/// The daemon's own facts, `None` when none runs.
pub(crate) fn daemon(context: &Context) -> Result<Option<DaemonInfo>, Failure> {
    match Client::new(context, Absent::Report)?.version() {
        Ok(info) => Ok(Some(info)),
        Err(failure) if failure.kind == Kind::NoDaemon => Ok(None),
        Err(failure) => Err(failure),
    }
}

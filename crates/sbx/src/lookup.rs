//! Sandboxes and daemon facts for read-only commands: from the daemon when one is running, otherwise from its files on
//! disk. Nothing here starts a daemon or creates a file.

use sbx_api::{DaemonInfo, Sandbox, Summary};
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

/// The same in short.
pub(crate) fn summaries(context: &Context) -> Result<Vec<Summary>, Failure> {
    let client = Client::new(context, Absent::Report)?;
    let mut summaries = match client.summaries() {
        Err(failure) if failure.kind == Kind::NoDaemon => {
            let sandboxes = offline::list(client.state()).map_err(Failure::from)?;
            sandboxes.into_iter().map(Summary::from).collect()
        }
        other => other?,
    };
    summaries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(summaries)
}

/// The sandbox with that name, or an error that suggests similar names.
pub(crate) fn find<'a>(sandboxes: &'a [Sandbox], name: &str) -> Result<&'a Sandbox, Failure> {
    sandboxes
        .iter()
        .find(|sandbox| sandbox.name == name)
        .ok_or_else(|| unknown(name, sandboxes))
}

/// Fails unless a sandbox has that name. The full list is read only for the error's suggestions.
pub(crate) fn ensure_exists(
    context: &Context,
    client: &Client<'_>,
    name: &str,
) -> Result<(), Failure> {
    if exists(client, name) {
        return Ok(());
    }
    find(&list(context)?, name).map(drop)
}

pub(crate) fn exists(client: &Client<'_>, name: &str) -> bool {
    SandboxName::parse(name).is_ok_and(|name| offline::is_known(client.state(), &name))
}

/// Version, pid and start time of the daemon; `None` when no daemon is running.
pub(crate) fn daemon(context: &Context) -> Result<Option<DaemonInfo>, Failure> {
    match Client::new(context, Absent::Report)?.version() {
        Ok(info) => Ok(Some(info)),
        Err(failure) if failure.kind == Kind::NoDaemon => Ok(None),
        Err(failure) => Err(failure),
    }
}

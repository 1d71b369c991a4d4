//! The build cache of a repository, which only our own engine keeps.

use std::path::Path;

use crabbox_core::claims::Claim;
use crabbox_core::process::Cancel;
use crabbox_core::provider::{BuildCache, ClearedCaches, Workspace};
use crabbox_core::settings::{CACHE, Settings};
use crabbox_core::{Code, Failure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::argv;
use super::client::{Client, QUERY_TIMEOUT};
use super::settings::Config;

/// The label of a claim whose sandbox uses one.
pub(super) const LABEL: &str = "cache";

/// A clone is made of what may not be the user's: it leaves nothing for later sandboxes.
pub(super) fn check_clone(config: &Config, settings: &Settings) -> Result<(), Failure> {
    if !(config.cache && config.clone) {
        return Ok(());
    }
    let message = "a build cache cannot be used in clone mode";
    let failure = Failure::new(Code::Config, message).hint("the same command with --cache=false");
    Err(settings.with_location(None, CACHE, failure))
}

/// Whether this engine has build caches at all.
pub(super) fn check_engine(client: &Client, cancel: &Cancel) -> Result<(), Failure> {
    // An engine that cannot be asked says why itself.
    if client.known(cancel)?.bundled {
        return Ok(());
    }
    let message = format!(
        "sbx at {} keeps no build cache: only the bundled engine does",
        client.found.program.display()
    );
    Err(Failure::new(Code::Unsupported, message)
        .hint("leave out --cache, or say --cache=false if `cache: true` is in your own config"))
}

/// What the user is told where a sandbox uses one.
pub(super) fn notice(workspace: &Workspace) -> String {
    format!(
        "note: using the build cache of {}: what this run caches, later ones may execute; `crabbox cache clear` removes it",
        workspace.root.display()
    )
}

/// The same for a lease that exists.
pub(super) fn notice_of(claim: &Claim) -> Option<&'static str> {
    claim.labels.contains_key(LABEL).then_some(
        "note: this lease uses the build cache of its repository; see `crabbox cache ls`",
    )
}

#[derive(Deserialize)]
struct Listing {
    caches: Vec<BuildCache>,
}

pub(super) fn list(client: &Client, cancel: &Cancel) -> Result<Vec<BuildCache>, Failure> {
    check_engine(client, cancel)?;
    let said = client.capture(argv::list_caches(), QUERY_TIMEOUT, cancel)?;
    Ok(parse::<Listing>("ls", &said.stdout)?.caches)
}

pub(super) fn clear(
    client: &Client,
    workspace: Option<&Path>,
    cancel: &Cancel,
) -> Result<ClearedCaches, Failure> {
    check_engine(client, cancel)?;
    let said = client.look(argv::clear_caches(workspace), cancel)?;
    match parse::<ClearedCaches>("clear", &said.stdout) {
        // It fails where a cache is in use, and says which.
        Ok(done) if said.end.success() || !done.busy.is_empty() => Ok(done),
        Err(malformed) if said.end.success() => Err(malformed),
        Ok(_) | Err(_) => Err(client.failure(&said)),
    }
}

fn parse<T: DeserializeOwned>(command: &str, bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("parse sbx cache {command} --json output");
        Failure::new(Code::ProviderMalformed, message).because(&error)
    })
}

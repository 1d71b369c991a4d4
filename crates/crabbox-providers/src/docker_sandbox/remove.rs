//! The end of a sandbox, and its proof.

use crabbox_core::process::Cancel;
use crabbox_core::provider::{Removal, Verified};
use crabbox_core::{Code, Failure};

use super::client::Client;
use super::name::sandbox_name;
use super::{DockerSandbox, argv, parse};

impl DockerSandbox {
    pub(super) fn remove_sandbox(
        &self,
        sandbox: &Verified<'_>,
        begin: &dyn Fn() -> Result<(), Failure>,
        cancel: &Cancel,
    ) -> Result<Removal, Failure> {
        let claim = sandbox.claim();
        let (client, name) = (self.client_for(claim)?, sandbox_name(claim));
        if client.is_own(cancel) && self.is_creator(claim) {
            begin()?;
            return remove_with_own(&client, name, cancel);
        }
        let listed = client.find(name, cancel)?.is_some();
        if !listed && let Some(failure) = self.unproved(claim) {
            return Err(failure);
        }
        begin()?;
        // Also where the list does not show it: not every engine lists everything that it has.
        let removed = client.change(argv::remove(name), cancel);
        // Some versions exit with 0 and remove nothing, others fail where nothing is left to remove: the list decides.
        match (client.find(name, cancel), removed) {
            (Ok(None), Ok(())) => Ok(Removal::Gone),
            (Ok(None), Err(_)) if listed => Ok(Removal::Gone),
            (Ok(None), Err(failure)) if parse::is_absence(&failure, name) => Ok(Removal::Gone),
            (Ok(Some(_)), Ok(())) => Err(Failure::new(
                Code::Provider,
                format!("`sbx rm --force {name}` succeeded, but the sandbox still exists"),
            )),
            (_, Err(failure)) | (Err(failure), Ok(())) => Err(failure),
        }
        .map_err(|failure| retry_removal(&client, failure, name))
    }
}

/// Our own engine answers when the sandbox cannot be reached and cannot come back, and lists every one that it has: its
/// answer is the proof.
fn remove_with_own(client: &Client, name: &str, cancel: &Cancel) -> Result<Removal, Failure> {
    match client.change(argv::remove(name), cancel) {
        Err(failure) if !parse::is_absence(&failure, name) => {
            Err(retry_removal(client, failure, name))
        }
        Ok(()) | Err(_) => Ok(Removal::Gone),
    }
}

fn retry_removal(client: &Client, failure: Failure, name: &str) -> Failure {
    let hint = format!("run `sbx rm --force {name}` to retry cleanup");
    failure.hint(client.hint(&hint))
}

//! A command in a sandbox: `sbx exec`, and what its exit code means.
//!
//! Our own engine says by a status file who ended the command, itself or the program. Of any other engine an exit code of
//! 1 or 125 is the command's own only if the sandbox still exists.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use crabbox_core::claims::Claim;
use crabbox_core::env::{EnvFile, env_file_bytes};
use crabbox_core::process::{Cancel, StatusMemfd, Stdin};
use crabbox_core::provider::{Execution, Provider, Verified};
use crabbox_core::{Code, Failure};

use super::argv::{self, Attach};
use super::client::{self, Client, EndedBy, Status};
use super::name::sandbox_name;
use super::settings::{Cli, First};
use super::{DockerSandbox, env_file_probe};

/// Variables of ours that say where a command runs: it can do without them.
const RESERVED_PREFIX: &str = "CRABBOX_";

impl DockerSandbox {
    pub(super) fn run_command(
        &self,
        sandbox: &Verified<'_>,
        exec: Execution<'_>,
        cancel: &Cancel,
    ) -> Result<i32, Failure> {
        let claim = sandbox.claim();
        let client = self.client_for(claim)?;
        let known = client.known_or_foreign(cancel)?;
        let name = sandbox_name(claim);
        if known.may_ignore_env_file
            && exec
                .env
                .keys()
                .any(|name| !name.starts_with(RESERVED_PREFIX))
        {
            let called = self.called_through(&client);
            env_file_probe::prove(&client, &self.state, name, &called, cancel)?;
        }
        let env_file = EnvFile::create(&self.state, &env_file_bytes(exec.env))?;
        let status = match known.bundled {
            true => client::status()?,
            false => None,
        };
        let status_file = status.as_ref().map(StatusMemfd::path);
        let workdir = exec
            .workdir
            .map_or_else(|| self.workdir(exec.workspace), PathBuf::from);
        // Another engine gets a stdin only where the user asks for one: a script's own stdin is not meant for it.
        let stdin = match known.bundled || exec.interactive || exec.terminal {
            true => exec.stdin,
            false => Stdin::Null,
        };
        let attach = Attach {
            stdin: !matches!(stdin, Stdin::Null),
            terminal: exec.terminal,
            all_keys: known.bundled,
        };
        let argv = argv::exec(
            name,
            &workdir,
            env_file.path(),
            status_file.as_deref(),
            attach,
            &exec.argv,
        );
        let done = client.stream(argv, stdin, exec.stdout, exec.stderr, cancel)?;
        if let Some(failure) = done.lost() {
            return Err(failure);
        }
        let code = done.end.code();
        let status = status.map(client::read);
        let denied = status.as_ref().and_then(|status| status.as_ref()?.denied);
        self.nothing_denied
            .store(denied == Some(false), Ordering::Relaxed);
        if code == 0 {
            return Ok(0);
        }
        let ended_by = status.map(|status| status.map(|Status { ended_by, .. }| ended_by));
        match ended_by {
            Some(Some(EndedBy::Command)) => Ok(code),
            // There is no such program, or it cannot be executed.
            Some(Some(EndedBy::Engine { message })) if matches!(code, 126 | 127) => {
                Err(not_executed(code, &message, &self.called_through(&client)))
            }
            Some(Some(EndedBy::Engine { message })) => {
                Err(self.engine_failure(&client, claim, code, &message, cancel))
            }
            Some(None) => {
                // An engine that does not know the flag has been replaced.
                client.forget();
                Err(self.engine_failure(&client, claim, code, "", cancel))
            }
            // Another engine's codes are also a command's own. Without the sandbox it cannot have been one.
            None if matches!(code, 1 | 125) => match client.find(name, cancel) {
                Ok(None) => Err(self.not_listed(claim)),
                Err(failure) => Err(failure),
                Ok(Some(_)) => Ok(code),
            },
            None => Ok(code),
        }
    }

    /// The engine failed, not the command. Perhaps because there is no such sandbox any more.
    fn engine_failure(
        &self,
        client: &Client,
        claim: &Claim,
        code: i32,
        said: &str,
        cancel: &Cancel,
    ) -> Failure {
        if let Ok(None) = client.find(sandbox_name(claim), cancel) {
            return self.not_listed(claim);
        }
        let called = self.called_through(client);
        let message = format!("{called} run failed: `sbx exec` exited {code}");
        // Without a choice of the provider, where there was none: it would be one of the engine as well.
        let is_default = self.config.cli == Cli::Default(First::Bundled);
        let doctor = match is_default && self.is_bundled(client) {
            true => "crabbox doctor".to_owned(),
            false => self.command("doctor"),
        };
        let mut failure = Failure::new(Code::Provider, message).hint(doctor);
        if !said.is_empty() {
            failure.causes.push(said.to_owned());
        }
        failure
    }
}

/// The command did not begin, for a reason that is its own and not the engine's.
fn not_executed(code: i32, why: &str, called: &str) -> Failure {
    let mut failure = Failure::new(Code::CommandExit, format!("{called} run exited {code}"))
        .exits(u8::try_from(code).unwrap_or(1));
    if !why.is_empty() {
        failure.causes.push(why.to_owned());
    }
    failure
}

//! Which engine created a sandbox, and whether the one in use is the same.
//!
//! A claim records the program that created its sandbox (label `engine`) and where that keeps its sandboxes (the claim's
//! scope). An engine's list proves something only about its own sandboxes, so everything that uses or removes one asks
//! here first. What differs is told apart: another state directory, another program, or a program that is gone.

use std::path::Path;

use crabbox_core::claims::Claim;
use crabbox_core::process::Cancel;
use crabbox_core::search_path::is_program;
use crabbox_core::{Code, Failure};

use super::client::Client;
use super::engine::{self, By, EngineIdentity, EngineMismatch, Found};
use super::name::sandbox_name;
use super::settings::Cli;
use super::{DockerSandbox, ENGINE, SPEC};

/// What people call the engine that came with us.
pub(super) const BUNDLED: &str = "bundled engine";

impl DockerSandbox {
    /// `scope` is that of the claim, if there is one already.
    pub(super) fn identity(&self, client: &Client, scope: &str) -> Option<EngineIdentity> {
        let own = self.is_bundled(client)
            || client.is_known_own()
            || scope.starts_with(engine::XDG_STATE_HOME);
        EngineIdentity::of(&client.found.program, &self.env, own)
    }

    /// Also where a claim names the program that came with us.
    pub(super) fn is_bundled(&self, client: &Client) -> bool {
        let found = self.client.as_ref().map(|client| &client.found);
        found.is_ok_and(|found| found.by == By::Bundled && found.program == client.found.program)
    }

    /// How messages about an engine begin: programs know them by the name of the provider.
    pub(super) fn called_through(&self, client: &Client) -> String {
        match self.watched {
            false => SPEC.name.to_owned(),
            true => called_for_people(&client.found, self.is_bundled(client)),
        }
    }

    /// The same for the engine of a claim.
    pub(super) fn called_for(&self, claim: &Claim) -> String {
        let client = self.client_for(claim);
        client.map_or_else(
            |_| SPEC.name.to_owned(),
            |client| self.called_through(&client),
        )
    }

    /// The engine of a lease that exists: the one that its claim records, unless the user names one. What is found by
    /// a look-up may be another one by now.
    pub(super) fn client_for(&self, claim: &Claim) -> Result<Client, Failure> {
        let recorded = claim.labels.get(ENGINE).map(Path::new);
        let recorded = recorded.filter(|program| program.is_absolute() && is_program(program));
        match (&self.config.cli, recorded) {
            (Cli::Default(_), Some(program)) => {
                let found = Found {
                    program: program.to_path_buf(),
                    by: By::Claim,
                };
                Ok(match &self.client {
                    // What is known of it need not be asked again.
                    Ok(client) if client.found.program == found.program => client.found_as(found),
                    Ok(_) | Err(_) => Client::new(found, &self.state, &self.env),
                })
            }
            (Cli::Default(_), None) | (Cli::Named(_), _) => self.client().cloned(),
        }
    }

    /// How the engine in use differs from the one that created the sandbox.
    pub(super) fn mismatch(&self, claim: &Claim) -> Option<Mismatch> {
        let here = self.identity(&self.client_for(claim).ok()?, &claim.provider_scope)?;
        let creator = EngineIdentity {
            state_dir: Some(claim.provider_scope.clone()).filter(|dir| !dir.is_empty())?,
            program: claim.labels.get(ENGINE)?.clone(),
        };
        let kind = here.mismatch(&creator)?;
        Some(Mismatch {
            kind,
            here,
            creator,
        })
    }

    /// Whether the claim says that the engine in use created the sandbox. An old claim says nothing.
    pub(super) fn is_creator(&self, claim: &Claim) -> bool {
        let says = !claim.provider_scope.is_empty() && claim.labels.contains_key(ENGINE);
        says && self.mismatch(claim).is_none()
    }

    /// Whether the engine in use is the one that created the sandbox, before anything is done with one of that name.
    pub(super) fn same_engine(&self, claim: &Claim) -> Result<(), Failure> {
        match self.mismatch(claim) {
            None => Ok(()),
            Some(mismatch) if mismatch.kind == EngineMismatch::ProgramGone => Ok(()),
            Some(mismatch) => Err(mismatch.failure(claim, &self.called_for(claim))),
        }
    }

    /// The same for what is done without a look at the list.
    pub(super) fn same_engine_now(&self, claim: &Claim, cancel: &Cancel) -> Result<(), Failure> {
        self.same_engine(claim)?;
        match self.unproved(claim) {
            Some(failure) => {
                let listed = self.client_for(claim)?.find(sandbox_name(claim), cancel)?;
                listed.map_or(Err(failure), |_| Ok(()))
            }
            None => Ok(()),
        }
    }

    /// That a sandbox is not in this engine's list proves nothing if another engine created it. `Some` says so, and how
    /// to ask that one.
    pub(super) fn unproved(&self, claim: &Claim) -> Option<Failure> {
        let mismatch = self.mismatch(claim)?;
        Some(mismatch.failure(claim, &self.called_for(claim)))
    }

    /// What is said of a sandbox that is not in the list.
    pub(super) fn not_listed(&self, claim: &Claim) -> Failure {
        self.unproved(claim)
            .unwrap_or_else(|| absent(sandbox_name(claim), &self.called_for(claim)))
    }
}

/// How messages for people begin.
pub(super) fn called_for_people(found: &Found, is_bundled: bool) -> String {
    match is_bundled {
        true => format!("{BUNDLED}:"),
        false => format!("sbx at {}:", found.program.display()),
    }
}

/// Two engines that are not the same.
#[derive(Debug)]
pub(super) struct Mismatch {
    pub(super) kind: EngineMismatch,
    here: EngineIdentity,
    creator: EngineIdentity,
}

impl Mismatch {
    /// `called`: how the message begins.
    pub(super) fn failure(self, claim: &Claim, called: &str) -> Failure {
        let name = sandbox_name(claim);
        let Self {
            kind,
            here,
            creator,
        } = self;
        let (there, now, with) = match kind {
            EngineMismatch::StateDir => {
                let without = match creator.state_dir.starts_with("SBX_HOME=") {
                    true => "",
                    false => "without SBX_HOME and ",
                };
                let with = format!("{without}with {}", creator.state_dir);
                (creator.state_dir, here.state_dir, with)
            }
            EngineMismatch::Program => {
                let with = format!("with --docker-sandbox-cli {}", creator.program);
                (creator.program, here.program, with)
            }
            EngineMismatch::ProgramGone => return engine_missing(claim, called, &here, &creator),
        };
        let message = format!(
            "{called} sandbox {name:?} was created by another engine, with {there}, and not by this one, with {now}"
        );
        Failure::new(Code::Config, message).hint(format!("the same command {with}"))
    }
}

/// No engine is left whose list would prove anything.
fn engine_missing(
    claim: &Claim,
    called: &str,
    here: &EngineIdentity,
    creator: &EngineIdentity,
) -> Failure {
    let name = sandbox_name(claim);
    let message = format!(
        "{called} sandbox {name:?} was created with {}, which no longer exists; {} does not list it, but that does not prove that it is gone",
        creator.program, here.program
    );
    let forget = format!("crabbox claims forget {}", SPEC.shown_id(claim));
    Failure::new(Code::ProviderMissing, message)
        .hint("the same command with --docker-sandbox-cli and where that program is now")
        .hint(format!(
            "{forget} removes only the record; the sandbox may still exist"
        ))
}

pub(super) fn absent(name: &str, called: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("{called} sandbox {name:?} is not present in sbx inventory"),
    )
}

//! The variables of a command, from everywhere they may come.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::allow::{AllowList, matches};
use super::profile::ProfileFile;
use crate::command::is_identifier;
use crate::{Code, Failure};

const RUN_ID: &str = "CRABBOX_RUN_ID";
const LEASE_ID: &str = "CRABBOX_LEASE_ID";
const SLUG: &str = "CRABBOX_SLUG";

const SECRET_SHAPES: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH"];
/// Values of secret-shaped variables that are so common that hiding them would spoil every log.
const ORDINARY: [&str; 6] = ["true", "false", "none", "null", "disabled", "enabled"];

/// What a run is called. Only a lease that exists has these, so a fresh one is named too.
#[derive(Debug, Clone, Copy)]
pub struct Reserved<'a> {
    pub run_id: &'a str,
    pub lease_id: &'a str,
    pub slug: &'a str,
}

#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The caller's environment.
    pub local: &'a BTreeMap<OsString, OsString>,
    pub allow: &'a AllowList,
    /// Later ones win, and all of them over the caller's environment.
    pub files: &'a [ProfileFile],
    /// Literal variables of profile and preset, which need no permission and win over the files.
    pub literals: &'a BTreeMap<String, String>,
    /// Names (or prefixes with `*`) that never leave this machine: the provider's own credentials.
    pub never: &'a [&'a str],
    pub reserved: Reserved<'a>,
}

/// The variables of a command.
#[derive(Clone, PartialEq, Eq)]
pub struct Forwarded {
    vars: BTreeMap<String, String>,
    /// What was asked for and is never forwarded.
    pub withheld: Vec<String>,
}

impl Forwarded {
    pub fn select(request: &Request<'_>) -> Result<Self, Failure> {
        let mut vars = BTreeMap::new();
        for (name, value) in request.local {
            let Some(name) = name.to_str().filter(|name| request.allow.allows(name)) else {
                continue;
            };
            let value = value
                .to_str()
                .ok_or_else(|| refused(name, "is not UTF-8"))?;
            vars.insert(name.to_owned(), value.to_owned());
        }
        let from_files = request.files.iter().flat_map(|file| &file.entries);
        for (name, value) in from_files.filter(|(name, _)| request.allow.allows(name)) {
            vars.insert(name.clone(), value.clone());
        }
        for (name, value) in request.literals {
            if !is_identifier(name) {
                let message = format!("invalid variable name `{}`", crate::printable(name));
                return Err(Failure::new(Code::Config, message));
            }
            vars.insert(name.clone(), value.clone());
        }
        let mut withheld = Vec::new();
        vars.retain(|name, _| {
            let keep = !request.never.iter().any(|never| matches(never, name));
            if !keep {
                withheld.push(name.clone());
            }
            keep
        });
        vars.extend(request.reserved.vars()?);
        for (name, value) in &vars {
            if value.contains(['\0', '\r', '\n']) {
                return Err(refused(name, "contains a line break or a NUL character"));
            }
        }
        Ok(Self { vars, withheld })
    }

    pub fn vars(&self) -> &BTreeMap<String, String> {
        &self.vars
    }

    /// One line about what is forwarded, without any value. The variables that every command has are not listed.
    pub fn summary(&self, provider: &str) -> String {
        let shown: Vec<String> = self
            .vars
            .iter()
            .filter(|(name, _)| !is_reserved(name))
            .map(|(name, value)| {
                let state = if value.is_empty() { "empty" } else { "set" };
                match is_secret_shaped(name) {
                    true => format!("{name}={state} len={} secret=true", value.len()),
                    false => format!("{name}={state}"),
                }
            })
            .collect();
        let shown = match shown.is_empty() {
            true => "none".to_owned(),
            false => shown.join(","),
        };
        let mut line =
            format!("env forwarding provider={provider} behavior=forwarded vars={shown}");
        if !self.withheld.is_empty() {
            line.push_str(" withheld=");
            line.push_str(&self.withheld.join(","));
        }
        line
    }

    /// The values that logs and messages must not show.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.vars
            .iter()
            .filter(|(name, value)| is_secret_shaped(name) && !ORDINARY.contains(&value.as_str()))
            .map(|(_, value)| value.as_str())
    }
}

impl std::fmt::Debug for Forwarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarded")
            .field("names", &self.vars.keys())
            .field("withheld", &self.withheld)
            .finish()
    }
}

impl Reserved<'_> {
    fn vars(&self) -> Result<[(String, String); 3], Failure> {
        let vars = [
            (RUN_ID, self.run_id),
            (LEASE_ID, self.lease_id),
            (SLUG, self.slug),
        ];
        match vars.iter().find(|(_, value)| value.is_empty()) {
            Some((name, _)) => Err(Failure::new(
                Code::Local,
                format!("`{name}` must be known before the command starts"),
            )),
            None => Ok(vars.map(|(name, value)| (name.to_owned(), value.to_owned()))),
        }
    }
}

/// Whether the value of a variable with this name is probably a secret.
pub fn is_secret_shaped(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_SHAPES.iter().any(|shape| name.contains(shape))
}

/// Docker's format: sorted, and raw to the end of the line. No value has a line break.
pub fn env_file_bytes(vars: &BTreeMap<String, String>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in vars {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'=');
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

fn is_reserved(name: &str) -> bool {
    [RUN_ID, LEASE_ID, SLUG].contains(&name)
}

fn refused(name: &str, why: &str) -> Failure {
    Failure::new(
        Code::Config,
        format!("cannot forward variable `{name}`: value {why}"),
    )
    .hint(format!("unset `{name}` or remove it from the allow list"))
}

//! Which provider a command is for: the one on the command line, the one of the claim, the configured one.

use clap::ArgMatches;
use clap::parser::ValueSource;
use crabbox_core::claims::ProviderFilter;
use crabbox_core::settings::{FlagValue, Settings, Untrusted};
use crabbox_core::{Code, Failure};

use super::claims;
use crate::app::{self, App, provider_flag};

/// The settings for a lease that exists. Its claim knows the provider better than any configuration does.
pub(super) fn settings_for(
    app: &App<'_>,
    matches: &ArgMatches,
    identifier: &str,
) -> Result<Settings, Failure> {
    routed(app, matches, identifier, Untrusted::Refuse)
}

/// The same for a command that only shows or removes the lease.
pub(super) fn lenient_settings_for(
    app: &App<'_>,
    matches: &ArgMatches,
    identifier: &str,
) -> Result<Settings, Failure> {
    let settings = routed(app, matches, identifier, Untrusted::LeaveOut)?;
    app.tell_left_out(&settings);
    Ok(settings)
}

fn routed(
    app: &App<'_>,
    matches: &ArgMatches,
    identifier: &str,
    untrusted: Untrusted,
) -> Result<Settings, Failure> {
    let mut flags = app::flags(matches);
    let settings = app.load(&flags, untrusted)?;
    match provider_of_claim(app, matches, identifier)? {
        Some(provider) if provider.value != settings.provider() => {
            flags.push(provider);
            app.load(&flags, untrusted)
        }
        Some(_) | None => Ok(settings),
    }
}

/// The provider of the claim, in the place of the flag that is not there.
pub(super) fn provider_of_claim(
    app: &App<'_>,
    matches: &ArgMatches,
    identifier: &str,
) -> Result<Option<FlagValue>, Failure> {
    if matches.value_source("provider") == Some(ValueSource::CommandLine) {
        return Ok(None);
    }
    let store = app.store()?;
    let claim = match store.find(identifier, ProviderFilter::All)? {
        Some(claim) => Some(claim),
        None => match claims::by_sandbox_name(&store, identifier)? {
            Some(claim) => Some(claim),
            None => store.find_by_prefix(identifier, ProviderFilter::All)?,
        },
    };
    Ok(claim.map(|claim| provider_flag(claim.provider)))
}

/// The lease that a command is about: `--id X` or `X`, and only one of them.
#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// Lease, given as a flag
    #[arg(long, value_name = "LEASE")]
    id: Option<String>,
    /// Lease slug, lease id or sandbox name
    #[arg(value_name = "LEASE")]
    lease: Option<String>,
}

impl Which {
    pub(super) fn identifier(&self, command: &str) -> Result<&str, Failure> {
        match (&self.id, &self.lease) {
            (Some(id), None) | (None, Some(id)) if !id.is_empty() => Ok(id),
            _ => Err(Failure::new(
                Code::Usage,
                format!("usage: crabbox {command} [flags] <lease>"),
            )),
        }
    }
}

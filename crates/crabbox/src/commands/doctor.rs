//! `crabbox doctor`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use crabbox_core::git::Git;
use crabbox_core::lifecycle;
use crabbox_core::provider::{ADVICE, Check, Class, Health, WorkspaceKind};
use crabbox_core::redact::Redactor;
use crabbox_core::settings::{Origin, PartialSettings, Settings};
use crabbox_core::{Code, Failure};
use serde::Serialize;

use super::routing::provider_of_claim;
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// How long the provider's own checks may take together.
const CHECKS_TIMEOUT: Duration = Duration::from_secs(10);

/// Check that a provider is usable
///
/// Makes no changes. All checks are shown, even after one has failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check the provider of this lease
    #[arg(long, value_name = "LEASE")]
    id: Option<String>,
    /// Output as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Checked<'a> {
    ok: bool,
    provider: &'a str,
    checks: &'a [Check],
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let route = match &args.id {
        Some(id) => provider_of_claim(app, matches, id)?,
        None => None,
    };
    let by_lease = route.is_some();
    let PartialSettings { settings, failures } = app.partial_settings(matches, route)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    if let Some(id) = &args.id {
        app.context(&*provider, &app.store()?).find(id)?;
    }
    let mut checks = vec![config(app.config_file())];
    checks.extend(failures.iter().map(wrong_setting));
    checks.push(selection(&settings, by_lease));
    checks.push(tool(
        "git",
        Git::find(&app.host.env, &[app.root()]).map(drop),
    ));
    checks.push(Check::new(Health::Ok, "ssh-key", "per-lease"));
    if let Err(failure) = provider.validate() {
        checks.push(wrong_provider(provider.spec().name, &failure));
    }
    checks.extend(lifecycle::within(CHECKS_TIMEOUT, |cancel| {
        provider.doctor(cancel)
    }));
    if provider.spec().workspace == WorkspaceKind::Archive {
        checks.push(Check::new(Health::Ok, "tar", "built in"));
    }
    for check in &mut checks {
        check.provider = Some(provider.spec().name.to_owned());
    }
    let checks = clean(checks);
    show(app, &args, provider.spec().name, &checks)?;
    verdict(&checks).map(|()| 0)
}

/// One failure for all of them, with what to do about each.
fn verdict(checks: &[Check]) -> Result<(), Failure> {
    let bad: Vec<_> = checks
        .iter()
        .filter(|check| check.status.is_bad())
        .collect();
    if bad.is_empty() {
        return Ok(());
    }
    let mut failure = Failure::new(Code::Unhealthy, "doctor found problems");
    for advice in bad.iter().filter_map(|check| check.details.get(ADVICE)) {
        if !failure.hints.contains(advice) {
            failure.hints.push(advice.clone());
        }
    }
    Err(failure)
}

/// What others said is in the details as well as in the message.
fn clean(checks: Vec<Check>) -> Vec<Check> {
    let redactor = Redactor::default();
    let clean = |text: &str| redactor.clean(text).into_owned();
    checks
        .into_iter()
        .map(|check| Check {
            message: clean(&check.message),
            details: (check.details.iter())
                .map(|(key, value)| (key.clone(), clean(value)))
                .collect(),
            ..check
        })
        .collect()
}

fn show(app: &App<'_>, args: &Args, provider: &str, checks: &[Check]) -> Result<(), Failure> {
    if args.json {
        return app.ui.json(&Checked {
            ok: !checks.iter().any(|check| check.status.is_bad()),
            provider,
            checks,
        });
    }
    let lines: String = checks.iter().map(line).collect();
    app.ui.data(&lines)
}

/// Further lines of a message stand below its first: every line that begins at the margin is a check.
fn line(check: &Check) -> String {
    let start = format!("{:<7} {:<18} ", check.status.as_str(), check.check);
    let further = format!("\n{:width$}", "", width = start.len());
    format!("{start}{}\n", check.message.replace('\n', &further))
}

/// A source of settings that was left out.
fn wrong_setting(failure: &Failure) -> Check {
    let check = Check::of_failure(Health::Failed, "settings", failure).class(Class::Config);
    match &failure.snippet {
        Some(snippet) => check.detail("snippet", snippet.as_ref()),
        None => check,
    }
}

/// The provider cannot be told what the settings say.
fn wrong_provider(name: &str, failure: &Failure) -> Check {
    let class = Class::Config;
    let (word, hint) = (class.as_str(), class.hint());
    let message = format!("provider={name} class={word} hint={hint} {failure}");
    Check {
        message,
        ..Check::of_failure(Health::Failed, "provider", failure).class(class)
    }
}

/// The user's file may name programs and credential paths: only the user may read it.
fn config(path: Result<PathBuf, Failure>) -> Check {
    let path = match path {
        Ok(path) => path,
        // Everything else works without it.
        Err(failure) => return Check::of_failure(Health::Warn, "config", &failure),
    };
    let shown = path.display();
    match fs::metadata(&path) {
        Err(_) => Check::new(
            Health::Ok,
            "config",
            format!("{shown} does not exist; using defaults"),
        ),
        Ok(meta) => match meta.permissions().mode() & 0o777 {
            mode if mode & 0o077 == 0 => Check::new(
                Health::Ok,
                "config",
                format!("{shown} permissions={mode:04o}"),
            ),
            mode => Check::new(
                Health::Failed,
                "config",
                format!("{shown} permissions {mode:04o} want 0600"),
            )
            .detail(ADVICE, format!("chmod 600 {shown}")),
        },
    }
}

/// The default is used without having been selected, as `config show` has it.
fn selection(settings: &Settings, by_lease: bool) -> Check {
    let origin = settings.origin(None, "provider");
    let source = match by_lease {
        true => "lease_context",
        false => origin.map_or("compiled_default", Origin::source),
    };
    let selected = origin.is_some_and(Origin::is_choice);
    let name = settings.provider();
    Check::new(
        Health::Ok,
        "provider-selection",
        format!("provider={name} source={source} selected={selected}"),
    )
}

fn tool(name: &str, found: Result<(), Failure>) -> Check {
    match found {
        Ok(()) => Check::new(Health::Ok, name, "found"),
        Err(failure) => Check::new(Health::Missing, name, failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_have_ten_seconds_together() {
        assert_eq!(CHECKS_TIMEOUT, Duration::from_secs(10));
    }
}

//! `crabbox doctor`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use crabbox_core::claims::check_state;
use crabbox_core::git::Git;
use crabbox_core::lifecycle;
use crabbox_core::provider::{ADVICE, Check, Class, Health, Spec, WorkspaceKind};
use crabbox_core::redact::Redactor;
use crabbox_core::settings::{FlagValue, Origin, PartialSettings, Settings};
use crabbox_core::{Code, Failure};
use crabbox_providers::specs;
use serde::Serialize;

use super::routing::provider_of_claim;
use crate::app::{App, provider_flag};
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
    /// Check every provider
    #[arg(long, conflicts_with = "id")]
    all: bool,
    /// With --all, check only these providers
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "all")]
    providers: Vec<String>,
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
    if args.all {
        return all(app, matches, &args);
    }
    let route = match &args.id {
        Some(id) => provider_of_claim(app, matches, id)?,
        None => None,
    };
    let by_lease = route.is_some();
    let (name, checks) = checks(app, matches, route, args.id.as_deref(), by_lease)?;
    show(app, &args, name, &checks)?;
    verdict(&checks).map(|()| 0)
}

/// The checks of every provider, or of those that are named, one after the other.
fn all(app: &App<'_>, matches: &ArgMatches, args: &Args) -> Result<u8, Failure> {
    let wanted = match args.providers.is_empty() {
        true => specs().collect(),
        false => {
            let named = args.providers.iter().map(|name| app.spec(name));
            named.collect::<Result<Vec<_>, _>>()?
        }
    };
    let mut together = Vec::new();
    for spec in wanted {
        // What holds without a flag is checked as it is without one.
        let chosen = app.partial_settings(matches, None)?.settings;
        let is_chosen = chosen.provider() == spec.name;
        let route = (!is_chosen).then(|| provider_flag(spec.name.to_owned()));
        if args.providers.is_empty()
            && let Some(skipped) = unconfigured(app, matches, spec, route.clone())?
        {
            together.push(skipped);
            continue;
        }
        together.extend(checks(app, matches, route, None, false)?.1);
    }
    show(app, args, "all", &together)?;
    verdict(&together).map(|()| 0)
}

/// A provider whose required settings are not set is left out, unless it is named.
fn unconfigured(
    app: &App<'_>,
    matches: &ArgMatches,
    spec: &Spec,
    route: Option<FlagValue>,
) -> Result<Option<Check>, Failure> {
    let PartialSettings { settings, .. } = app.partial_settings(matches, route)?;
    let is_default = |key| {
        let origin = settings.origin(spec.table.section, key);
        matches!(origin, None | Some(Origin::Default))
    };
    let untouched = spec.table.settings.iter().all(|one| is_default(one.key));
    Ok(match app.provider(&settings)?.validate() {
        Err(failure) if untouched => {
            let message = format!("provider={} is not configured: {failure}", spec.name);
            let mut check = Check::new(Health::Skip, "provider", message);
            check.provider = Some(spec.name.to_owned());
            Some(check)
        }
        Ok(()) | Err(_) => None,
    })
}

/// The provider's name and its checks. `route` is the provider, where something else than the settings says it.
fn checks(
    app: &App<'_>,
    matches: &ArgMatches,
    route: Option<FlagValue>,
    id: Option<&str>,
    by_lease: bool,
) -> Result<(&'static str, Vec<Check>), Failure> {
    let PartialSettings { settings, failures } = app.partial_settings(matches, route)?;
    let provider = app.provider(&settings)?;
    unsupported::check(matches, CommandKind::Other, provider.spec())?;
    let claim = match id {
        Some(id) => Some(app.context(&*provider, &app.store()?).find(id)?),
        None => None,
    };
    let mut checks = vec![config(app.config_file())];
    checks.extend(failures.iter().map(wrong_setting));
    checks.push(selection(&settings, by_lease));
    checks.push(state(app));
    let git = Git::find(&app.host.env, &[app.root()]).map(|git| git.program().to_path_buf());
    checks.push(tool("git", git, app.host.repository().is_some()));
    if let Err(failure) = app.require_cwd() {
        checks.push(Check::of_failure(Health::Failed, "workspace", &failure));
    }
    checks.push(Check::new(Health::Ok, "ssh-key", "per-lease").detail("mode", "per-lease"));
    if let Err(failure) = provider.validate() {
        checks.push(wrong_provider(provider.spec().name, &failure));
    }
    let leases = app
        .store()
        .and_then(|store| lifecycle::count(app.context(&*provider, &store)))
        .ok();
    checks.extend(lifecycle::within(CHECKS_TIMEOUT, |cancel| match &claim {
        Some(claim) => provider.doctor_for(claim, cancel),
        // What is wrong with the claims is a check of its own.
        None => match leases {
            Some(leases) => provider.doctor_counting(leases, cancel),
            None => provider.doctor(cancel),
        },
    }));
    if provider.spec().workspace == WorkspaceKind::Archive {
        checks.push(Check::new(Health::Ok, "tar", "built in").detail("tool", "tar"));
    }
    for check in &mut checks {
        check.provider = Some(provider.spec().name.to_owned());
    }
    Ok((provider.spec().name, clean(checks)))
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
        // What other commands are told when they cannot reach their provider.
        let is_this_command = advice.starts_with("crabbox doctor");
        if !is_this_command && !failure.hints.contains(advice) {
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
        )
        .detail("path", shown.to_string()),
        Ok(meta) => match meta.permissions().mode() & 0o777 {
            mode if mode & 0o077 == 0 => Check::new(
                Health::Ok,
                "config",
                format!("{shown} permissions={mode:04o}"),
            )
            .detail("path", shown.to_string())
            .detail("mode", format!("{mode:04o}")),
            // Every command works with it.
            mode => Check::new(
                Health::Warn,
                "config",
                format!("{shown} permissions {mode:04o} want 0600 (hint: chmod 600 {shown})"),
            )
            .detail("path", shown.to_string())
            .detail("mode", format!("{mode:04o}"))
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
    .detail("provider", name)
    .detail("source", source)
    .detail("selected", selected.to_string())
}

/// Without a place for claims nothing is created.
fn state(app: &App<'_>) -> Check {
    let checked = app.host.state().and_then(|state| {
        check_state(&state)?;
        Ok(state)
    });
    match checked {
        Ok(state) => {
            let shown = state.display().to_string();
            Check::new(Health::Ok, "state", shown.clone()).detail("path", shown)
        }
        Err(failure) => Check::of_failure(Health::Failed, "state", &failure).class(Class::Config),
    }
}

/// `needed` says whether the next run would fail without it.
fn tool(name: &str, found: Result<PathBuf, Failure>, needed: bool) -> Check {
    let check = match found {
        Ok(path) => {
            Check::new(Health::Ok, name, "found").detail("path", path.display().to_string())
        }
        Err(failure) if needed => Check::new(Health::Missing, name, failure.to_string()),
        Err(failure) => Check::new(Health::Warn, name, failure.to_string()),
    };
    check.detail("tool", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_have_ten_seconds_together() {
        assert_eq!(CHECKS_TIMEOUT, Duration::from_secs(10));
    }
}

//! `crabbox doctor`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::ArgMatches;
use crabbox_core::git::Git;
use crabbox_core::process::{Cancel, Reason};
use crabbox_core::provider::{Check, Health, Provider, WorkspaceKind};
use crabbox_core::redact::Redactor;
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::{Code, Failure};
use serde::Serialize;

use crate::app::App;
use crate::cli::parsed;

/// How long the provider's own checks may take together.
const PATIENCE: Duration = Duration::from_secs(10);

/// Check that a provider can be used
///
/// Changes nothing. Every check is shown, also after one has failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Checked<'a> {
    ok: bool,
    provider: &'a str,
    checks: &'a [Check],
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let mut checks = vec![config(&app.host.user_file()?)];
    let (settings, provider) = match usable(app, matches) {
        Ok(usable) => usable,
        Err(failure) => {
            checks.push(Check::new(
                Health::Failed,
                "settings",
                failure.message.clone(),
            ));
            show(app, &args, "", &checks)?;
            return Err(failure);
        }
    };
    checks.push(selection(&settings));
    checks.push(tool("git", Git::find(&app.host.env).map(drop)));
    checks.push(Check::new(Health::Ok, "ssh-key", "per-lease"));
    match provider.validate() {
        Ok(()) => checks.extend(provider_checks(&*provider, &app.cancel)),
        Err(failure) => checks.push(
            Check::new(Health::Failed, "provider", failure.to_string())
                .detail("class", "config")
                .detail("hint", "check_crabbox_provider_config"),
        ),
    }
    if provider.spec().workspace == WorkspaceKind::Archive {
        checks.push(Check::new(Health::Ok, "tar", "built in"));
    }
    let redactor = Redactor::default();
    for check in &mut checks {
        check.message = redactor.clean(&check.message).into_owned();
        check.provider = Some(provider.spec().name.to_owned());
    }
    let bad = show(app, &args, provider.spec().name, &checks)?;
    if bad {
        let mut failure = Failure::new(Code::Unhealthy, "doctor found problems");
        for check in checks.iter().filter(|check| check.status.is_bad()) {
            failure.hints.extend(
                check
                    .details
                    .get("hint")
                    .filter(|hint| !hint.is_empty())
                    .cloned(),
            );
        }
        return Err(failure);
    }
    Ok(0)
}

fn usable(app: &App<'_>, matches: &ArgMatches) -> Result<(Settings, Box<dyn Provider>), Failure> {
    let settings = app.settings(matches)?;
    let provider = app.provider(&settings)?;
    Ok((settings, provider))
}

/// Prints them all. True when one is bad.
fn show(app: &App<'_>, args: &Args, provider: &str, checks: &[Check]) -> Result<bool, Failure> {
    let bad = checks.iter().any(|check| check.status.is_bad());
    if args.json {
        app.ui.json(&Checked {
            ok: !bad,
            provider,
            checks,
        })?;
    } else {
        let lines: String = checks.iter().map(line).collect();
        app.ui.data(&lines)?;
    }
    Ok(bad)
}

fn line(check: &Check) -> String {
    format!(
        "{:<7} {:<18} {}\n",
        check.status.as_str(),
        check.check,
        check.message
    )
}

/// The user's file may name programs and credentials' places: it is nobody else's.
fn config(path: &Path) -> Check {
    let shown = path.display();
    match fs::metadata(path) {
        Err(_) => Check::new(
            Health::Ok,
            "config",
            format!("{shown} does not exist; defaults hold"),
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
            .detail("hint", format!("chmod 600 {shown}")),
        },
    }
}

fn selection(settings: &Settings) -> Check {
    let source = settings
        .origin(None, "provider")
        .map_or("compiled_default", Origin::source);
    let name = settings.provider();
    Check::new(
        Health::Ok,
        "provider-selection",
        format!("provider={name} source={source} selected=true"),
    )
}

fn tool(name: &str, found: Result<(), Failure>) -> Check {
    match found {
        Ok(()) => Check::new(Health::Ok, name, "found"),
        Err(failure) => Check::new(Health::Missing, name, failure.to_string()),
    }
}

/// All of them, within the time there is for them.
fn provider_checks(provider: &dyn Provider, cancel: &Cancel) -> Vec<Check> {
    let own = Cancel::new();
    let (done, over) = mpsc::channel::<()>();
    let (watched, user) = (own.clone(), cancel.clone());
    thread::scope(|scope| {
        scope.spawn(move || {
            if over.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) || user.is_set()
            {
                watched.set(Reason::Late);
            }
        });
        let checks = provider.doctor(&own);
        drop(done);
        checks
    })
}

//! `sbx prune`

use std::sync::Mutex;

use jiff::Timestamp;
use sbx_api::{Sandbox, Status};
use serde_json::{Value, json};

use super::rm;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{lookup, text, time_args};

/// Remove stopped sandboxes; workspaces are not touched
///
/// A sandbox whose stop time is unknown (its record is damaged, or it ended while no daemon was
/// running) is not removed; use `sbx rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only those stopped longer ago than this: `since=DURATION` or `until=DURATION`, which mean the same
    #[arg(long, value_name = "FILTER")]
    filter: Vec<String>,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short = 'f', long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is to become of the sandboxes that are not running.
#[derive(Debug, Default, PartialEq, Eq)]
struct Choice<'a> {
    remove: Vec<&'a Sandbox>,
    /// It is not known when they stopped.
    unknown: Vec<&'a Sandbox>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let stopped_before = earliest(&args.filter, Timestamp::now())?;
    // Without starting a daemon: there may be nothing to do.
    let sandboxes = lookup::list(context)?;
    let choice = choose(&sandboxes, stopped_before);
    if args.dry_run {
        return show(context, args.json, &choice);
    }
    if !args.json {
        warn_unknown_stop_time(context, &choice);
    }
    let mut outcome = Outcome::default();
    if !choice.remove.is_empty() {
        let names: Vec<&str> = choice.remove.iter().map(|it| it.name.as_str()).collect();
        let names = names.join(", ");
        context.ui.confirm(
            args.force,
            &format!("removing {names}"),
            &format!("Remove {names} and everything in them?"),
        )?;
        outcome = remove(context, &choice.remove)?;
    } else if !args.json {
        context.ui.note("No stopped sandboxes to remove.");
    }
    if args.json {
        context.ui.json(&json!({
            "removed": outcome.removed.iter().map(|it| to_json(it)).collect::<Vec<_>>(),
            "failed": outcome.failed.iter().map(|(it, failure)| json!({
                "name": it.name,
                "error": failure.message,
            })).collect::<Vec<_>>(),
            "skipped_unknown_stop": names_of(&choice.unknown),
        }))?;
    }
    if outcome.failed.is_empty() {
        Ok(())
    } else {
        Err(Failure::quiet(1))
    }
}

/// The time before which a sandbox must have stopped to be removed: with several filters all of them have to hold.
fn earliest(filters: &[String], now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let mut earliest: Option<Timestamp> = None;
    for filter in filters {
        let Some((_, age)) = filter
            .split_once('=')
            .filter(|(key, _)| matches!(*key, "since" | "until"))
        else {
            let message = format!("invalid filter `{}`", filter.escape_debug());
            return Err(Failure::new(Kind::BadRequest, message)
                .hint("use `--filter since=DURATION`, for example since=7d"));
        };
        time_args::duration(age)?;
        let time = time_args::timestamp(age, now)?;
        earliest = Some(earliest.map_or(time, |other| other.min(time)));
    }
    Ok(earliest)
}

fn choose(sandboxes: &[Sandbox], stopped_before: Option<Timestamp>) -> Choice<'_> {
    let mut choice = Choice::default();
    for sandbox in sandboxes {
        match (sandbox.status, sandbox.stopped_at) {
            (Status::Stopped, None) => choice.unknown.push(sandbox),
            (Status::Stopped, Some(at)) if stopped_before.is_none_or(|time| at <= time) => {
                choice.remove.push(sandbox);
            }
            (Status::Stopped | Status::Running | Status::Creating | Status::Removing, _) => {}
        }
    }
    choice
}

#[derive(Debug, Default)]
struct Outcome<'a> {
    removed: Vec<&'a Sandbox>,
    failed: Vec<(&'a Sandbox, Failure)>,
}

fn remove<'a>(context: &Context, sandboxes: &[&'a Sandbox]) -> Result<Outcome<'a>, Failure> {
    let client = Client::new(context, Absent::Start)?;
    let outcome = Mutex::new(Outcome::default());
    rm::several_at_a_time(sandboxes, |sandbox| {
        let told = rm::told(context, &sandbox.name, client.remove_stopped(sandbox));
        if let Err(failure) = &told {
            context.ui.failure(failure);
        }
        let mut outcome = outcome.lock().unwrap_or_else(|error| error.into_inner());
        match told {
            Ok(()) => outcome.removed.push(sandbox),
            Err(failure) => outcome.failed.push((sandbox, failure)),
        }
    });
    let mut outcome = outcome
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    outcome.removed.sort_by(|a, b| a.name.cmp(&b.name));
    outcome.failed.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    Ok(outcome)
}

fn show(context: &Context, json: bool, choice: &Choice<'_>) -> Result<(), Failure> {
    if json {
        return context.ui.json(&json!({
            "would_remove": choice.remove.iter().map(|it| to_json(it)).collect::<Vec<_>>(),
            "skipped_unknown_stop": names_of(&choice.unknown),
        }));
    }
    warn_unknown_stop_time(context, choice);
    if choice.remove.is_empty() {
        context.ui.note("No stopped sandboxes to remove.");
        return Ok(());
    }
    let (home, now) = (context.env.home(), Timestamp::now());
    let header = ["WOULD REMOVE", "AGENT", "STOPPED", "WORKSPACE"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    for sandbox in &choice.remove {
        let paths = sandbox.workspaces.iter();
        let paths: Vec<String> = paths
            .map(|workspace| text::path(&workspace.path, home.as_deref()))
            .collect();
        rows.push(vec![
            sandbox.name.clone(),
            sandbox.agent.clone(),
            ago(sandbox.stopped_at, now),
            paths.join(", "),
        ]);
    }
    let mut lines = text::table(&rows);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    context.ui.data(lines.join("\n") + "\n")
}

fn ago(time: Option<Timestamp>, now: Timestamp) -> String {
    let seconds = |time: Timestamp| now.duration_since(time).as_secs().max(0);
    time.map_or_else(String::new, |time| {
        format!("{} ago", text::duration(seconds(time)))
    })
}

fn warn_unknown_stop_time(context: &Context, choice: &Choice<'_>) {
    for sandbox in &choice.unknown {
        context.ui.warning(format!(
            "sandbox '{}' is kept: its stop time is unknown",
            sandbox.name
        ));
    }
}

fn names_of<'a>(sandboxes: &[&'a Sandbox]) -> Vec<&'a str> {
    sandboxes.iter().map(|it| it.name.as_str()).collect()
}

fn to_json(sandbox: &Sandbox) -> Value {
    let paths: Vec<&str> = sandbox.workspaces.iter().map(|w| w.path.as_str()).collect();
    json!({
        "name": sandbox.name,
        "agent": sandbox.agent,
        "stopped_at": sandbox.stopped_at,
        "workspaces": paths,
    })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// One that stopped at that time.
    fn stopped(name: &str, at: Timestamp) -> Sandbox {
        let all = json!({
            "name": name, "id": "1", "agent": "shell", "status": "stopped", "template": "host",
            "backend": "namespace", "mode": "root", "workspaces": [], "env": [],
            "created_at": at, "started_at": at, "stopped_at": at, "last_used_at": at,
            "stop_reason": "user", "stop_at": null, "keep_alive": false, "mounts": [],
            "network": null, "sessions": 0, "isolation": [], "warnings": [],
        });
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn a_clock_that_jumps_keeps_what_it_says_stopped_later() {
        let at: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let sandboxes = [stopped("box", at)];
        let removed = |later: SignedDuration, filters: &[&str]| {
            let filters: Vec<String> = filters.iter().map(|it| (*it).to_owned()).collect();
            let before = earliest(&filters, at + later).unwrap();
            !choose(&sandboxes, before).remove.is_empty()
        };
        let hours = SignedDuration::from_hours;
        for filter in ["since=1h", "until=1h"] {
            assert!(removed(hours(1), &[filter]), "{filter}");
            assert!(removed(hours(1_000_000), &[filter]), "set forward");
            for back in [0, -1, -1_000_000] {
                assert!(!removed(hours(back), &[filter]), "{filter}, {back} h");
            }
        }
        // Without a filter the time does not matter.
        assert!(removed(hours(-1_000_000), &[]));
        assert_eq!(ago(Some(at), at + hours(-1)), "0s ago");
    }

    #[test]
    fn all_filters_have_to_hold() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let of = |filters: &[&str]| {
            let filters: Vec<String> = filters.iter().map(|it| (*it).to_owned()).collect();
            earliest(&filters, now).map(|time| time.map(|time| time.to_string()))
        };
        assert_eq!(of(&[]), Ok(None));
        let hour_ago = Ok(Some("2026-01-31T11:00:00Z".to_owned()));
        assert_eq!(of(&["since=1h"]), hour_ago);
        assert_eq!(of(&["until=10m", "since=1h", "since=1s"]), hour_ago);
        for bad in [
            "1h",
            "since",
            "since=",
            "since=-1h",
            "name=x",
            "since=2026-01-31T12:00:00Z",
        ] {
            assert_eq!(of(&[bad]).unwrap_err().kind, Kind::BadRequest, "{bad}");
        }
    }
}

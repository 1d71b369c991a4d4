//! `crabbox providers`

use clap::{Arg, ArgAction, ArgMatches, Command};
use crabbox_core::provider::Spec;
use crabbox_core::settings::{CORE, Kind, Setting};
use crabbox_core::{Code, Failure};
use crabbox_providers::SPECS;
use serde_json::{Value, json};

use crate::app::App;

/// What providers can be chosen by: a filter's name and what a provider has of it.
type Filter = (&'static str, fn(&Spec) -> Vec<&'static str>);

const FILTERS: &[Filter] = &[
    ("kind", |spec| vec![spec.kind]),
    ("category", |spec| vec![spec.category]),
    ("target", |spec| spec.targets.to_vec()),
    ("feature", |spec| spec.features.to_vec()),
    ("runtime", |spec| spec.runtime.to_vec()),
    ("reachability", |_| vec![]),
    ("workspace", |_| vec![]),
    ("evidence", |spec| spec.evidence.to_vec()),
    ("lifecycle", |spec| spec.lifecycle.to_vec()),
];

pub(crate) fn command(name: &'static str) -> Command {
    let json = || {
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("As JSON")
    };
    let command = Command::new(name)
        .about("List the providers and what they can do")
        .arg(json())
        .subcommand(
            Command::new("describe")
                .about("Show one provider with its flags")
                .arg(json())
                .arg(Arg::new("provider").value_name("PROVIDER").required(true)),
        )
        .subcommand(
            Command::new("filters")
                .about("List what providers can be chosen by")
                .arg(json()),
        );
    FILTERS.iter().fold(command, |command, (name, _)| {
        command.arg(
            Arg::new(*name)
                .long(*name)
                .value_name("VALUE,...")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .help(format!("Only providers with this {name} (can be repeated)")),
        )
    })
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    match matches.subcommand() {
        Some(("describe", matches)) => {
            let requested = matches
                .get_one::<String>("provider")
                .map_or("", String::as_str);
            let spec = app.spec(requested)?;
            let value = description(spec, requested);
            if matches.get_flag("json") {
                app.ui.json(&value)?;
            } else {
                app.ui.data(&describe(spec))?;
            }
        }
        Some(("filters", matches)) => filters(app, matches.get_flag("json"))?,
        _ => list(app, matches)?,
    }
    Ok(0)
}

fn allowed(filter: &Filter) -> Vec<&'static str> {
    let mut all: Vec<_> = SPECS.iter().flat_map(|spec| filter.1(spec)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn list(app: &App<'_>, matches: &ArgMatches) -> Result<(), Failure> {
    let mut chosen: Vec<&Spec> = SPECS.to_vec();
    for filter in FILTERS {
        for wanted in matches.get_many::<String>(filter.0).into_iter().flatten() {
            let known = allowed(filter);
            if !known.contains(&wanted.as_str()) {
                let message = format!(
                    "unknown --{} {wanted:?}; allowed: {}",
                    filter.0,
                    known.join(", ")
                );
                return Err(Failure::new(Code::Usage, message));
            }
            chosen.retain(|spec| filter.1(spec).contains(&wanted.as_str()));
        }
    }
    if matches.get_flag("json") {
        let entries: Vec<_> = chosen.iter().map(|spec| entry(spec)).collect();
        return app.ui.json(&entries);
    }
    let lines = chosen.iter().map(|spec| {
        format!(
            "{:<16} {:<14} {:<14} targets={} features={}\n",
            spec.name,
            spec.kind,
            spec.category,
            spec.targets.join(","),
            spec.features.join(",")
        )
    });
    app.ui.data(&lines.collect::<String>())
}

fn filters(app: &App<'_>, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let all: serde_json::Map<_, _> = FILTERS
            .iter()
            .map(|filter| (filter.0.to_owned(), json!(allowed(filter))))
            .collect();
        return app.ui.json(&all);
    }
    let lines = FILTERS
        .iter()
        .map(|filter| format!("--{} {}\n", filter.0, allowed(filter).join(", ")));
    app.ui.data(&lines.collect::<String>())
}

fn entry(spec: &Spec) -> Value {
    json!({
        "provider": spec.name,
        "family": spec.family,
        "kind": spec.kind,
        "category": spec.category,
        "targets": spec.targets,
        "features": spec.features,
        "runtime": spec.runtime,
        "evidence": spec.evidence,
        "lifecycle": spec.lifecycle,
        "coordinator": spec.coordinator,
        "classCatalog": {"disposition": "unmapped", "profiles": []},
    })
}

fn sorted(words: &[&'static str]) -> Vec<&'static str> {
    let mut words = words.to_vec();
    words.sort_unstable();
    words
}

/// From what is compiled in alone.
fn description(spec: &Spec, requested: &str) -> Value {
    json!({
        "schemaVersion": 2,
        "provider": {
            "requested": requested, "canonical": spec.name, "inputAlias": false, "aliases": [],
            "deprecated": false, "replacement": "",
        },
        "runnable": true,
        "kind": spec.kind,
        "family": spec.family,
        "targets": spec.targets,
        "capabilities": {
            "features": sorted(spec.features), "runtime": sorted(spec.runtime), "reachability": [],
            "workspace": [], "evidence": sorted(spec.evidence), "lifecycle": sorted(spec.lifecycle),
            "coordinator": spec.coordinator,
        },
        "classCatalog": {"disposition": "unmapped", "profiles": []},
        "sharedFlags": CORE.iter().filter_map(flag).collect::<Vec<_>>(),
        "providerFlags": spec.table.settings.iter().filter_map(flag).collect::<Vec<_>>(),
    })
}

fn flag(setting: &Setting) -> Option<Value> {
    let (kind, shape) = match setting.kind {
        Kind::Text | Kind::OptionalText | Kind::Name | Kind::Url => ("string", "scalar"),
        Kind::Count => ("int64", "scalar"),
        Kind::Bool => ("bool", "scalar"),
        Kind::Duration | Kind::Lifetime(_) => ("duration", "scalar"),
        Kind::List(_) => ("string", "string-list"),
    };
    Some(json!({
        "name": setting.flag?,
        "type": kind,
        "valueShape": shape,
        "default": setting.default,
        "repeatable": shape == "string-list",
        "usage": setting.help,
        "deprecated": false,
        "replacement": "",
        "routing": setting.key == "provider",
        "creationOnly": setting.creation_only,
    }))
}

fn describe(spec: &Spec) -> String {
    let mut text = format!(
        "{}\n  kind={} category={} targets={} coordinator={}\n  features={}\n",
        spec.name,
        spec.kind,
        spec.category,
        spec.targets.join(","),
        spec.coordinator,
        spec.features.join(",")
    );
    for setting in spec.table.settings {
        let flag = setting.flag.unwrap_or("-");
        text.push_str(&format!("  --{flag:<34} {}\n", setting.help));
    }
    text
}

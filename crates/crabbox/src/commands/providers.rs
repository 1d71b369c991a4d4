//! `crabbox providers`

use clap::{Arg, ArgAction, ArgMatches, Command};
use crabbox_core::provider::Spec;
use crabbox_core::settings::{Applies, CORE, Kind, Setting, format_duration, parse_duration};
use crabbox_core::{Code, Failure, OrderedMap};
use crabbox_providers::specs;
use serde::Serialize;
use serde_json::Value;

use super::recommend;
use crate::app::App;
use crate::cli;
use crate::ui::table::table;

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
    let json = || cli::switch("json", "Output as JSON");
    let command = Command::new(name)
        .about("List the providers and what they can do")
        .arg(json())
        .subcommand(
            Command::new("describe")
                .about("Show one provider with its flags")
                .arg(json())
                .arg(
                    Arg::new("provider")
                        .value_name("PROVIDER")
                        .required(true)
                        .help("Name of the provider"),
                ),
        )
        .subcommand(
            Command::new("recommend")
                .about("Recommend providers for a use case")
                .arg(json())
                .arg(
                    Arg::new("use-case")
                        .value_name("USE_CASE")
                        .help("Without one, the use cases are listed"),
                ),
        )
        .subcommand(
            Command::new("filters")
                .about("List the filters of `providers` and their values")
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

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
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
        Some(("recommend", matches)) => recommend::execute(app, matches)?,
        Some(("filters", matches)) => filters(app, matches.get_flag("json"))?,
        _ => list(app, matches)?,
    }
    Ok(0)
}

fn allowed(specs: &[&Spec], filter: &Filter) -> Vec<&'static str> {
    let mut all: Vec<_> = specs.iter().flat_map(|spec| filter.1(spec)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Those that have everything that is wanted of each filter.
fn choose<'s>(
    specs: &[&'s Spec],
    wanted: impl Fn(&str) -> Vec<String>,
) -> Result<Vec<&'s Spec>, Failure> {
    let mut chosen = specs.to_vec();
    for filter in FILTERS {
        for wanted in wanted(filter.0) {
            let known = allowed(specs, filter);
            if !known.contains(&wanted.as_str()) {
                let message = format!(
                    "unknown --{} `{}`; allowed: {}",
                    filter.0,
                    crabbox_core::printable(&wanted),
                    known.join(", ")
                );
                return Err(Failure::new(Code::Usage, message));
            }
            chosen.retain(|spec| filter.1(spec).contains(&wanted.as_str()));
        }
    }
    Ok(chosen)
}

fn list(app: &App<'_>, matches: &ArgMatches) -> Result<(), Failure> {
    let chosen = choose(&specs().collect::<Vec<_>>(), |filter| {
        let given = matches.get_many::<String>(filter);
        given.into_iter().flatten().cloned().collect()
    })?;
    if matches.get_flag("json") {
        let entries: Vec<_> = chosen.iter().map(|spec| entry(spec)).collect();
        return app.ui.json(&entries);
    }
    if app.ui.data_is_for_people(false) {
        return app.ui.data(&for_people(&chosen));
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

fn for_people(specs: &[&Spec]) -> String {
    let row = |spec: &&Spec| {
        let (kind, category) = (spec.kind.to_owned(), spec.category.to_owned());
        let (targets, features) = (spec.targets.join(", "), spec.features.join(", "));
        [spec.name.to_owned(), kind, category, targets, features]
    };
    let rows: Vec<_> = specs.iter().map(row).collect();
    table(
        ["PROVIDER", "KIND", "CATEGORY", "TARGETS", "FEATURES"],
        &rows,
    )
}

fn filters(app: &App<'_>, as_json: bool) -> Result<(), Failure> {
    let specs: Vec<_> = specs().collect();
    if as_json {
        let all = FILTERS.iter();
        let all = all.map(|filter| (filter.0.to_owned(), allowed(&specs, filter)));
        return app.ui.json(&all.collect::<OrderedMap<_>>());
    }
    let lines = FILTERS
        .iter()
        .map(|filter| format!("--{} {}\n", filter.0, allowed(&specs, filter).join(", ")));
    app.ui.data(&lines.collect::<String>())
}

type Words = &'static [&'static str];

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    provider: &'static str,
    family: &'static str,
    kind: &'static str,
    category: &'static str,
    targets: Words,
    features: Words,
    runtime: Words,
    evidence: Words,
    lifecycle: Words,
    coordinator: &'static str,
    class_catalog: ClassCatalog,
}

/// No provider here has classes of machines.
#[derive(Debug, Serialize)]
struct ClassCatalog {
    disposition: &'static str,
    profiles: Words,
}

const NO_CLASSES: ClassCatalog = ClassCatalog {
    disposition: "unmapped",
    profiles: &[],
};

fn entry(spec: &Spec) -> Entry {
    Entry {
        provider: spec.name,
        family: spec.family,
        kind: spec.kind,
        category: spec.category,
        targets: spec.targets,
        features: spec.features,
        runtime: spec.runtime,
        evidence: spec.evidence,
        lifecycle: spec.lifecycle,
        coordinator: spec.coordinator,
        class_catalog: NO_CLASSES,
    }
}

fn sorted(words: &[&'static str]) -> Vec<&'static str> {
    let mut words = words.to_vec();
    words.sort_unstable();
    words
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Description<'a> {
    schema_version: u32,
    provider: Names<'a>,
    runnable: bool,
    kind: &'static str,
    family: &'static str,
    targets: Words,
    capabilities: Capabilities,
    class_catalog: ClassCatalog,
    shared_flags: Vec<Flag>,
    provider_flags: Vec<Flag>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Names<'a> {
    requested: &'a str,
    canonical: &'static str,
    input_alias: bool,
    aliases: Words,
    deprecated: bool,
    replacement: &'static str,
}

#[derive(Debug, Serialize)]
struct Capabilities {
    features: Vec<&'static str>,
    runtime: Vec<&'static str>,
    reachability: Words,
    workspace: Words,
    evidence: Vec<&'static str>,
    lifecycle: Vec<&'static str>,
    coordinator: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Flag {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    value_shape: &'static str,
    default: Value,
    repeatable: bool,
    usage: &'static str,
    deprecated: bool,
    replacement: &'static str,
    routing: bool,
    creation_only: bool,
}

/// From what is compiled in alone.
fn description<'a>(spec: &Spec, requested: &'a str) -> Description<'a> {
    Description {
        schema_version: 2,
        provider: Names {
            requested,
            canonical: spec.name,
            input_alias: false,
            aliases: &[],
            deprecated: false,
            replacement: "",
        },
        runnable: true,
        kind: spec.kind,
        family: spec.family,
        targets: spec.targets,
        capabilities: Capabilities {
            features: sorted(spec.features),
            runtime: sorted(spec.runtime),
            reachability: &[],
            workspace: &[],
            evidence: sorted(spec.evidence),
            lifecycle: sorted(spec.lifecycle),
            coordinator: spec.coordinator,
        },
        class_catalog: NO_CLASSES,
        shared_flags: CORE.iter().filter_map(flag).collect(),
        provider_flags: spec.table.settings.iter().filter_map(flag).collect(),
    }
}

fn flag(setting: &Setting) -> Option<Flag> {
    let (kind, value_shape) = match setting.kind {
        Kind::Text | Kind::OptionalText | Kind::Name | Kind::Url => ("string", "scalar"),
        Kind::Count => ("int64", "scalar"),
        Kind::Bool => ("bool", "scalar"),
        Kind::Duration | Kind::Lifetime(_) => ("duration", "scalar"),
        Kind::List(_) => ("string", "string-list"),
    };
    Some(Flag {
        name: setting.flag?,
        kind,
        value_shape,
        default: typed_default(setting),
        repeatable: value_shape == "string-list",
        usage: setting.help,
        deprecated: false,
        replacement: "",
        routing: setting.key == "provider",
        creation_only: setting.applies == Applies::ToNewSandboxes,
    })
}

/// The compiled-in value in the type that the flag says: a program need not parse a text.
fn typed_default(setting: &Setting) -> Value {
    let text = setting.default;
    match setting.kind {
        Kind::Bool => (text == "true").into(),
        Kind::Count => text.parse::<u64>().unwrap_or_default().into(),
        Kind::Duration | Kind::Lifetime(_) => match parse_duration(text) {
            Ok(duration) => format_duration(duration).into(),
            Err(_) => text.into(),
        },
        Kind::List(_) => text.split(',').filter(|entry| !entry.is_empty()).collect(),
        Kind::Text | Kind::OptionalText | Kind::Name | Kind::Url => text.into(),
    }
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

#[cfg(test)]
mod tests {
    use crabbox_core::command::{Assignments, Rules};
    use crabbox_core::provider::{BusyLease, ExpiredLease, StopBy, WorkspaceKind};
    use crabbox_core::settings::ProviderTable;

    use super::*;

    const ANY: Spec = Spec {
        name: "any",
        family: "any",
        kind: "delegated-run",
        category: "local-sandbox",
        targets: &["linux"],
        features: &[],
        runtime: &[],
        evidence: &[],
        lifecycle: &[],
        coordinator: "never",
        table: ProviderTable {
            name: "any",
            section: "any",
            settings: &[],
        },
        lease_prefix: "any_",
        fixed_lease_id: false,
        workspace: WorkspaceKind::Mounted,
        command: Rules {
            shell: &[],
            assignments: Assignments::Strict,
            host_paths: false,
        },
        stop_by: StopBy::Slug,
        absence_is_proof: true,
        expired: ExpiredLease::Refuse,
        busy: BusyLease::Skip,
        ports: false,
        copy: false,
        build_cache: false,
        instead_of_class: "",
        instead_of_type: "",
        credentials: &[],
    };
    const FIRST: Spec = Spec {
        name: "first",
        features: &["cleanup", "run-session"],
        lifecycle: &["cleanup"],
        ..ANY
    };
    const SECOND: Spec = Spec {
        name: "second",
        category: "delegated-sandbox",
        features: &["archive-sync", "run-session"],
        lifecycle: &[],
        ..ANY
    };

    fn chosen(wanted: &[(&str, &str)]) -> Vec<&'static str> {
        let wanted = |filter: &str| {
            let own = wanted.iter().filter(|(name, _)| *name == filter);
            own.map(|(_, value)| (*value).to_owned()).collect()
        };
        let chosen = choose(&[&FIRST, &SECOND], wanted).unwrap();
        chosen.iter().map(|spec| spec.name).collect()
    }

    #[test]
    fn all_that_is_wanted_must_be_there() {
        assert_eq!(chosen(&[]), ["first", "second"]);
        assert_eq!(chosen(&[("feature", "run-session")]), ["first", "second"]);
        let both = [("feature", "run-session"), ("feature", "cleanup")];
        assert_eq!(chosen(&both), ["first"]);
        let two = [("category", "delegated-sandbox"), ("lifecycle", "cleanup")];
        assert_eq!(chosen(&two), [""; 0]);
        let two = [
            ("category", "delegated-sandbox"),
            ("feature", "archive-sync"),
        ];
        assert_eq!(chosen(&two), ["second"]);
    }
}

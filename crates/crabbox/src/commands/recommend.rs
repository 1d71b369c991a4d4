//! `crabbox providers recommend`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::provider::Spec;
use crabbox_providers::specs;
use serde::Serialize;

use crate::app::App;

/// What a provider may have that counts for a use, and how much.
type Criterion = (fn(&Spec) -> bool, u32, &'static str);

/// A use case: its name, what it means, and what counts for it.
struct UseCase {
    name: &'static str,
    about: &'static str,
    criteria: &'static [Criterion],
}

fn is_local(spec: &Spec) -> bool {
    spec.runtime.contains(&"local-runtime")
}

fn is_remote(spec: &Spec) -> bool {
    !is_local(spec)
}

fn has_session(spec: &Spec) -> bool {
    spec.features.contains(&"run-session")
}

const LOCAL: Criterion = (is_local, 3, "runs on this machine");
const REMOTE: Criterion = (is_remote, 3, "runs elsewhere");
const SESSION: Criterion = (has_session, 2, "keeps a sandbox for several commands");
const ISOLATED: Criterion = (
    |spec| spec.category.ends_with("sandbox"),
    3,
    "runs commands in a sandbox",
);
const CLEANUP: Criterion = (
    |spec| spec.features.contains(&"cleanup"),
    1,
    "removes expired leases",
);
const MCP: Criterion = (
    |spec| spec.features.contains(&"mcp-attachments"),
    3,
    "attaches MCP servers",
);
const SYNC: Criterion = (
    |spec| spec.features.contains(&"archive-sync"),
    3,
    "works on a copy of the repository",
);
const PORTS: Criterion = (|spec| spec.ports, 3, "publishes ports");
const COPY: Criterion = (|spec| spec.copy, 2, "copies files");

const USE_CASES: &[UseCase] = &[
    UseCase {
        name: "agent-sandbox",
        about: "let a coding agent work in the repository",
        criteria: &[ISOLATED, SESSION, LOCAL, CLEANUP],
    },
    UseCase {
        name: "disposable-execution",
        about: "run one command and keep nothing",
        criteria: &[ISOLATED, LOCAL, CLEANUP],
    },
    UseCase {
        name: "isolated-execution",
        about: "run code that is not trusted",
        criteria: &[ISOLATED, CLEANUP],
    },
    UseCase {
        name: "mcp-sandbox",
        about: "run with MCP servers attached",
        criteria: &[MCP, ISOLATED, SESSION],
    },
    UseCase {
        name: "offline-validation",
        about: "check without a network",
        criteria: &[LOCAL, ISOLATED],
    },
    UseCase {
        name: "remote-execution",
        about: "run on another machine",
        criteria: &[REMOTE, SYNC, SESSION],
    },
    UseCase {
        name: "run-session",
        about: "run several commands in one sandbox",
        criteria: &[SESSION, CLEANUP],
    },
    UseCase {
        name: "web-service",
        about: "reach a server that runs in the sandbox",
        criteria: &[PORTS, COPY, SESSION],
    },
];

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    use_case: &'static str,
    recommendations: Vec<Recommendation>,
}

#[derive(Debug, Serialize)]
struct Recommendation {
    provider: &'static str,
    score: u32,
    reasons: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Known {
    use_case: &'static str,
    about: &'static str,
}

/// Without a use case, what there is to choose from.
pub(super) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<(), Failure> {
    let json = matches.get_flag("json");
    let Some(wanted) = matches.get_one::<String>("use-case") else {
        return list(app, json);
    };
    let wanted = wanted.trim().to_lowercase();
    let use_case = USE_CASES.iter().find(|one| one.name == wanted);
    let use_case = use_case.ok_or_else(|| {
        let known: Vec<_> = USE_CASES.iter().map(|one| one.name).collect();
        let known = known.join(", ");
        Failure::usage(format!(
            "unknown use case `{}`; allowed: {known}",
            crabbox_core::printable(&wanted)
        ))
    })?;
    let recommendations = recommend(use_case, specs());
    if json {
        return app.ui.json(&Shown {
            use_case: use_case.name,
            recommendations,
        });
    }
    let lines = recommendations.iter().map(|one| {
        let reasons = one.reasons.join(", ");
        format!("{:<16} score={} {reasons}\n", one.provider, one.score)
    });
    app.ui.data(&lines.collect::<String>())
}

fn list(app: &App<'_>, json: bool) -> Result<(), Failure> {
    let known = USE_CASES.iter().map(|one| Known {
        use_case: one.name,
        about: one.about,
    });
    if json {
        return app.ui.json(&known.collect::<Vec<_>>());
    }
    let lines = known.map(|one| format!("{:<22} {}\n", one.use_case, one.about));
    app.ui.data(&lines.collect::<String>())
}

/// Best first; one that has nothing of it is not named.
fn recommend<'s>(use_case: &UseCase, specs: impl Iterator<Item = &'s Spec>) -> Vec<Recommendation> {
    let mut all: Vec<_> = specs
        .map(|spec| {
            let has = use_case.criteria.iter().filter(|(has, _, _)| has(spec));
            let (scores, reasons): (Vec<u32>, Vec<&str>) =
                has.map(|(_, score, reason)| (*score, *reason)).unzip();
            Recommendation {
                provider: spec.name,
                score: scores.iter().sum(),
                reasons,
            }
        })
        .filter(|one| one.score > 0)
        .collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.score));
    all
}

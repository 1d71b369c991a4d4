//! `crabbox claims prune`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::claims::Claim;
use crabbox_core::lifecycle::{self, Action, DryRun, Subject, Swept};
use crabbox_core::settings::Untrusted;
use serde::Serialize;

use super::cleanup::{Entry, entry};
use crate::app::{App, provider_flag};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Done<'a> {
    dry_run: bool,
    entries: Vec<Entry<'a>>,
    removed: usize,
    checked: usize,
}

/// Every provider is asked about its own claims. One that cannot answer keeps them.
pub(super) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let dry_run = match matches.get_flag("dry-run") {
        true => DryRun::Yes,
        false => DryRun::No,
    };
    let scan = app.store()?.scan()?;
    let mut swept = Vec::new();
    for problem in scan.problems {
        swept.push(Swept {
            subject: Subject::File(problem.file),
            action: Action::Skip,
            reason: problem.message,
        });
    }
    let mut rest = scan.claims;
    while let Some(first) = rest.first() {
        let provider = first.provider.clone();
        let (own, others) = (rest.into_iter()).partition(|claim| claim.provider == provider);
        rest = others;
        swept.extend(of_provider(app, &provider, own, dry_run));
    }
    show(app, matches, &swept)
}

fn of_provider(app: &App<'_>, name: &str, claims: Vec<Claim>, dry_run: DryRun) -> Vec<Swept> {
    let pruned = pruned(app, name, &claims, dry_run);
    pruned.unwrap_or_else(|failure| {
        let skip = |claim: Claim| Swept {
            subject: Subject::Claim(Box::new(claim)),
            action: Action::Skip,
            reason: failure.to_string(),
        };
        claims.into_iter().map(skip).collect()
    })
}

fn pruned(
    app: &App<'_>,
    name: &str,
    claims: &[Claim],
    dry_run: DryRun,
) -> Result<Vec<Swept>, Failure> {
    let settings = app.load(&[provider_flag(name.to_owned())], Untrusted::LeaveOut)?;
    let provider = app.provider(&settings)?;
    let store = app.store()?;
    lifecycle::prune(app.context(&*provider, &store), claims, dry_run)
}

fn show(app: &App<'_>, matches: &ArgMatches, swept: &[Swept]) -> Result<u8, Failure> {
    let removed = swept.iter().filter(|one| one.action == Action::Delete);
    let removed = removed.count();
    let dry_run = matches.get_flag("dry-run");
    if matches.get_flag("json") {
        app.ui.json(&Done {
            dry_run,
            entries: swept.iter().map(entry).collect(),
            removed,
            checked: swept.len(),
        })?;
        return Ok(0);
    }
    let mut text: String = swept.iter().map(|one| format!("{one}\n")).collect();
    if !dry_run {
        text.push_str(&format!(
            "claims prune removed={removed} checked={}\n",
            swept.len()
        ));
    }
    app.ui.data(&text)?;
    Ok(0)
}

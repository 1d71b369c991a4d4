//! `crabbox claims list|forget|prune`

use clap::{Arg, ArgMatches, Command};
use crabbox_core::claims::{Claim, ClaimStore, Listing, ProviderFilter, Wait};
use crabbox_core::{Code, Failure};
use crabbox_providers::specs;
use serde::Serialize;

use crate::app::App;
use crate::cli;

const FORGET: &str = "forget";
const PRUNE: &str = "prune";
const SLUGS: &str = "slugs";
const LEASE: &str = "lease";

pub(crate) fn command(name: &'static str) -> Command {
    let json = |help| cli::switch("json", help);
    Command::new(name)
        .about("Manage the local claims of leases")
        .subcommand_required(true)
        .subcommand(
            Command::new("list")
                .about("List local claims without querying providers")
                .arg(json("Output as JSON")),
        )
        .subcommand(
            Command::new(SLUGS)
                .about("List what leases are called, for shell completion")
                .hide(true),
        )
        .subcommand(
            Command::new(PRUNE)
                .about("Remove the claims of sandboxes that are gone")
                .long_about(
                    "Remove the claims of sandboxes that are gone\n\n\
                     A claim goes only if its provider proves that the sandbox no longer exists. No sandbox is removed.",
                )
                .arg(cli::switch("dry-run", "Show what would be removed"))
                .arg(json("Output as JSON")),
        )
        .subcommand(
            Command::new(FORGET)
                .about("Forget a lease without removing its sandbox")
                .long_about(
                    "Forget a lease without removing its sandbox\n\n\
                     Only the local claim is removed; the provider is not contacted. Use it for a sandbox \
                     whose engine is gone, and `crabbox stop` otherwise.",
                )
                .arg(json("Output the result or failure as JSON"))
                .arg(
                    Arg::new(LEASE)
                        .value_name("LEASE")
                        .required(true)
                        .help("Lease slug, lease id or sandbox name"),
                ),
        )
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    match matches.subcommand() {
        Some((FORGET, matches)) => forget(app, matches),
        Some((PRUNE, matches)) => super::prune::execute(app, matches),
        Some((SLUGS, _)) => slugs(app),
        Some((_, matches)) => list(app, matches.get_flag("json")),
        None => list(app, false),
    }
}

fn list(app: &App<'_>, json: bool) -> Result<u8, Failure> {
    let listing = Listing::new(&app.store()?.scan()?);
    if json {
        app.ui.json(&listing)?;
    } else {
        let text = match listing.is_empty() && app.ui.data_is_for_people(false) {
            true => "No claims: no lease is recorded here.\n".to_owned(),
            false => listing.text(),
        };
        app.ui.data(&text)?;
    }
    match listing.failure() {
        Some(failure) => Err(failure),
        None => Ok(0),
    }
}

/// One per line. Damaged claims have none.
fn slugs(app: &App<'_>) -> Result<u8, Failure> {
    let claims = app.store()?.scan()?.claims;
    let name = |claim: &Claim| format!("{}\n", claim.slug_str().unwrap_or(claim.lease_id.as_str()));
    app.ui.data(&claims.iter().map(name).collect::<String>())?;
    Ok(0)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Forgotten<'a> {
    lease_id: &'a str,
    slug: Option<&'a str>,
    sandbox: &'a str,
    forgotten: bool,
}

fn forget(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let id = matches.get_one::<String>(LEASE).map_or("", String::as_str);
    let store = app.store()?;
    let lease = find(&store, id)?.lease_id;
    // Who works in it needs the record.
    let _lock = store.operation(&lease, "crabbox claims forget", Wait::none())?;
    let claim = store.read(&lease)?.ok_or_else(|| unknown(id))?;
    let sandbox = claim.sandbox().unwrap_or("-");
    app.ui.say(&format!(
        "warning: sandbox {sandbox} of provider={} may still exist: only its local claim is removed",
        claim.provider
    ));
    match claim.is_fixed() {
        true => store.retire(&claim)?,
        false => store.remove(&claim)?,
    }
    if matches.get_flag("json") {
        app.ui.json(&Forgotten {
            lease_id: claim.lease_id.as_str(),
            slug: claim.slug_str(),
            sandbox,
            forgotten: true,
        })?;
    } else {
        app.ui
            .say(&format!("forgot lease={lease} sandbox={sandbox}"));
    }
    Ok(0)
}

/// Of whichever provider, by its whole name: what is forgotten by mistake is hard to find again.
fn find(store: &ClaimStore, id: &str) -> Result<Claim, Failure> {
    match store.find(id, ProviderFilter::All)? {
        Some(claim) => Ok(claim),
        None => by_sandbox_name(store, id)?.ok_or_else(|| unknown(id)),
    }
}

/// The lease of the sandbox that its provider calls so.
pub(super) fn by_sandbox_name(store: &ClaimStore, name: &str) -> Result<Option<Claim>, Failure> {
    for spec in specs() {
        let id = format!("{}{name}", spec.lease_prefix);
        if let Some(claim) = store.find(&id, ProviderFilter::Only(spec.name))? {
            return Ok(Some(claim));
        }
    }
    Ok(None)
}

fn unknown(id: &str) -> Failure {
    let message = format!("no claim found for lease `{}`", crabbox_core::printable(id));
    Failure::new(Code::NotFound, message).hint("crabbox claims list")
}

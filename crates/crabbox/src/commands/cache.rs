//! `crabbox cache ls|clear`

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};
use crabbox_core::claims::ClaimStore;
use crabbox_core::provider::{BuildCache, Provider};
use crabbox_core::{Code, Failure};
use jiff::Timestamp;
use serde::Serialize;

use super::claims;
use super::list::since;
use crate::app::App;
use crate::cli;
use crate::ui::table::table;

const CLEAR: &str = "clear";
const PATH: &str = "path";

pub(crate) fn command(name: &'static str) -> Command {
    let json = || cli::switch("json", "Output as JSON");
    let path = Arg::new(PATH)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .value_hint(clap::ValueHint::DirPath)
        .help("Only the cache of this repository");
    Command::new(name)
        .about("List and remove the build caches of repositories")
        .long_about(
            "List and remove the build caches of repositories\n\n\
             `--cache`, or `cache: true` in your own config, keeps what tools in one-shot sandboxes download or compile \
             for the next sandbox of the same repository. The host never uses it. Only the bundled engine has it.",
        )
        .subcommand_required(true)
        .subcommand(cli::with_use_flags(
            Command::new("ls")
                .about("List build caches")
                .visible_alias("list")
                .arg(json()),
        ))
        .subcommand(cli::with_use_flags(
            Command::new(CLEAR)
                .about("Remove build caches that no sandbox uses")
                .arg(json())
                .arg(path),
        ))
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    match matches.subcommand() {
        Some((CLEAR, matches)) => clear(app, matches),
        Some((_, matches)) => list(app, matches),
        None => Err(Failure::usage("usage: crabbox cache ls|clear")),
    }
}

#[derive(Debug, Serialize)]
struct Listing<'a> {
    caches: &'a [BuildCache],
}

fn list(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let provider = app.provider(&app.lenient_settings(matches)?)?;
    let caches = provider.build_caches(&app.cancel)?;
    if matches.get_flag("json") {
        app.ui.json(&Listing { caches: &caches })?;
    } else if app.ui.data_is_for_people(false) {
        app.ui.data(&for_people(&caches, Timestamp::now()))?;
    } else {
        app.ui.data(&caches.iter().map(line).collect::<String>())?;
    }
    Ok(0)
}

fn line(cache: &BuildCache) -> String {
    let bytes = cache
        .bytes
        .map_or("-".to_owned(), |bytes| bytes.to_string());
    let sandbox = cache.sandbox.as_deref().unwrap_or("-");
    let path = crabbox_core::printable(&cache.workspace);
    format!("bytes={bytes} sandbox={sandbox} path={path}\n")
}

/// A table with headers, or a sentence.
fn for_people(caches: &[BuildCache], now: Timestamp) -> String {
    if caches.is_empty() {
        return "No build caches. `crabbox run --cache` makes one.\n".to_owned();
    }
    let row = |cache: &BuildCache| {
        let size = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
        [
            crabbox_core::printable(&cache.workspace),
            cache.bytes.map_or("-".to_owned(), size),
            format!("{} ago", since(cache.used_at, now)),
            cache.sandbox.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    let rows: Vec<_> = caches.iter().map(row).collect();
    table(["REPOSITORY", "SIZE", "LAST USED", "IN USE BY"], &rows)
}

fn clear(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let provider = app.provider(&app.lenient_settings(matches)?)?;
    let path = matches.get_one::<PathBuf>(PATH);
    let path = path.map(|path| app.host.cwd.join(path));
    let done = provider.clear_build_caches(path.as_deref(), &app.cancel)?;
    if matches.get_flag("json") {
        app.ui.json(&done)?;
    } else {
        let cleared = (done.cleared.iter()).map(|cache| {
            let path = crabbox_core::printable(&cache.workspace);
            format!("cleared {path}\n")
        });
        let cleared = cleared.collect::<String>();
        let is_nothing = cleared.is_empty() && done.busy.is_empty();
        match is_nothing && app.ui.data_is_for_people(false) {
            true => app.ui.data("Nothing to clear.\n")?,
            false => app.ui.data(&cleared)?,
        }
    }
    match done.busy.first() {
        None => Ok(0),
        Some(busy) => Err(in_use(&*provider, &app.store()?, busy)),
    }
}

fn in_use(provider: &dyn Provider, store: &ClaimStore, cache: &BuildCache) -> Failure {
    let (path, sandbox) = (&cache.workspace, cache.sandbox.as_deref().unwrap_or("-"));
    let message = format!("the build cache of `{path}` is in use by sandbox `{sandbox}`");
    let failure = Failure::new(Code::Provider, message);
    // One that `sbx` made by itself has no claim.
    match claims::by_sandbox_name(store, sandbox) {
        Ok(Some(claim)) => {
            let lease = claim.slug_str().unwrap_or(claim.lease_id.as_str());
            failure.hint(format!("crabbox stop {lease}"))
        }
        Ok(None) | Err(_) => match provider.stop_sandbox_command(sandbox) {
            Some(command) => failure.hint(command),
            None => failure,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_a_table_or_a_sentence() {
        let now = Timestamp::from_second(7200).unwrap();
        assert!(for_people(&[], now).starts_with("No build caches."));
        let cache = BuildCache {
            workspace: "/r\u{1b}".to_owned(),
            bytes: Some(1),
            used_at: Timestamp::from_second(0).unwrap(),
            sandbox: None,
        };
        assert_eq!(line(&cache), "bytes=1 sandbox=- path=/r\\u{1b}\n");
        let shown = for_people(&[cache], now);
        assert!(
            shown.contains("\n/r\\u{1b}    1 MiB  2h ago     -"),
            "{shown}"
        );
    }
}

//! `crabbox trust`

use std::fs;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use crabbox_core::settings::{TrustStore, repository_files};
use crabbox_core::{Code, Failure};
use serde_json::json;

use crate::app::{App, place};
use crate::cli::parsed;

/// Trust the settings files of this repository
///
/// Repositories are untrusted: they may not choose programs, mounts or variables to forward. Trust lifts this for a
/// file's current content; a changed file is untrusted again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Revoke trust
    #[arg(long, conflicts_with = "list")]
    revoke: bool,
    /// List trusted files
    #[arg(long)]
    list: bool,
    /// Output as JSON
    #[arg(long)]
    json: bool,
    /// With --revoke: the file, even if it no longer exists [default: those of this repository]
    #[arg(value_name = "FILE", requires = "revoke")]
    file: Option<PathBuf>,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let state = app.host.state()?;
    if args.list {
        return list(app, &state, args.json);
    }
    if args.revoke {
        return revoke(app, &state, args.file.as_deref());
    }
    let files = app.files()?.repository;
    if files.is_empty() {
        return Err(nothing_here(app));
    }
    // A file that cannot be loaded is not trusted: the user cannot know what it would do.
    for file in &files {
        app.check_file(file)?;
    }
    for file in files {
        let record = TrustStore::add(&state, &file.canonical, &file.bytes)?;
        let shown = file.path.display();
        app.ui
            .say(&format!("trusted {shown} sha256:{}", record.sha256));
    }
    Ok(0)
}

fn list(app: &App<'_>, state: &Path, json: bool) -> Result<u8, Failure> {
    let store = TrustStore::read(state)?;
    if json {
        app.ui.json(&json!({"trusted": store.list()}))?;
    } else {
        let lines = store
            .list()
            .iter()
            .map(|record| format!("{} sha256:{}\n", record.path.display(), record.sha256));
        let lines = lines.collect::<String>();
        if lines.is_empty() && app.ui.data_is_for_people(false) {
            app.ui.data("No trusted files.\n")?;
        } else {
            app.ui.data(&lines)?;
        }
    }
    Ok(0)
}

/// What is taken back need not be there any more, nor be readable.
fn revoke(app: &App<'_>, state: &Path, file: Option<&Path>) -> Result<u8, Failure> {
    let files = match file {
        Some(file) => vec![app.host.cwd.join(file)],
        None => match app.named() {
            Some(named) => vec![named],
            None => repository_files(&app.root()).to_vec(),
        },
    };
    let mut known = false;
    for path in &files {
        let had = TrustStore::remove(state, &resolved(path))?;
        let word = match (had, file.is_some() || path.exists()) {
            (true, _) => "no longer trusted",
            (false, true) => "was not trusted",
            (false, false) => continue,
        };
        known = true;
        app.ui.say(&format!("{}: {word}", path.display()));
    }
    match known {
        true => Ok(0),
        false => {
            Err(nothing_here(app).hint("crabbox trust --list, then crabbox trust --revoke FILE"))
        }
    }
}

/// As it is recorded: with every link resolved, as far as there is something.
fn resolved(path: &Path) -> PathBuf {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return place(path).canonical;
    };
    match fs::canonicalize(path) {
        Ok(canonical) => canonical,
        Err(_) => place(dir).canonical.join(name),
    }
}

fn nothing_here(app: &App<'_>) -> Failure {
    let [first, second] = repository_files(&app.root());
    let message = format!(
        "no settings files in this repository: neither `{}` nor `{}` exists",
        first.display(),
        second.display()
    );
    Failure::new(Code::NotFound, message)
}

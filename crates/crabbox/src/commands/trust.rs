//! `crabbox trust`

use clap::ArgMatches;
use crabbox_core::settings::{TrustStore, repository_files};
use crabbox_core::{Code, Failure};
use serde_json::json;

use crate::app::App;
use crate::cli::parsed;

/// Accept the settings of this repository's file, as it is now
///
/// A repository may not choose programs, mounts or variables to pass on. This lifts the refusal for the file with exactly
/// its present content; a changed file is refused again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Take it back
    #[arg(long, conflicts_with = "list")]
    revoke: bool,
    /// Show what is trusted
    #[arg(long)]
    list: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let state = app.host.state()?;
    if args.list {
        let store = TrustStore::read(&state)?;
        if args.json {
            app.ui.json(&json!({"trusted": store.list()}))?;
        } else {
            let lines = store
                .list()
                .iter()
                .map(|record| format!("{} sha256:{}\n", record.path.display(), record.sha256));
            app.ui.data(&lines.collect::<String>())?;
        }
        return Ok(0);
    }
    let files = app.files()?.repository;
    if files.is_empty() {
        let [first, second] = repository_files(&app.root());
        let message = format!(
            "there is neither `{}` nor `{}`",
            first.display(),
            second.display()
        );
        return Err(Failure::new(Code::NotFound, message));
    }
    for file in files {
        let shown = file.path.display();
        if args.revoke {
            let had = TrustStore::remove(&state, &file.canonical)?;
            app.ui.say(&format!(
                "{shown}: {}",
                if had {
                    "no longer trusted"
                } else {
                    "was not trusted"
                }
            ));
        } else {
            let record = TrustStore::add(&state, &file.canonical, &file.bytes)?;
            app.ui
                .say(&format!("trusted {shown} sha256:{}", record.sha256));
        }
    }
    Ok(0)
}

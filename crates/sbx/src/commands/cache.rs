//! `sbx cache`: the build caches of `sbx create --cache`.

use std::path::PathBuf;

use sbx_api::{BuildCache, ClearCaches};
use sbx_engine::cache;
use serde_json::json;

use super::policy::repo;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::text;

/// List and remove build caches
///
/// A build cache keeps what tools in the sandboxes of one repository download or compile into their caches, for those that
/// were created with `--cache`. The host never uses it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List build caches
    #[command(visible_alias = "list")]
    Ls(Ls),
    /// Remove build caches that no sandbox uses
    #[command(after_help = "Examples:\n  sbx cache clear\n  sbx cache clear .")]
    Clear(Clear),
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Clear {
    /// Only the cache of this repository
    #[arg(value_name = "PATH", value_hint = clap::ValueHint::DirPath)]
    path: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.command {
            Command::Ls(args) => args.json,
            Command::Clear(args) => args.json,
        }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Ls(args) => ls(context, args),
        Command::Clear(args) => clear(context, args),
    }
}

fn all(context: &Context) -> Result<Vec<BuildCache>, Failure> {
    let state = context.state()?;
    cache::list(&state).map_err(|error| {
        let path = state.caches();
        Failure::failed(format!("cannot read `{}`: {error}", path.display()))
    })
}

fn ls(context: &Context, args: &Ls) -> Result<(), Failure> {
    let caches = all(context)?;
    if args.json {
        return context.ui.json(&json!({"caches": caches}));
    }
    if caches.is_empty() {
        context
            .ui
            .note("No build caches. `sbx create --cache` makes one.");
        return Ok(());
    }
    let header = ["WORKSPACE", "SIZE", "LAST USED", "SANDBOX"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for cache in &caches {
        rows.push(vec![
            text::one_line(&cache.workspace),
            size(cache),
            format!("{:.0}", cache.used_at),
            cache.sandbox.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let mut lines = text::table(&rows);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    context.ui.data(lines.join("\n") + "\n")
}

fn clear(context: &Context, args: &Clear) -> Result<(), Failure> {
    let workspace = match &args.path {
        None => None,
        Some(path) => repo::path(repo::known(context, path)?),
    };
    // Nothing is started for nothing.
    if all(context)?.is_empty() {
        return match args.json {
            true => context.ui.json(&json!({"cleared": [], "busy": []})),
            false => Ok(()),
        };
    }
    let client = Client::new(context, Absent::Start)?;
    let done = client.clear_caches(&ClearCaches { workspace })?;
    if args.json {
        context.ui.json(&done)?;
    } else {
        let lines: String = (done.cleared.iter())
            .map(|cache| format!("{}\n", text::one_line(&cache.workspace)))
            .collect();
        context.ui.data(lines)?;
    }
    match done.busy.first() {
        None => Ok(()),
        Some(busy) => {
            let sandbox = busy.sandbox.as_deref().unwrap_or_default();
            Err(Failure::new(
                Kind::Conflict,
                format!(
                    "the build cache of `{}` is in use by sandbox `{sandbox}`",
                    busy.workspace
                ),
            )
            .hint(format!("sbx stop {sandbox}")))
        }
    }
}

/// In MiB, when it is known.
fn size(cache: &BuildCache) -> String {
    match cache.bytes {
        None => "-".to_owned(),
        Some(bytes) => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

//! `crabbox sync-plan`

use clap::ArgMatches;
use crabbox_core::Failure;
use crabbox_core::git::Repository;
use crabbox_core::sync::plan::{Plan, dirty_delta};
use crabbox_core::sync::{self, Options, Rules, Source};

use crate::app::App;
use crate::cli::parsed;

/// Show what would be sent to a sandbox that needs a copy
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of largest files and directories to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Work outside of a Git repository too
    #[arg(long)]
    no_git: bool,
    /// Output as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let settings = app.settings(matches)?;
    app.require_cwd()?;
    let repository = Repository::discover(&app.host.cwd, &app.host.env)?;
    let root = repository
        .as_ref()
        .map_or(app.host.cwd.as_path(), Repository::root);
    let options = Options::from(&settings);
    let rules = Rules::load(root, &options.exclude, &options.include)?;
    let source = if args.no_git {
        Source::Walk
    } else {
        Source::Git
    };
    let manifest =
        sync::list(&app.host.cwd, repository.as_ref(), source, &rules).map_err(|failure| {
            let could_walk = sync::check(&app.host.cwd, repository.as_ref(), Source::Walk).is_ok();
            if repository.is_none() && !args.no_git && could_walk {
                return failure
                    .hint("crabbox sync-plan --no-git lists a directory that is not a repository");
            }
            failure
        })?;
    for warning in manifest.warnings() {
        app.ui.say(&warning);
    }
    let delta = dirty_delta(&manifest, repository.as_ref())?;
    let plan = Plan::new(&manifest, delta, options.limits, options.allow, args.limit);
    if args.json {
        app.ui.json(&plan)?;
    } else {
        app.ui.data(&plan.to_text())?;
    }
    Ok(0)
}

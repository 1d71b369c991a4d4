//! `sbx template`

use std::path::PathBuf;

use clap::Subcommand;
use sbx_api::SavedTemplate;
use sbx_engine::saved;
use serde_json::json;

use super::save;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::text;

/// As many characters of an id as a table shows.
const SHORT_ID: usize = 12;

/// Save sandboxes as templates, list and remove templates
///
/// A template is what one sandbox changed of this machine's own system: `sbx create -t TAG` makes a sandbox that begins
/// with it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Save(save::Args),
    #[command(visible_alias = "list")]
    Ls(Ls),
    #[command(visible_alias = "remove")]
    Rm(Rm),
    #[command(hide = true)]
    Load(Load),
}

/// List saved templates
#[derive(Debug, clap::Args)]
struct Ls {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove saved templates
///
/// Sandboxes that are made from one go on, and can be started again; its files go with the last of them.
#[derive(Debug, clap::Args)]
struct Rm {
    /// Names of templates, or beginnings of their ids
    #[arg(value_name = "TAG", required = true)]
    templates: Vec<String>,
    /// Accepted; nothing is asked.
    #[arg(short = 'f', long, hide = true)]
    force: bool,
}

/// Load a template from a file (not supported yet)
#[derive(Debug, clap::Args)]
struct Load {
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        matches!(&self.command, Command::Ls(args) if args.json)
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Save(args) => save::run(context, args),
        Command::Ls(args) => ls(context, args),
        Command::Rm(args) => rm(context, args),
        Command::Load(args) => Err(Failure::new(
            Kind::NotYet,
            format!(
                "cannot load `{}`: this version of sbx makes no templates of images",
                args.file.display()
            ),
        )
        .hint("make one from a sandbox: sbx template save SANDBOX TAG")),
    }
}

fn all(context: &Context) -> Result<Vec<SavedTemplate>, Failure> {
    let state = context.state()?;
    saved::list(&state).map_err(|error| {
        let path = state.saved_templates();
        Failure::failed(format!("cannot read `{}`: {error}", path.display()))
    })
}

fn ls(context: &Context, args: &Ls) -> Result<(), Failure> {
    let templates = all(context)?;
    if args.json {
        return context.ui.json(&json!({"images": templates}));
    }
    if templates.is_empty() {
        context.ui.note("No template images found");
        return Ok(());
    }
    let header = ["REPOSITORY", "TAG", "IMAGE ID", "FLAVOR", "CREATED"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for template in &templates {
        rows.push(vec![
            template.repository.clone(),
            template.tag.clone(),
            template.id.chars().take(SHORT_ID).collect(),
            text::one_line(&template.flavor),
            format!("{:.0}", template.created_at),
        ]);
    }
    let mut lines = text::table(&rows);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    context.ui.data(lines.join("\n") + "\n")
}

fn rm(context: &Context, args: &Rm) -> Result<(), Failure> {
    // Nothing is started for nothing.
    if all(context)?.is_empty()
        && let Some(first) = args.templates.first()
    {
        let message = format!("no template `{}`", first.escape_debug());
        return Err(Failure::new(Kind::NotFound, message).hint("sbx template ls"));
    }
    let client = Client::new(context, Absent::Start)?;
    let mut failed = false;
    for template in &args.templates {
        match client.remove_template(template) {
            Ok(removed) => {
                let name = removed.template.name();
                context.ui.note(format!("Template '{name}' removed"));
                if !removed.sandboxes.is_empty() {
                    let users = removed.sandboxes.join(", ");
                    context.ui.note(format!(
                        "Its files stay for sandboxes that are made from it: {users}"
                    ));
                }
            }
            Err(failure) => {
                context.ui.failure(&failure);
                failed = true;
            }
        }
    }
    match failed {
        true => Err(Failure::quiet(1)),
        false => Ok(()),
    }
}

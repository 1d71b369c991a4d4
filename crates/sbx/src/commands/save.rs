//! `sbx template save`, which is also `sbx save` and `docker sandbox save`.

use std::path::PathBuf;

use sbx_api::{SaveTemplate, Status};
use sbx_engine::sandbox::tag::Tag;

use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{lookup, text};

const PROGRESS: &str = "Saving the template...";

/// Save what was installed and changed in a stopped sandbox as a template for new ones
///
/// Programs, settings and all other files that were written in it are part of the template, secrets among them.
/// Workspaces and other mounts are not, and what is each sandbox's own: its host name, certificate and variables. A
/// template of the same name is replaced; sandboxes that are made from that one keep it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the sandbox
    #[arg(value_name = "SANDBOX")]
    name: String,
    /// Name of the template, such as my-template:v1
    #[arg(value_name = "TAG")]
    tag: String,
    /// Write an image to a file (not supported yet)
    #[arg(short = 'o', long, value_name = "FILE", hide = true)]
    output: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.output.is_some() {
        return Err(Failure::new(
            Kind::NotYet,
            "`--output` writes an image, which this version of sbx does not support",
        )
        .hint("leave it out: the template is stored on this machine"));
    }
    let tag = parse_tag(&args.tag)?;
    let existing = lookup::list(context)?;
    let sandbox = lookup::find(&existing, &args.name)?;
    let running = sandbox.status == Status::Running;
    if running && !may_stop(context, &args.name) {
        let message = format!("cannot save a running sandbox: `{}`", args.name);
        return Err(Failure::new(Kind::Conflict, message).hint(format!("sbx stop {}", args.name)));
    }
    let client = Client::new(context, Absent::Start)?;
    if running {
        client.stop(&args.name)?;
    }
    let request = SaveTemplate {
        sandbox: args.name.clone(),
        tag: tag.to_string(),
        id: Some(sandbox.id.clone()),
    };
    let saved = (context.ui).with_progress(PROGRESS, || client.save_template(&request))?;
    for warning in &saved.warnings {
        context.ui.warning(warning);
    }
    let (template, agent) = (saved.template.name(), text::one_line(&sandbox.agent));
    context.ui.note(format!(
        "Saved sandbox '{}' as {template}; use it with: sbx create -t {template} {agent}",
        args.name
    ));
    context.ui.data(format!("{template}\n"))
}

fn may_stop(context: &Context, name: &str) -> bool {
    let question = format!("Sandbox '{name}' is running. Stop it and save it? [y/N]");
    matches!(
        context.ui.ask(&question).as_deref(),
        Some("y" | "Y" | "yes" | "Yes")
    )
}

fn parse_tag(text: &str) -> Result<Tag, Failure> {
    Tag::parse(text)
        .map_err(|error| Failure::new(Kind::BadRequest, error.to_string()).hint(error.hint()))
}

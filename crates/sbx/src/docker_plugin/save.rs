//! `docker sandbox save`

use std::path::PathBuf;

use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::lookup;

/// Save a sandbox as a template (not supported yet)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the sandbox
    #[arg(value_name = "SANDBOX")]
    name: String,
    /// Name of the template
    #[arg(value_name = "TAG")]
    tag: String,
    /// Write the image to a file
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    lookup::find(&lookup::list(context)?, &args.name)?;
    let place = match &args.output {
        Some(file) => format!("`{}`", file.display()),
        None => "a store of images".to_owned(),
    };
    Err(Failure::new(
        Kind::NotYet,
        format!(
            "cannot save sandbox `{}` as `{}`: that needs templates made of images in {place}, and this version of sbx \
             has the template `host` only",
            args.name, args.tag
        ),
    )
    .hint(format!("copy files out with: sbx cp {}:PATH .", args.name)))
}

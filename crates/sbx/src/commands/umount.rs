//! `sbx umount`

use std::path::PathBuf;

use sbx_api::PendingMount;

use super::mount::{self, Flags};
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::workspace;

/// Unmount workspaces of a sandbox
///
/// What `sbx mount` has mounted since the sandbox started is gone at once. What was mounted at its start goes with the
/// next one, because such mounts are locked. The primary workspace stays. This takes a directory away from its place; a
/// program that is to lose all access has to be ended: `sbx stop`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A PATH is the workspace's path on this machine, or its place in the sandbox.\n\nExamples:\n  \
                  sbx umount dev ../lib\n  sbx umount dev /mnt/data"
)]
pub(crate) struct Args {
    /// Name of a sandbox
    #[arg(value_name = "SANDBOX")]
    name: String,
    /// Workspaces
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        self.flags.json()
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let here = workspace::here(&context.env);
    let paths = args.paths.iter().map(|path| text(here.join(path)));
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    let client = Client::new(context, Absent::Start)?;
    let what = PendingMount::Unmount;
    mount::change(context, &client, what, &args.name, &args.flags, || {
        paths.iter().map(|path| client.unmount(&args.name, path))
    })
}

/// Where links lead is up to the daemon: it may be a place inside.
fn text(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string().into_string().map_err(|path| {
        let message = format!("path `{}` is not valid UTF-8", path.display());
        Failure::new(Kind::BadRequest, message)
    })
}

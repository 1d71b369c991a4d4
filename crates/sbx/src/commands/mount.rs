//! `sbx mount`

use std::ffi::OsString;

use sbx_api::{MountChange, PendingMount, Sandbox};

use super::ports::start_with_other_ports;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{lookup, text, workspace};

/// Mount more workspaces into a sandbox
///
/// A running sandbox has them at once, and so have the commands that already run in it. What cannot be mounted while it runs is
/// there from its next start on, and this command says so: a workspace with masked files (.sbxignore), a linked git
/// worktree, one in or around another workspace. They stay when the sandbox is stopped and started again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A PATH is SRC[:DST][:ro], as for `sbx create`.\n\nExamples:\n  sbx mount dev ../lib:ro\n  \
                  sbx mount dev ~/data:/mnt/data"
)]
pub(crate) struct Args {
    /// Name of a sandbox
    #[arg(value_name = "SANDBOX")]
    name: String,
    /// Directories, or files with `:ro`
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    flags: Flags,
}

/// What `sbx mount` and `sbx umount` have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// If it cannot be done while the sandbox runs, stop it, which ends its commands, and start it again
    #[arg(long)]
    restart: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        self.flags.json
    }
}

impl Flags {
    pub(crate) fn json(&self) -> bool {
        self.json
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let requests = workspace::parse_more(&args.paths, &workspace::here(&context.env))?;
    let client = Client::new(context, Absent::Start)?;
    let what = PendingMount::Mount;
    change(context, &client, what, &args.name, &args.flags, || {
        requests
            .iter()
            .map(|request| client.mount(&args.name, request))
    })
}

/// Makes the changes one after the other, up to the first that fails, and says what became of each.
pub(crate) fn change<I>(
    context: &Context,
    client: &Client<'_>,
    what: PendingMount,
    name: &str,
    flags: &Flags,
    changes: impl FnOnce() -> I,
) -> Result<(), Failure>
where
    I: Iterator<Item = Result<MountChange, Failure>>,
{
    let sandboxes = lookup::list(context)?;
    let sandbox = lookup::find(&sandboxes, name)?;
    check_restart(sandbox, flags)?;
    let (mut done, mut failed) = (Vec::new(), None);
    for change in changes() {
        match change {
            Ok(change) => done.push(change),
            Err(failure) => {
                failed = Some(failure);
                break;
            }
        }
    }
    for change in &done {
        for warning in &change.warnings {
            context.ui.warning(warning);
        }
    }
    let restarts = flags.restart && done.iter().any(|change| change.reason.is_some());
    if restarts {
        client.stop(name)?;
        for warning in start_with_other_ports(context, client, name)?.warnings {
            context.ui.warning(warning);
        }
        for change in &mut done {
            change.reason = None;
            change.workspace.pending = None;
        }
    }
    tell(context, what, name, flags, &done)?;
    failed.map_or(Ok(()), Err)
}

/// Before anything is changed.
fn check_restart(sandbox: &Sandbox, flags: &Flags) -> Result<(), Failure> {
    if flags.restart && sandbox.temporary {
        let message = format!(
            "sandbox `{}` is removed when it stops (--rm), and cannot be restarted",
            sandbox.name
        );
        return Err(Failure::new(Kind::Conflict, message).hint("leave out --restart"));
    }
    Ok(())
}

fn tell(
    context: &Context,
    what: PendingMount,
    name: &str,
    flags: &Flags,
    done: &[MountChange],
) -> Result<(), Failure> {
    if flags.json {
        return context.ui.json(&done);
    }
    for change in done {
        let shown = text::workspace(&change.workspace);
        let done = match (&change.reason, what) {
            (None, PendingMount::Mount) => "Mounted",
            (None, PendingMount::Unmount) => "Unmounted",
            (Some(_), PendingMount::Mount) => "Mounts",
            (Some(_), PendingMount::Unmount) => "Unmounts",
        };
        let Some(reason) = &change.reason else {
            context.ui.note(format!("{done} {shown}"));
            continue;
        };
        let when = format!("{done} {shown} from the next start of sandbox '{name}' on: {reason}");
        context.ui.note(when);
        let hint = format!("hint: sbx stop {name}; the next command starts it");
        context.ui.note(hint);
    }
    Ok(())
}

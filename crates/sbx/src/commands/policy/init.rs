//! `sbx policy init`

use sbx_api::policy::PolicyInit;

use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::Failure;

/// Choose what all sandboxes may reach to begin with
///
/// `balanced` allows what development needs: package registries, code hosts, AI services, system packages.
/// `allow-all` allows everything but this machine and its local network, `deny-all` nothing. The choice is made
/// once; `sbx policy reset` takes it back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "PRESET", value_parser = ["allow-all", "balanced", "deny-all"])]
    preset: String,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let preset = args.preset.clone();
    Client::new(context, Absent::Start)?.init_policy(&PolicyInit { preset })?;
    context.ui.data(format!(
        "Global network policy initialized to \"{}\".\n",
        args.preset
    ))
}

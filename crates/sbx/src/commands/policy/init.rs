//! `sbx policy init`

use jiff::Timestamp;
use sbx_api::policy::PolicyInit;
use sbx_engine::policy::{PolicyBook, PolicyBookError};
use sbx_policy::{Preset, StoreError};

use crate::autostart;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::Failure;

/// The names of all presets.
pub(crate) fn presets() -> [&'static str; Preset::ALL.len()] {
    Preset::ALL.map(Preset::as_str)
}

/// Choose the initial network policy of all sandboxes
///
/// `balanced` allows what development needs: package registries, code hosts, AI services, system packages.
/// `allow-all` allows everything except this machine and its local network; `deny-all` allows nothing. The choice
/// is made once; use `sbx policy reset` to undo it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "PRESET", value_parser = presets())]
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

/// `daemon start --policy`: stores the preset if none is stored, and fails if it is a different one. A `running` daemon
/// stores it itself.
pub(crate) fn choose(context: &Context, preset: &str, running: bool) -> Result<(), Failure> {
    let client = Client::new(context, Absent::Report)?;
    let state = client.state();
    let book = PolicyBook::new(state, context.env.default_proxy_config());
    match book.load()? {
        Some(file) if file.preset.as_str() == preset => return Ok(()),
        Some(file) => {
            let made = PolicyBookError::from(StoreError::AlreadyInitialized(file.preset));
            return Err(made.into());
        }
        None => {}
    }
    let request = PolicyInit {
        preset: preset.to_owned(),
    };
    if running {
        return client.init_policy(&request);
    }
    autostart::program()?;
    state.claim()?;
    // The lock keeps a daemon from starting and choosing in between.
    let _no_daemon = state.lock_daemon()?;
    book.init(preset, Timestamp::now())?;
    Ok(())
}

//! `crabbox config show|path`

use clap::{Arg, ArgMatches, Command};
use crabbox_core::Failure;
use crabbox_core::settings::{show_json, show_text};
use crabbox_providers::DEFAULT;

use crate::app::{self, App};
use crate::cli::{self, with_setting_flags};

const SET_BROKER: &str = "set-broker";

pub(crate) fn command(name: &'static str) -> Command {
    let show = Command::new("show")
        .about("Show effective settings and their origins")
        .arg(cli::switch(
            "json",
            "Output as JSON, with the origin of each value",
        ));
    Command::new(name)
        .about("Show effective settings")
        .subcommand_required(true)
        .subcommand(with_setting_flags(show, DEFAULT))
        .subcommand(Command::new("path").about("Print the path of the user config file"))
        // Known, so that it is refused for what it is.
        .subcommand(
            Command::new(SET_BROKER).hide(true).arg(
                Arg::new("words")
                    .num_args(0..)
                    .trailing_var_arg(true)
                    .allow_hyphen_values(true),
            ),
        )
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    match matches.subcommand() {
        Some(("show", matches)) => {
            let settings = app.settings(matches)?;
            let provider = app.provider(&settings)?;
            provider.validate()?;
            let no_effect = app::no_effect(&settings, provider.spec());
            if matches.get_flag("json") {
                app.ui.json(&show_json(&settings, &no_effect))?;
            } else {
                // The settings hold also where nothing says where the user's file would be.
                let file = app.config_file().ok();
                app.ui
                    .data(&show_text(&settings, &no_effect, file.as_deref()))?;
            }
        }
        Some((SET_BROKER, _)) => return Err(cli::needs_coordinator()),
        _ => app
            .ui
            .data(&format!("{}\n", app.config_file()?.display()))?,
    }
    Ok(0)
}

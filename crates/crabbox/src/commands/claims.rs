//! `crabbox claims list`

use clap::{Arg, ArgAction, ArgMatches, Command};
use crabbox_core::Failure;
use crabbox_core::claims::Listing;

use crate::app::App;

pub(crate) fn command(name: &'static str) -> Command {
    Command::new(name)
        .about("Show the local records of leases")
        .subcommand_required(true)
        .subcommand(
            Command::new("list")
                .about("List them; no provider is asked")
                .arg(
                    Arg::new("json")
                        .long("json")
                        .action(ArgAction::SetTrue)
                        .help("As JSON"),
                ),
        )
}

pub(crate) fn answer(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let json = matches
        .subcommand()
        .is_some_and(|(_, matches)| matches.get_flag("json"));
    let listing = Listing::new(&app.store()?.scan()?);
    if json {
        app.ui.json(&listing)?;
    } else {
        app.ui.data(&listing.text())?;
    }
    match listing.failure() {
        Some(failure) => Err(failure),
        None => Ok(0),
    }
}

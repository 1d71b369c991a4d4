//! `sbx`: the command line of the sandbox engine.
//!
//! The daemon is a program of its own, `sandboxd`, beside this one: a command in a sandbox should not have to
//! load it. Under the name `sbx-init` this program is the setup helper as well, for `sbx diagnose`.

mod agents;
mod attach;
mod autostart;
mod cli;
mod client;
mod commands;
mod context;
mod detach_keys;
mod diagnose;
mod env;
mod envfile;
mod failure;
mod http;
mod init;
mod later;
mod names;
mod netlog;
mod plumbing;
mod reading;
mod relay;
mod serving;
mod statusfile;
mod terminal;
mod text;
mod ui;
mod when;
mod workspace;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use crate::cli::{Cli, Codes};
use crate::context::Context;
use crate::env::Env;
use crate::statusfile::{By, StatusFile};
use crate::ui::{ErrorStyle, Ui};

/// The exit code of a command line that makes no sense. Where a command's own code may be 2, it is the engine's.
const USAGE: u8 = 2;
const SESSION_USAGE: u8 = 125;

fn main() -> ExitCode {
    ExitCode::from(run())
}

fn run() -> u8 {
    let args: Vec<OsString> = std::env::args_os().collect();
    let program = args.first().and_then(|name| Path::new(name).file_name());
    if program.is_some_and(|name| name == "sbx-init") {
        return sbx_init::helper_main(sbx_engine::machine::namespace::helper::run_task);
    }
    command_line(Env::from_process(), &args)
}

fn command_line(env: Env, args: &[OsString]) -> u8 {
    let no_colour = env.get("NO_COLOR").is_some_and(|value| !value.is_empty())
        || env.get("TERM").is_some_and(|terminal| terminal == "dumb");
    let cli = match Cli::parse_line(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&Ui::new(ErrorStyle::Text, false, no_colour), &error, args),
    };
    let ui = Ui::new(cli.error_style(), cli.debug, no_colour);
    let context = Context { env, ui };
    match cli.run(&context) {
        Ok(code) => code,
        Err(failure) => {
            context.ui.failure(&failure);
            match cli.codes() {
                Codes::Plain => failure.kind.exit_code(),
                Codes::Session => failure.kind.session_exit_code(),
            }
        }
    }
}

/// Help goes to stdout, a wrong command line to stderr.
fn usage(ui: &Ui, error: &clap::Error, args: &[OsString]) -> u8 {
    if let [_, help, topic] = args
        && help == "help"
        && topic.to_str().is_some_and(later::is_later_command)
    {
        let failure = failure::Failure::not_yet(&format!("sbx {}", topic.to_string_lossy()));
        ui.failure(&failure);
        return failure.kind.exit_code();
    }
    let text = error.render().to_string();
    if !error.use_stderr() {
        return match ui.data(text) {
            Ok(()) => 0,
            Err(failure) => failure.kind.exit_code(),
        };
    }
    ui.stderr(text.as_bytes());
    let by = By::Engine("the command line makes no sense");
    let code = match Cli::codes_of_broken(args) {
        Codes::Plain => USAGE,
        Codes::Session => SESSION_USAGE,
    };
    if let Some(path) = Cli::status_file_of_broken(args)
        && let Err(failure) = StatusFile::prepare(&path).and_then(|status| status.write(by, code))
    {
        // One of an earlier run may be left, and nothing was run now.
        ui.failure(&failure);
    }
    code
}

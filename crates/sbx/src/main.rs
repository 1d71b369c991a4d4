//! `sbx`: the command line of the sandbox engine.
//!
//! The daemon is a separate program, `sandboxd`, so that `sbx exec` stays small. Executed under the name `sbx-init`, this
//! program is also the set-up helper, which `sbx diagnose` uses; under the name `docker-sandbox` it is a plugin of Docker's
//! command line.

mod agents;
mod attach;
mod autostart;
mod cli;
mod client;
mod commands;
mod context;
mod daemon_process;
mod detach_keys;
mod diagnose;
mod docker_plugin;
mod env;
mod envfile;
mod failure;
mod host_path;
mod http;
mod init;
mod limit_args;
mod lookup;
mod netlog;
mod plumbing;
mod relay;
mod similar;
mod ssh;
mod statusfile;
mod terminal;
mod text;
mod time_args;
mod ui;
mod unsupported;
mod workspace;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::cli::{Cli, Codes};
use crate::context::Context;
use crate::env::Env;
use crate::failure::Failure;
use crate::statusfile::{By, StatusFile};
use crate::ui::{ErrorStyle, Ui};

/// Exit code for an invalid command line; 125 where 2 could be the code of a program in the sandbox.
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
    let env = Env::from_process();
    if program.is_some_and(|name| name == docker_plugin::PROGRAM) {
        return docker_plugin::main(env, &args);
    }
    command_line(env, &args)
}

fn command_line(env: Env, args: &[OsString]) -> u8 {
    let no_colour = env.no_colour();
    let cli = match Cli::parse_line(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&Ui::new(ErrorStyle::Text, false, no_colour), &error, args),
    };
    let ui = Ui::new(cli.error_style(), cli.debug, no_colour);
    let context = Context { env, ui };
    exit_code(&context, cli.run(&context), cli.codes())
}

fn exit_code(context: &Context, result: Result<u8, Failure>, codes: Codes) -> u8 {
    result.unwrap_or_else(|failure| {
        context.ui.failure(&failure);
        match codes {
            Codes::Plain => failure.kind.exit_code(),
            Codes::Session => failure.kind.session_exit_code(),
        }
    })
}

/// Help goes to stdout, the error of an invalid command line to stderr.
fn usage(ui: &Ui, error: &clap::Error, args: &[OsString]) -> u8 {
    if let [_, help, topic] = args
        && help == "help"
        && topic
            .to_str()
            .is_some_and(unsupported::is_unsupported_command)
    {
        let failure = Failure::not_yet(&format!("sbx {}", topic.to_string_lossy()));
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
    usage_error(ui, error, &text);
    let by = By::Engine("invalid command line");
    let code = match Cli::codes_of_invalid(args) {
        Codes::Plain => USAGE,
        Codes::Session => SESSION_USAGE,
    };
    if let Some(path) = Cli::status_file_of_invalid(args)
        && let Err(failure) =
            StatusFile::prepare(&path).and_then(|status| status.write(by, code, None))
    {
        // Otherwise the caller could take the file of an earlier run for this one's.
        ui.failure(&failure);
    }
    code
}

/// clap's message as one `error:` line, after its tips and the usage as `hint:` lines.
fn usage_error(ui: &Ui, error: &clap::Error, text: &str) {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        ui.stderr(text.as_bytes());
        return ui.failure(&Failure::usage("missing command"));
    }
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let (message, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    for line in rest.lines().map(str::trim) {
        let hint = ["tip: ", "Usage: "]
            .into_iter()
            .find_map(|label| line.strip_prefix(label));
        if let Some(hint) = hint {
            ui.note(format!("hint: {hint}"));
        }
    }
    let words: Vec<&str> = message.split_whitespace().collect();
    ui.failure(&Failure::usage(words.join(" ")));
}

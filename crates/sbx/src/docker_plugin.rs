//! `docker sandbox ...`: this program as a plugin of Docker's command line, with the commands and the output of the plugin
//! of that name that Docker had.
//!
//! Docker executes what lies as `docker-sandbox` in one of its plugin directories: first with one word that asks for its
//! metadata, later with the user's whole line, in which `sandbox` follows Docker's own options.

mod ls;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};
use sbx_api::VERSION;
use sbx_engine::state::SOCKET;
use serde_json::json;

use crate::cli::{Codes, parse_with};
use crate::commands::{create, exec, inspect, network, reset, rm, run, save, stop};
use crate::context::Context;
use crate::env::Env;
use crate::failure::{Failure, Kind};
use crate::ui::{ErrorStyle, Ui};
use crate::{exit_code, usage};

/// The file name under which Docker looks for the plugin.
pub(crate) const PROGRAM: &str = "docker-sandbox";
/// The word with which Docker asks what a plugin is.
const METADATA: &str = "docker-cli-plugin-metadata";
/// The plugin's name, which Docker passes on.
const NAME: &str = "sandbox";
/// Docker's own options that have a value.
const WITH_VALUE: [&str; 10] = [
    "--config",
    "--context",
    "-c",
    "--host",
    "-H",
    "--log-level",
    "-l",
    "--tlscacert",
    "--tlscert",
    "--tlskey",
];

/// Run coding agents and other commands in isolated sandboxes
#[derive(Debug, Parser)]
#[command(name = "docker sandbox", disable_version_flag = true)]
struct Plugin {
    /// Print debug messages to stderr
    #[arg(short = 'D', long, global = true)]
    debug: bool,
    /// Socket of the daemon
    #[arg(long, value_name = "PATH", global = true, hide = true)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(override_usage = "docker sandbox create [OPTIONS] AGENT WORKSPACE [EXTRA...]")]
    Create(create::Args),
    #[command(
        override_usage = "docker sandbox run [OPTIONS] SANDBOX [-- AGENT_ARGS...]\n       \
                          docker sandbox run [OPTIONS] AGENT [WORKSPACE] [EXTRA...] [-- AGENT_ARGS...]"
    )]
    Run(run::Args),
    #[command(override_usage = "docker sandbox exec [OPTIONS] SANDBOX COMMAND [ARG...]")]
    Exec(exec::Args),
    #[command(visible_alias = "list")]
    Ls(ls::Args),
    Inspect(inspect::Args),
    Stop(stop::Args),
    #[command(visible_alias = "remove")]
    Rm(rm::Args),
    Save(save::Args),
    Network(network::Args),
    Reset(reset::Args),
    /// Show the version of the plugin
    Version,
}

/// Runs a line that Docker passed on, or says what this plugin is.
pub(crate) fn main(env: Env, args: &[OsString]) -> u8 {
    let no_colour = env.no_colour();
    let plain = Ui::new(ErrorStyle::Text, false, no_colour);
    if let [_, word] = args
        && word == METADATA
    {
        let context = Context { env, ui: plain };
        let told = context.ui.json(&metadata()).map(|()| 0);
        return exit_code(&context, told, Codes::Plain);
    }
    let line = own_line(args);
    let plugin = match parse_with(&line, |line| Plugin::try_parse_from(line)) {
        Ok(plugin) => plugin,
        Err(error) => return usage(&plain, &error, &line),
    };
    let ui = Ui::new(plugin.error_style(), plugin.debug, no_colour);
    let codes = plugin.codes();
    let env = match plugin.socket.as_deref().map(state_of).transpose() {
        Ok(Some(state)) => env.with_state(state),
        Ok(None) => env,
        Err(failure) => return exit_code(&Context { env, ui }, Err(failure), codes),
    };
    let context = Context { env, ui };
    exit_code(&context, plugin.run(&context), codes)
}

/// As Docker's plugin manager reads it.
fn metadata() -> serde_json::Value {
    json!({
        "SchemaVersion": "0.1.0",
        "Vendor": "crabbox",
        "Version": format!("v{VERSION}"),
        "ShortDescription": "Run commands in isolated sandboxes (sbx)",
    })
}

/// The line without what is Docker's: its options before the plugin's name, and that name. Of those only `--debug` means
/// something here.
fn own_line(args: &[OsString]) -> Vec<OsString> {
    let mut words = args.iter();
    let mut line: Vec<OsString> = words.next().cloned().into_iter().collect();
    let mut rest = words.clone();
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some(NAME) => {
                line.extend(rest.cloned());
                return line;
            }
            Some(option) if WITH_VALUE.contains(&option) => {
                rest.next();
            }
            Some("-D" | "--debug") => line.push("--debug".into()),
            Some(option) if option.starts_with('-') => {}
            Some(_) | None => break,
        }
    }
    // Executed by hand.
    line.truncate(1);
    line.extend(words.cloned());
    line
}

/// The state directory in which the socket of a daemon lies.
fn state_of(socket: &Path) -> Result<&Path, Failure> {
    let named = socket.file_name().is_some_and(|name| name == SOCKET);
    match socket.parent() {
        Some(state) if named && state.is_absolute() => Ok(state),
        _ => Err(Failure::new(
            Kind::BadRequest,
            format!(
                "invalid `--socket {}`: it must be the absolute path of a `{SOCKET}`",
                socket.display()
            ),
        )),
    }
}

impl Plugin {
    fn error_style(&self) -> ErrorStyle {
        let json = match &self.command {
            Some(Command::Ls(args)) => args.json,
            Some(Command::Network(args)) => args.json(),
            _ => false,
        };
        match json {
            true => ErrorStyle::Json,
            false => ErrorStyle::Text,
        }
    }

    fn codes(&self) -> Codes {
        match &self.command {
            Some(Command::Exec(_) | Command::Run(_)) => Codes::Session,
            _ => Codes::Plain,
        }
    }

    fn run(self, context: &Context) -> Result<u8, Failure> {
        let done = |()| 0;
        let Some(command) = self.command else {
            let help = Self::command().render_help().to_string();
            return context.ui.data(help).map(done);
        };
        match command {
            Command::Create(args) => create::run(context, &args).map(done),
            Command::Run(args) => run::run(context, &args.by_name()),
            Command::Exec(args) => exec::run(context, &args),
            Command::Ls(args) => ls::run(context, &args).map(done),
            Command::Inspect(args) => inspect::run(context, &args.printing_json()).map(done),
            Command::Stop(args) => stop::run(context, &args.names_only()).map(done),
            Command::Rm(args) => rm::run(context, &args.confirmed()).map(done),
            Command::Save(args) => save::run(context, &args).map(done),
            Command::Network(args) => network::run(context, &args).map(done),
            Command::Reset(args) => reset::run(context, &args).map(done),
            Command::Version => context
                .ui
                .data(format!("sbx/cli-plugin v{VERSION}\n"))
                .map(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_consistent() {
        Plugin::command().debug_assert();
    }

    #[test]
    fn what_is_dockers_is_left_out() {
        let own = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let own: Vec<_> = own_line(&words)
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect();
            own.join(" ")
        };
        for (line, expected) in [
            ("p sandbox ls", "p ls"),
            ("p -D --host unix:///x sandbox ls", "p --debug ls"),
            ("p --context=x sandbox run sandbox", "p run sandbox"),
            (
                "p --config sandbox sandbox exec sandbox ls",
                "p exec sandbox ls",
            ),
            ("p ls --json", "p ls --json"),
            ("p --help", "p --help"),
            ("p exec sandbox true", "p exec sandbox true"),
        ] {
            assert_eq!(own(line), expected);
        }
    }

    #[test]
    fn a_socket_names_its_directory() {
        assert_eq!(state_of(Path::new("/s/sandboxd.sock")), Ok(Path::new("/s")));
        for bad in ["/s/other.sock", "sandboxd.sock", "s/sandboxd.sock", "/", ""] {
            assert!(state_of(Path::new(bad)).is_err(), "{bad}");
        }
    }
}

//! `crabbox`: runs commands and coding agents in sandboxes.

mod app;
mod cli;
mod commands;
mod host;
mod signals;
mod ui;
mod unsupported;

use std::ffi::OsString;
use std::process::ExitCode;

use crabbox_core::process::Cancel;
use crabbox_core::{Code, Failure};

use crate::app::App;
use crate::host::Host;
use crate::ui::{Style, Ui, Wanted, one_line};

fn main() -> ExitCode {
    ExitCode::from(run())
}

fn run() -> u8 {
    let args: Vec<OsString> = std::env::args_os().collect();
    let ui = Ui::new(style(&args));
    Host::read()
        .map_err(|error| {
            Failure::new(Code::Local, "cannot determine the working directory").because(&error)
        })
        .and_then(|host| command_line(&host, &ui, args))
        .unwrap_or_else(|failure| {
            ui.failure(&failure);
            failure.exit_code()
        })
}

/// Failures are JSON where the data would be. A first guess, for command lines that cannot be parsed.
fn style(args: &[OsString]) -> Style {
    let own = args.iter().take_while(|arg| *arg != "--");
    let json = ["--json", "-json", "--json=true", "-json=true"];
    if own
        .into_iter()
        .any(|arg| json.iter().any(|word| arg == word))
    {
        Style::Json
    } else {
        Style::Text
    }
}

fn command_line(host: &Host, ui: &Ui, args: Vec<OsString>) -> Result<u8, Failure> {
    let configured = host.get("CRABBOX_PROVIDER").and_then(|name| name.to_str());
    let mut chosen = cli::chosen(&args, configured);
    let named = cli::named_provider(&args);
    let args = cli::with_help_last(cli::with_one_word(args));
    // Only help shows which flags fit, and most commands are not asked for help.
    let asker = App {
        host,
        ui,
        cancel: Cancel::new(),
    };
    let wants_help = args.iter().any(|arg| arg == "-h" || arg == "--help");
    if wants_help && let Ok(spec) = asker.chosen(named.clone()) {
        chosen = spec.name.to_owned();
    }
    let mut tree = cli::tree_for(&args, &chosen);
    if wants_help && cli::means_bundled(&asker, &args) {
        tree = cli::for_bundled(tree);
    }
    let args = cli::with_bare_switches(&tree, cli::with_two_hyphens(&tree, args))?;
    let matches = match tree.try_get_matches_from_mut(args) {
        Ok(matches) => matches,
        Err(error) => return wrong(host, ui, named, &error),
    };
    if matches.get_flag("version") {
        ui.data(&format!("{}\n", cli::VERSION))?;
        return Ok(0);
    }
    let Some((name, matches)) = matches.subcommand() else {
        ui.data(&tree.render_help().to_string())?;
        return Err(Failure::usage("missing command"));
    };
    // Now it is known which words are the command's own.
    let mut deepest = matches;
    while let Some((_, below)) = deepest.subcommand() {
        deepest = below;
    }
    let given = |flag: &str| matches!(deepest.try_get_one::<bool>(flag), Ok(Some(true)));
    ui.set_style(match given("json") {
        true => Style::Json,
        false => Style::Text,
    });
    ui.set_verbosity(Wanted {
        quiet: given("quiet"),
        verbose: given("verbose"),
        machine: given("json") || given("timing_json"),
    });
    let app = App {
        host,
        ui,
        cancel: signals::watch()?,
    };
    cli::execute(&app, name, matches)
        .unwrap_or_else(|| Err(Failure::usage(format!("unknown command `{name}`"))))
        .map_err(|failure| match (failure.code, app.cancel.reason()) {
            // What only waited does not know which signal it was.
            (Code::Canceled, Some(reason)) => Failure {
                exit: failure.exit.or(reason.exit_code()),
                ..failure
            },
            _ => failure,
        })
}

/// Help is data; a wrong command line is a failure that names what is wrong.
fn wrong(
    host: &Host,
    ui: &Ui,
    provider: Option<String>,
    error: &clap::Error,
) -> Result<u8, Failure> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    if !error.use_stderr() {
        ui.data(&error.render().to_string())?;
        return Ok(0);
    }
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(failure) = cli::unavailable_command(name, || {
            let cancel = Cancel::new();
            App { host, ui, cancel }.chosen(provider)
        })
    {
        return Err(failure);
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    let (message, usage) = match text.split_once("\n\n") {
        Some((message, rest)) => (message, rest.trim()),
        None => (text, ""),
    };
    let usage_line = usage.lines().find_map(|line| line.strip_prefix("Usage: "));
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
    {
        let above = usage_line.map_or("crabbox", command_words);
        let words = above.strip_prefix("crabbox").unwrap_or_default();
        let named = format!("{words} {}", name.escape_debug());
        let close = match error.get(ContextKind::SuggestedSubcommand) {
            // The nearest is the last.
            Some(ContextValue::Strings(names)) => names.last(),
            Some(ContextValue::String(name)) => Some(name),
            _ => None,
        };
        let hint = match close {
            Some(close) => format!("did you mean `{above} {close}`?"),
            None => format!("{above} --help"),
        };
        let message = format!("unknown command `{}`", named.trim_start());
        return Err(Failure::usage(message).hint(hint));
    }
    if error.kind() == ErrorKind::UnknownArgument {
        // The nearest flag, which would be in the usage, may be one that is only known to be refused.
        let command = usage_line.map_or("crabbox", command_words);
        return Err(Failure::usage(message).hint(format!("{command} --help")));
    }
    // What is missing, or what would do, stands on lines of its own: programs, too, are to have all of it.
    let failure = Failure::usage(one_line(message));
    Err(match usage_line {
        Some(usage) => failure.hint(usage),
        None => failure,
    })
}

/// The words of a usage line before its flags and arguments.
fn command_words(usage: &str) -> &str {
    let ends = [" -", " [", " <"].map(|start| usage.find(start));
    let end = ends.into_iter().flatten().min().unwrap_or(usage.len());
    usage.get(..end).unwrap_or(usage)
}

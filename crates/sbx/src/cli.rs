//! The command tree and the exit codes.
//!
//! `exec` has a parser of its own, because programs call it in a loop and building the whole tree takes longer than the rest
//! of the client's work; a line `exec SANDBOX COMMAND...` without flags does not even load the parser.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    cache, completion, cp, create, daemon, diagnose, exec, inspect, logs, ls, man, mount, network,
    policy, ports, prune, reset, rm, run, save, settings, setup, ssh, stats, stop, template,
    umount, version,
};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::ui::ErrorStyle;
use crate::{similar, unsupported};

/// Run coding agents and other commands in isolated sandboxes
#[derive(Debug, Parser)]
#[command(
    name = "sbx",
    version = sbx_api::VERSION,
    after_help = "Get started: sbx run shell"
)]
pub(crate) struct Cli {
    /// Print debug messages to stderr
    #[arg(short = 'D', long, global = true)]
    pub(crate) debug: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

// `sbx exec` by itself. (No doc comment: the help text is that of the arguments.)
#[derive(Debug, Parser)]
#[command(name = "sbx exec", disable_version_flag = true)]
struct ExecCli {
    /// Print debug messages to stderr
    #[arg(short = 'D', long)]
    debug: bool,
    #[command(flatten)]
    args: exec::Args,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Args),
    Create(create::Args),
    Exec(exec::Args),
    #[command(visible_alias = "list")]
    Ls(ls::Args),
    Inspect(inspect::Args),
    Stats(stats::Args),
    Logs(logs::Args),
    Stop(stop::Args),
    #[command(visible_aliases = ["remove", "delete"])]
    Rm(rm::Args),
    Prune(prune::Args),
    Reset(reset::Args),
    Cp(cp::Args),
    Ports(ports::Args),
    Mount(mount::Args),
    #[command(visible_alias = "unmount")]
    Umount(umount::Args),
    Policy(policy::Args),
    Cache(cache::Args),
    Template(template::Args),
    #[command(hide = true)]
    Save(save::Args),
    Setup(setup::Args),
    #[command(hide = true)]
    Ssh(ssh::Args),
    #[command(hide = true)]
    Network(network::Args),
    Settings(settings::Args),
    Diagnose(diagnose::Args),
    Daemon(daemon::Args),
    Version(version::Args),
    Completion(completion::Args),
    Man(man::Args),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Which set of exit codes a command uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    Plain,
    /// The program's own code, and docker's 125 to 127.
    Session,
}

/// Whether the words after `exec` are just a sandbox and a command: then clap's code need not be paged in.
fn has_no_flags(words: &[OsString]) -> bool {
    let is_flag = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    matches!(words, [sandbox, _, ..] if !is_flag(sandbox)) && !words.iter().any(|word| word == "--")
}

/// The line with the offending `--flag=true` replaced by `--flag`, or `--flag=false` removed: docker accepts values for
/// switches, clap does not. Driven by clap's error, so that lines without such a value cost nothing.
fn with_bare_switch(line: &[OsString], error: &clap::Error) -> Option<Vec<OsString>> {
    if error.kind() != ErrorKind::TooManyValues {
        return None;
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let switch = context(ContextKind::InvalidArg)?;
    let value = context(ContextKind::InvalidValue)?;
    // clap reports its full form of the argument, such as `--detach <...>`.
    let is_switch = |word: &OsString| {
        let flag = word.to_str().and_then(|word| word.split_once('='));
        flag.is_some_and(|(name, given)| {
            given == value && name.len() > "--".len() && switch.starts_with(name)
        })
    };
    let place = line.iter().position(is_switch)?;
    let mut bare = line.to_vec();
    match value {
        "true" => *bare.get_mut(place)? = switch.into(),
        "false" => drop(bare.remove(place)),
        _ => return None,
    }
    Some(bare)
}

/// What `parse` makes of the line, in which switches may have values.
pub(crate) fn parse_with<T>(
    line: &[OsString],
    parse: impl Fn(&[OsString]) -> Result<T, clap::Error>,
) -> Result<T, clap::Error> {
    let mut parsed = parse(line);
    let mut line = Cow::Borrowed(line);
    while let Err(error) = &parsed
        && let Some(bare) = with_bare_switch(&line, error)
    {
        parsed = parse(&bare);
        line = Cow::Owned(bare);
    }
    parsed
}

impl Cli {
    pub(crate) fn parse_line(line: &[OsString]) -> Result<Self, clap::Error> {
        parse_with(line, Self::parse_words)
    }

    fn parse_words(line: &[OsString]) -> Result<Self, clap::Error> {
        match line {
            [_, command, words @ ..] if command == "exec" && has_no_flags(words) => Ok(Self {
                debug: false,
                command: Some(Command::Exec(exec::Args::plain(words))),
            }),
            [_, command, ..] if command == "exec" => {
                let exec = ExecCli::try_parse_from(line.iter().skip(1))?;
                Ok(Self {
                    debug: exec.debug,
                    command: Some(Command::Exec(exec.args)),
                })
            }
            _ => Self::try_parse_from(line),
        }
    }

    /// The exit codes for a line that cannot be parsed.
    pub(crate) fn codes_of_invalid(line: &[OsString]) -> Codes {
        let is_flag = |word: &&OsString| word.as_encoded_bytes().starts_with(b"-");
        match line.iter().skip(1).find(|word| !is_flag(word)) {
            Some(command) if command == "exec" || command == "run" => Codes::Session,
            _ => Codes::Plain,
        }
    }

    /// The `--status-file` of a line that cannot be parsed as a whole, if it comes before the error.
    pub(crate) fn status_file_of_invalid(line: &[OsString]) -> Option<PathBuf> {
        match line {
            [_, command, ..] if command == "exec" => {
                let exec = ExecCli::command().ignore_errors(true);
                let mut read = exec.try_get_matches_from(line.iter().skip(1)).ok()?;
                read.try_remove_one("status_file").ok()?
            }
            _ => None,
        }
    }

    pub(crate) fn error_style(&self) -> ErrorStyle {
        let json = match &self.command {
            Some(Command::Ls(args)) => args.json,
            Some(Command::Inspect(args)) => args.json,
            Some(Command::Stats(args)) => args.json,
            Some(Command::Logs(args)) => args.json,
            Some(Command::Version(args)) => args.json,
            Some(Command::Diagnose(args)) => args.json(),
            Some(Command::Ports(args)) => args.json,
            Some(Command::Mount(args)) => args.json(),
            Some(Command::Umount(args)) => args.json(),
            Some(Command::Prune(args)) => args.json,
            Some(Command::Policy(args)) => args.json(),
            Some(Command::Cache(args)) => args.json(),
            Some(Command::Template(args)) => args.json(),
            Some(Command::Settings(args)) => args.json(),
            Some(Command::Network(args)) => args.json(),
            Some(Command::Daemon(args)) => args.json(),
            Some(
                Command::Run(_)
                | Command::Create(_)
                | Command::Exec(_)
                | Command::Cp(_)
                | Command::Stop(_)
                | Command::Rm(_)
                | Command::Reset(_)
                | Command::Save(_)
                | Command::Setup(_)
                | Command::Ssh(_)
                | Command::Completion(_)
                | Command::Man(_)
                | Command::Other(_),
            )
            | None => false,
        };
        if json {
            ErrorStyle::Json
        } else {
            ErrorStyle::Text
        }
    }

    pub(crate) fn codes(&self) -> Codes {
        match &self.command {
            Some(Command::Exec(_) | Command::Run(_)) => Codes::Session,
            _ => Codes::Plain,
        }
    }

    /// Runs the command and returns its exit code.
    pub(crate) fn run(&self, context: &Context) -> Result<u8, Failure> {
        let done = |()| 0;
        let Some(command) = &self.command else {
            let help = Self::command().render_help().to_string();
            return context.ui.data(help).map(done);
        };
        match command {
            Command::Run(args) => run::run(context, args),
            Command::Exec(args) => exec::run(context, args),
            Command::Policy(args) => policy::run(context, args),
            Command::Cache(args) => cache::run(context, args).map(done),
            Command::Template(args) => template::run(context, args).map(done),
            Command::Save(args) => save::run(context, args).map(done),
            Command::Network(args) => network::run(context, args).map(done),
            Command::Create(args) => create::run(context, args).map(done),
            Command::Ls(args) => ls::run(context, args).map(done),
            Command::Inspect(args) => inspect::run(context, args).map(done),
            Command::Stats(args) => stats::run(context, args).map(done),
            Command::Logs(args) => logs::run(context, args).map(done),
            Command::Cp(args) => cp::run(context, args).map(done),
            Command::Ports(args) => ports::run(context, args).map(done),
            Command::Mount(args) => mount::run(context, args).map(done),
            Command::Umount(args) => umount::run(context, args).map(done),
            Command::Stop(args) => stop::run(context, args).map(done),
            Command::Rm(args) => rm::run(context, args).map(done),
            Command::Prune(args) => prune::run(context, args).map(done),
            Command::Reset(args) => reset::run(context, args).map(done),
            Command::Setup(args) => setup::run(context, args).map(done),
            Command::Ssh(args) => ssh::run(context, args).map(done),
            Command::Settings(args) => settings::run(context, args).map(done),
            Command::Diagnose(args) => diagnose::run(context, args).map(done),
            Command::Daemon(args) => daemon::run(context, args).map(done),
            Command::Version(args) => version::run(context, args).map(done),
            Command::Completion(args) => completion::run(context, args, Self::command()).map(done),
            Command::Man(args) => man::run(context, args, Self::command()).map(done),
            Command::Other(words) => other(context, words).map(done),
        }
    }
}

/// A command that does not exist: one of Docker's, or a typing error.
fn other(context: &Context, words: &[OsString]) -> Result<(), Failure> {
    let name = words
        .first()
        .map(|word| word.to_string_lossy().into_owned())
        .unwrap_or_default();
    if name == "login" {
        context.ui.note("No account is needed.");
        return Ok(());
    }
    if unsupported::is_unsupported_command(&name) {
        return Err(Failure::not_yet(&format!("sbx {name}")));
    }
    let sbx = Cli::command();
    let known: Vec<&str> = sbx
        .get_subcommands()
        .flat_map(clap::Command::get_name_and_visible_aliases)
        .collect();
    let close = similar::similar_names(&name, known);
    let failure = Failure::new(
        Kind::Usage,
        format!("unknown command `{}`", name.escape_debug()),
    );
    Err(match close.first() {
        Some(close) => failure.hint(format!("did you mean `sbx {close}`?")),
        None => failure.hint("sbx --help"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_may_follow_positionals() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("sbx create shell . --name x -q").is_ok());
        assert!(parse("sbx create --name x -q shell . ../lib:ro").is_ok());
        assert!(parse("sbx create --cpus 2 --memory 4g -t img shell .").is_ok());
        assert!(parse("sbx run shell . --rm -- -c ls").is_ok());
        assert!(parse("sbx run -d --rm shell").is_err());
        assert!(parse("sbx create shell").is_ok());
        assert!(parse("sbx create").is_err());
        assert!(parse("sbx rm").is_err());
        assert!(parse("sbx rm --all box").is_err());
    }

    #[test]
    fn switches_take_true_and_false() {
        let parse = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Cli::parse_line(&words).map(|cli| format!("{cli:?}"))
        };
        for (given, bare) in [
            ("sbx ls --json=true", "sbx ls --json"),
            ("sbx ls --json=false -q", "sbx ls -q"),
            ("sbx --debug=true ls --quiet=true", "sbx --debug ls --quiet"),
            ("sbx daemon status --json=true", "sbx daemon status --json"),
            (
                "sbx create --clone=false --quiet=true --name=true shell .",
                "sbx create --quiet --name true shell .",
            ),
            ("sbx run --detach=true shell", "sbx run -d shell"),
            ("sbx run -d --rm=false shell", "sbx run -d shell"),
            (
                "sbx exec --tty=false --interactive=true box x --tty=true",
                "sbx exec -i box x --tty=true",
            ),
        ] {
            assert_eq!(parse(given).unwrap(), parse(bare).unwrap(), "{given}");
        }
        for line in [
            "sbx ls --json=maybe",
            "sbx ls --json=",
            "sbx ls --=true",
            "sbx ls --js=true",
            "sbx ls --json=true --quiet=true",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_status_file_is_found_up_to_the_error() {
        let file = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(Cli::parse_line(&words).is_err(), "{line}");
            Cli::status_file_of_invalid(&words)
        };
        let found = Some(PathBuf::from("sf"));
        assert_eq!(file("sbx exec --status-file sf --bad box true"), found);
        assert_eq!(file("sbx exec -i --status-file=sf -z box true"), found);
        assert_eq!(file("sbx exec --status-file sf"), found);
        // What comes after it may be the command's.
        assert_eq!(file("sbx exec --bad box sh --status-file sf"), None);
        assert_eq!(file("sbx exec --status-file"), None);
        assert_eq!(file("sbx ls --status-file sf"), None);
    }

    #[test]
    fn the_fast_path_parses_like_clap() {
        for line in [
            "exec box true",
            "exec box sh -c x -t --status-file",
            "exec  x",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(has_no_flags(&words[1..]), "{line}");
            let long = ExecCli::try_parse_from(&words).unwrap();
            let short = exec::Args::plain(&words[1..]);
            assert_eq!(format!("{:?}", long.args), format!("{short:?}"));
        }
        for line in [
            "exec",
            "exec box",
            "exec -i box cat",
            "exec box -- cat",
            "exec -- box cat",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(!has_no_flags(&words[1..]), "{line}");
        }
    }

    #[test]
    fn exec_takes_no_flag_after_the_sandbox() {
        for line in [
            "sbx exec -i box cat -t --workdir x",
            "sbx exec -i -- box cat -t --workdir x",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let cli = Cli::parse_line(&words).unwrap();
            let Some(Command::Exec(args)) = cli.command else {
                panic!("not exec")
            };
            let text = format!("{args:?}");
            assert!(
                text.contains(r#"words: ["box", "cat", "-t", "--workdir", "x"]"#),
                "{text}"
            );
            assert!(text.contains("tty: false"), "{text}");
        }
    }
}

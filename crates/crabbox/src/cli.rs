//! The command line: what it may look like, and who answers it.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use crabbox_core::provider::Spec;
use crabbox_core::settings::{Applies, Kind, Setting};
use crabbox_core::{Code, Failure};
use crabbox_providers::{DEFAULT, specs};

use crate::app::{App, flagged};
use crate::commands::{
    bench, cache, claims, cleanup, completion, config, cp, doctor, history, init, inspect, job,
    list, logs, man, ports, providers, run, status, stop, sync_plan, trust, warmup,
};
use crate::ui::one_line;
use crate::unsupported::{self, CommandKind};

/// Which settings a command has flags for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flags {
    /// All of them: it may make a sandbox.
    Creation,
    /// Without those that only matter to a new sandbox.
    Use,
    None,
}

type Execute = fn(&App<'_>, &ArgMatches) -> Result<u8, Failure>;

struct Entry {
    name: &'static str,
    command: fn(&'static str) -> Command,
    flags: Flags,
    execute: Execute,
}

/// One that is described by a struct.
fn derived_command<A: Args>(name: &'static str) -> Command {
    A::augment_args(Command::new(name))
}

/// One that asks a provider about leases that exist.
fn provider_command<A: Args>(name: &'static str) -> Command {
    unsupported::add(derived_command::<A>(name), CommandKind::Other)
}

/// What the struct makes of the command line.
pub(crate) fn parsed<A: FromArgMatches>(matches: &ArgMatches) -> Result<A, Failure> {
    A::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))
}

const ENTRIES: &[Entry] = &[
    Entry {
        name: "run",
        command: |name| unsupported::add(derived_command::<run::Args>(name), CommandKind::Run),
        flags: Flags::Creation,
        execute: run::execute,
    },
    Entry {
        name: "warmup",
        command: |name| {
            unsupported::add(derived_command::<warmup::Args>(name), CommandKind::Warmup)
        },
        flags: Flags::Creation,
        execute: warmup::execute,
    },
    Entry {
        name: "list",
        command: |name| provider_command::<list::Args>(name).visible_alias("ls"),
        flags: Flags::Use,
        execute: list::execute,
    },
    Entry {
        name: "status",
        command: provider_command::<status::Args>,
        flags: Flags::Use,
        execute: status::execute,
    },
    Entry {
        name: "inspect",
        command: provider_command::<inspect::Args>,
        flags: Flags::Use,
        execute: inspect::execute,
    },
    Entry {
        name: "stop",
        command: |name| provider_command::<stop::Args>(name).visible_alias("release"),
        flags: Flags::Use,
        execute: stop::execute,
    },
    Entry {
        name: "cleanup",
        command: provider_command::<cleanup::Args>,
        flags: Flags::Use,
        execute: cleanup::execute,
    },
    Entry {
        name: "ports",
        command: provider_command::<ports::Args>,
        flags: Flags::Use,
        execute: ports::execute,
    },
    Entry {
        name: "cp",
        command: provider_command::<cp::Args>,
        flags: Flags::Use,
        execute: cp::execute,
    },
    Entry {
        name: "job",
        command: job::command,
        flags: Flags::None,
        execute: job::execute,
    },
    Entry {
        name: "history",
        command: derived_command::<history::Args>,
        flags: Flags::None,
        execute: history::execute,
    },
    Entry {
        name: "logs",
        command: derived_command::<logs::Args>,
        flags: Flags::None,
        execute: logs::execute,
    },
    Entry {
        name: "doctor",
        command: provider_command::<doctor::Args>,
        flags: Flags::Creation,
        execute: doctor::execute,
    },
    Entry {
        name: "providers",
        command: providers::command,
        flags: Flags::None,
        execute: providers::execute,
    },
    Entry {
        name: "config",
        command: config::command,
        flags: Flags::None,
        execute: config::execute,
    },
    Entry {
        name: "claims",
        command: claims::command,
        flags: Flags::None,
        execute: claims::execute,
    },
    Entry {
        name: "cache",
        command: cache::command,
        flags: Flags::None,
        execute: cache::execute,
    },
    Entry {
        name: "bench",
        command: bench::command,
        flags: Flags::None,
        execute: bench::execute,
    },
    Entry {
        name: "init",
        command: derived_command::<init::Args>,
        flags: Flags::None,
        execute: init::execute,
    },
    Entry {
        name: "sync-plan",
        command: derived_command::<sync_plan::Args>,
        flags: Flags::Use,
        execute: sync_plan::execute,
    },
    Entry {
        name: "trust",
        command: derived_command::<trust::Args>,
        flags: Flags::None,
        execute: trust::execute,
    },
    Entry {
        name: "completion",
        command: derived_command::<completion::Args>,
        flags: Flags::None,
        execute: completion::execute,
    },
    Entry {
        name: "man",
        command: derived_command::<man::Args>,
        flags: Flags::None,
        execute: man::execute,
    },
    Entry {
        name: "version",
        command: |name| Command::new(name).about("Print the version"),
        flags: Flags::None,
        execute: |app, _| {
            app.ui.data(&format!("{VERSION}\n"))?;
            Ok(0)
        },
    },
];

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commands of the original for leases over SSH, which no provider of this program has.
const SSH: &[&str] = &[
    "ssh",
    "connect",
    "open",
    "tunnel",
    "watch",
    "vnc",
    "webvnc",
    "code",
    "egress",
    "screenshot",
    "checkpoint",
    "shard",
    "actions",
    "desktop",
    "prewarm",
];
/// Those that a provider either has or not, with what the original calls it.
const CAPABILITIES: &[(&str, &str)] = &[
    ("heartbeat", "lease heartbeat"),
    ("pause", "pause"),
    ("resume", "resume"),
];
const BROKER: &[&str] = &[
    "events", "attach", "results", "usage", "share", "unshare", "whoami",
];

/// The tree, with the provider's flags shown only for the chosen one.
pub(crate) fn tree(chosen: &str) -> Command {
    tree_of(chosen, ENTRIES.iter())
}

/// The tree as far as it is needed for a command line: all of it takes longer to build than a short command to run.
pub(crate) fn tree_for(args: &[OsString], chosen: &str) -> Command {
    let named = |entry: &&Entry| args.get(1).is_some_and(|word| word == entry.name);
    match ENTRIES.iter().find(named) {
        Some(entry) => tree_of(chosen, std::iter::once(entry)),
        None => tree(chosen),
    }
}

fn tree_of(chosen: &str, entries: impl Iterator<Item = &'static Entry>) -> Command {
    let root = Command::new("crabbox")
        .about("Run commands and coding agents in sandboxes")
        .after_help("Try: crabbox run -- cargo test")
        .version(VERSION)
        .disable_version_flag(true)
        .arg(
            Arg::new("version")
                .short('v')
                .long("version")
                .action(ArgAction::SetTrue)
                .help("Print the version"),
        )
        .subcommand_required(false)
        // The last of a repeated flag wins, as in the original; a list takes all of them.
        .args_override_self(true)
        .infer_long_args(false);
    entries.fold(root, |root, entry| {
        let command = with_flags((entry.command)(entry.name), entry.flags, chosen);
        let command = for_provider(command, entry.name, chosen);
        root.subcommand(with_short_help(command))
    })
}

/// One help text, and a short one: what there is to say at length comes after the flags.
fn with_short_help(command: Command) -> Command {
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help("Print help");
    let long = command.get_long_about().map(ToString::to_string);
    let command = match long.as_deref().and_then(|long| long.split_once("\n\n")) {
        Some((_, rest)) => command.after_help(rest.to_owned()),
        None => command,
    };
    // The setting holds for the commands below as well, which therefore need the flag too.
    command
        .disable_help_flag(true)
        .arg(help)
        .mut_subcommands(with_short_help)
}

/// Shows what the chosen provider takes. What it refuses stays known.
fn for_provider(command: Command, name: &str, chosen: &str) -> Command {
    let Some(spec) = specs().find(|spec| spec.name == chosen) else {
        return command;
    };
    command.mut_args(|arg| unsupported::shown(arg, name, spec))
}

/// Hides what the engine that comes with this program refuses, says where the rest is told, and calls the engine by its
/// own name.
pub(crate) fn for_bundled(command: Command) -> Command {
    let refused: Vec<_> = flagged()
        .filter(|setting| setting.other_engines)
        .filter_map(|setting| setting.flag)
        .collect();
    let is_refused = |arg: &Arg| arg.get_long().is_some_and(|flag| refused.contains(&flag));
    let is_shown = |arg: &Arg| is_refused(arg) && !arg.is_hide_set();
    let has_any = command.get_arguments().any(is_shown);
    let command = match has_any {
        true => {
            let before = command.get_after_help().map(ToString::to_string);
            let more = format!("Flags for other engines: crabbox providers describe {DEFAULT}");
            let paragraphs: Vec<_> = before.into_iter().chain([more]).collect();
            command.after_help(paragraphs.join("\n\n"))
        }
        false => command,
    };
    command
        .mut_args(|arg| match (is_refused(&arg), arg.get_help_heading()) {
            (true, _) => arg.hide(true),
            (false, Some(DEFAULT)) => arg.help_heading("Bundled engine"),
            (false, _) => arg,
        })
        .mut_subcommands(for_bundled)
}

/// Whether nothing but the engine beside this program is meant. Settings that cannot be read mean nothing.
pub(crate) fn means_bundled(app: &App<'_>, args: &[OsString]) -> bool {
    let named = ["--docker-sandbox-cli", "-docker-sandbox-cli"];
    let names_engine = |arg: &OsString| {
        let text = arg.to_string_lossy();
        named.iter().any(|flag| text.starts_with(flag))
    };
    let beside = app.host.beside.as_ref().map(|dir| dir.join("sbx"));
    named_provider(args).is_none()
        && !args.iter().any(names_engine)
        && beside.is_some_and(|sbx| sbx.exists())
        && app.engine_is_default()
}

/// The same, for a command below another one.
pub(crate) fn with_setting_flags(command: Command, chosen: &str) -> Command {
    with_flags(command, Flags::Creation, chosen)
}

/// A flag without a value.
pub(crate) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

/// Those for a command that makes no sandbox.
pub(crate) fn with_use_flags(command: Command) -> Command {
    with_flags(command, Flags::Use, DEFAULT)
}

fn with_flags(command: Command, flags: Flags, chosen: &str) -> Command {
    let wanted = |setting: &&Setting| match flags {
        Flags::Creation => true,
        Flags::Use => setting.applies == Applies::Always,
        Flags::None => false,
    };
    flagged().filter(wanted).fold(command, |command, setting| {
        command.arg(flag(setting, chosen))
    })
}

fn flag(setting: &'static Setting, chosen: &str) -> Arg {
    let name = setting.flag.unwrap_or_default();
    let owner = specs().find(|spec| Some(spec.table.section) == setting.section);
    let hidden = owner.is_some_and(|spec| spec.name != chosen);
    let help = match setting.kind {
        Kind::List(_) => format!("{} (can be repeated)", setting.help),
        _ => setting.help.to_owned(),
    };
    let arg = Arg::new(name).long(name).help(help).hide(hidden);
    let arg = match owner {
        Some(spec) => arg.help_heading(spec.name),
        None => arg.help_heading("Settings"),
    };
    match setting.kind {
        Kind::Bool => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL")
            .action(ArgAction::Set),
        Kind::List(_) => arg.value_name("VALUE").action(ArgAction::Append),
        // `-5m` is a value, if a wrong one: the setting itself says why.
        Kind::Duration | Kind::Lifetime(_) => arg
            .value_name("DURATION")
            .allow_hyphen_values(true)
            .action(ArgAction::Set),
        Kind::Count => arg
            .value_name("N")
            .allow_hyphen_values(true)
            .action(ArgAction::Set),
        Kind::Text | Kind::OptionalText | Kind::Name | Kind::Url => {
            arg.value_name("VALUE").action(ArgAction::Set)
        }
    }
}

/// Which provider's flags `--help` shows.
pub(crate) fn chosen(args: &[OsString], env: Option<&str>) -> String {
    let named = env.filter(|name| !name.is_empty()).map(str::to_lowercase);
    named_provider(args)
        .or(named)
        .unwrap_or_else(|| DEFAULT.to_owned())
}

/// The provider that the words name, whether or not they make a command line.
pub(crate) fn named_provider(args: &[OsString]) -> Option<String> {
    let texts: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let mut words = texts.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let name = word.trim_start_matches('-');
        if name.len() == word.len() {
            continue;
        }
        if let Some(value) = name.strip_prefix("provider=") {
            return Some(value.to_lowercase());
        }
        if name == "provider"
            && let Some(value) = words.next()
        {
            return Some(value.to_lowercase());
        }
    }
    None
}

/// Runs the command of that name. `None` for an unknown name.
pub(crate) fn execute(
    app: &App<'_>,
    name: &str,
    matches: &ArgMatches,
) -> Option<Result<u8, Failure>> {
    let entry = ENTRIES.iter().find(|entry| entry.name == name)?;
    Some((entry.execute)(app, matches))
}

/// Another command of ours, as a part of this one.
pub(crate) fn dispatch(app: &App<'_>, words: &[String]) -> Result<u8, Failure> {
    let name = words.first().map_or("", String::as_str);
    let matches = matches_of(words)?;
    execute(app, name, &matches)
        .unwrap_or_else(|| Err(Failure::usage(format!("unknown command `{name}`"))))
}

/// What the parser makes of a command of ours.
pub(crate) fn matches_of(words: &[String]) -> Result<ArgMatches, Failure> {
    let program = OsString::from("crabbox");
    let words = words.iter().map(OsString::from);
    let args: Vec<_> = std::iter::once(program).chain(words).collect();
    let parsed = tree_for(&args, DEFAULT).try_get_matches_from(args);
    let mut matches = parsed.map_err(|error| Failure::usage(one_line(&error.to_string())))?;
    let below = matches.remove_subcommand().map(|(_, below)| below);
    below.ok_or_else(|| Failure::usage("missing command"))
}

pub(crate) fn needs_coordinator() -> Failure {
    let message = "command requires a configured coordinator";
    Failure::new(Code::Unsupported, message)
}

/// Why a command of the original is not here; `None` for a name that the original does not know either. `provider` finds the chosen one.
pub(crate) fn unavailable_command(
    name: &str,
    provider: impl FnOnce() -> Result<&'static Spec, Failure>,
) -> Option<Failure> {
    let capability = CAPABILITIES.iter().find(|(command, _)| *command == name);
    let lacking = match capability {
        Some((_, called)) => Some((*called).to_owned()),
        None if SSH.contains(&name) => Some(format!("{name}: it requires an SSH lease provider")),
        None => None,
    };
    if let Some(what) = lacking {
        return Some(match provider() {
            Ok(spec) => {
                let message = format!("provider={} does not support {what}", spec.name);
                Failure::new(Code::Unsupported, message)
                    .hint("crabbox run --id <slug> -- <command>")
            }
            Err(failure) => failure,
        });
    }
    if BROKER.contains(&name) {
        return Some(needs_coordinator().hint("run `crabbox history` to list local runs"));
    }
    if name == "verify" {
        let message = format!("`crabbox {name}` is not available in this version");
        return Some(Failure::new(Code::Unsupported, message));
    }
    None
}

/// `help X` is `X --help`.
pub(crate) fn with_help_last(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.len() > 2 && args.get(1).is_some_and(|word| word == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    args
}

/// Two words that mean one command, as the original also takes them.
pub(crate) fn with_one_word(mut args: Vec<OsString>) -> Vec<OsString> {
    let [_, first, second, ..] = args.as_slice() else {
        return args;
    };
    let pair = (first.to_str(), second.to_str());
    if matches!(
        pair,
        (Some("pool"), Some("list")) | (Some("machine"), Some("cleanup"))
    ) {
        args.remove(1);
    }
    args
}

/// Whether a flag without `=` has its value in the word behind it.
fn takes_next_word(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// The flag that a word is, and what stands behind its `=`.
fn flag_of<'c, 'w>(command: &'c Command, word: &'w str) -> Option<(&'c Arg, Option<&'w str>)> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let is_it = |arg: &&Arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => {
            let short = arg.get_short().map(|short| format!("-{short}"));
            short.is_some_and(|short| short == name)
        }
    };
    let known = command.get_arguments().find(is_it)?;
    Some((known, value))
}

/// `--flag=true` is `--flag`, and `--flag=false` is nothing: for flags that take no value otherwise.
pub(crate) fn with_bare_switches(
    tree: &Command,
    args: Vec<OsString>,
) -> Result<Vec<OsString>, Failure> {
    let mut command = tree;
    let mut out = Vec::with_capacity(args.len());
    let mut rest = args.into_iter();
    out.extend(rest.next());
    let mut wants_value: Option<&Arg> = None;
    for arg in rest.by_ref() {
        let text = arg.to_string_lossy();
        if let Some(flag) = wants_value.take() {
            has_value(command, flag, &text)?;
            out.push(arg);
            continue;
        }
        if text == "--" {
            out.push(arg);
            break;
        }
        if !text.starts_with('-') {
            match command.find_subcommand(text.as_ref()) {
                Some(below) => command = below,
                // From here on the words belong to the command.
                None if command.get_positionals().any(Arg::is_trailing_var_arg_set) => {
                    out.push(arg);
                    break;
                }
                None => {}
            }
            out.push(arg);
            continue;
        }
        let Some((known, value)) = flag_of(command, &text) else {
            out.push(arg);
            continue;
        };
        let is_switch = matches!(known.get_action(), ArgAction::SetTrue);
        wants_value = Some(known).filter(|flag| value.is_none() && takes_next_word(flag));
        match value {
            Some("true") if is_switch => {
                let (name, _) = text.split_once('=').unwrap_or((&text, ""));
                out.push(name.into());
            }
            Some("false") if is_switch => {}
            Some(value) if is_switch => return Err(invalid_switch_value(known, value)),
            Some(_) | None => out.push(arg),
        }
    }
    out.extend(rest);
    Ok(out)
}

/// In the words of the parser, which takes whatever follows a flag whose values may begin with a hyphen.
fn has_value(command: &Command, flag: &Arg, next: &str) -> Result<(), Failure> {
    let is_flag = next == "--" || flag_of(command, next).is_some();
    if !is_flag || !flag.is_allow_hyphen_values_set() {
        return Ok(());
    }
    let value = flag.get_value_names().and_then(|names| names.first());
    let value = value.map_or("VALUE", |name| name.as_str());
    let flag = spelled(flag);
    let message = format!("a value is required for '{flag} <{value}>' but none was supplied");
    Err(Failure::usage(message))
}

/// As the parser would show it, which only knows once it has begun.
fn spelled(flag: &Arg) -> String {
    match (flag.get_long(), flag.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => flag.get_id().to_string(),
    }
}

fn invalid_switch_value(switch: &Arg, value: &str) -> Failure {
    let switch = spelled(switch);
    let message = format!("invalid value '{value}' for '{switch}' [possible values: true, false]");
    Failure::usage(message)
}

/// Long flags with one hyphen, as the original also takes them: up to the first word that is not a flag.
pub(crate) fn with_two_hyphens(tree: &Command, args: Vec<OsString>) -> Vec<OsString> {
    let mut command = tree;
    let mut out = Vec::with_capacity(args.len());
    let mut rest = args.into_iter();
    out.extend(rest.next());
    let mut value_follows = false;
    for arg in rest.by_ref() {
        let Some(text) = arg.to_str().map(str::to_owned) else {
            out.push(arg);
            break;
        };
        if value_follows {
            value_follows = false;
            out.push(arg);
            continue;
        }
        if text == "--" {
            out.push(arg);
            break;
        }
        if !text.starts_with('-') {
            out.push(arg);
            match command.find_subcommand(&text) {
                Some(below) => command = below,
                None => break,
            }
            continue;
        }
        let (name, value) = match text.trim_start_matches('-').split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (text.trim_start_matches('-').to_owned(), None),
        };
        let known = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(&name));
        match known {
            Some(known) => {
                value_follows = value.is_none() && takes_next_word(known);
                out.push(match value {
                    Some(value) => format!("--{name}={value}").into(),
                    None => format!("--{name}").into(),
                });
            }
            None => out.push(arg),
        }
    }
    out.extend(rest);
    out
}

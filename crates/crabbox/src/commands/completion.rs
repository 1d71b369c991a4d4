//! `crabbox completion`

use clap::{Arg, ArgAction, ArgMatches, Command};
use clap_complete::Shell;
use crabbox_core::Failure;
use crabbox_providers::DEFAULT;

use crate::app::App;
use crate::cli::{for_bundled, means_bundled, parsed, tree};

/// Print a shell completion script
///
/// Completes commands, flags and leases; for the leases it calls `crabbox claims slugs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    // Which provider holds is not a reason to print no script.
    let chosen = app.chosen(None).map_or(DEFAULT, |spec| spec.name);
    let all = match means_bundled(app, &[]) {
        true => for_bundled(tree(chosen)),
        false => tree(chosen),
    };
    let mut tree = visible(&all);
    let commands = commands_on_leases(&tree);
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut tree, "crabbox", &mut script);
    let script = String::from_utf8_lossy(&script);
    let script = match args.shell {
        Shell::Bash => bash(&script, &commands, &flags_with_values(&tree)),
        Shell::Zsh => zsh(&script),
        Shell::Fish => fish(&script, &commands),
        _ => script.into_owned(),
    };
    app.ui.data(&script)?;
    Ok(0)
}

/// The name of an argument that is a lease.
const LEASE: &str = "LEASE";

fn is_lease(arg: &Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().any(|name| name.as_str() == LEASE)
}

/// What help does not show is not offered either. Only what a script can tell of an argument is copied: its relations may
/// name one that is left out.
fn visible(command: &Command) -> Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    let aliases = command.get_visible_aliases().map(fixed);
    let mut copy = Command::new(fixed(command.get_name()))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .visible_aliases(aliases)
        .args(args.map(visible_arg))
        .subcommands(below.map(visible));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    copy
}

fn visible_arg(arg: &Arg) -> Arg {
    let mut copy = Arg::new(arg.get_id().clone())
        .action(match arg.get_action() {
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong => ArgAction::SetTrue,
            action => action.clone(),
        })
        .value_hint(arg.get_value_hint())
        .require_equals(arg.is_require_equals_set());
    if let Some(long) = arg.get_long() {
        copy = copy.long(fixed(long));
    }
    if let Some(short) = arg.get_short() {
        copy = copy.short(short);
    }
    if let Some(help) = arg.get_help() {
        copy = copy.help(help.clone());
    }
    if !arg.get_action().takes_values() {
        return copy;
    }
    if let Some(names) = arg.get_value_names() {
        copy = copy.value_names(names.to_vec());
    }
    if let Some(count) = arg.get_num_args() {
        copy = copy.num_args(count);
    }
    copy.value_parser(arg.get_value_parser().clone())
}

/// One script is made by one process: what it names may live as long as that.
fn fixed(text: &str) -> &'static str {
    text.to_owned().leak()
}

/// Those that take a lease by its name alone, with their aliases.
fn commands_on_leases(tree: &Command) -> Vec<String> {
    let takes_one = |command: &&Command| command.get_positionals().any(is_lease);
    let named = |command: &Command| -> Vec<String> {
        let aliases = command.get_all_aliases().map(str::to_owned);
        aliases.chain([command.get_name().to_owned()]).collect()
    };
    tree.get_subcommands()
        .filter(takes_one)
        .flat_map(named)
        .collect()
}

/// After these a word is their value.
fn flags_with_values(tree: &Command) -> Vec<String> {
    let takes_word = |arg: &&Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    let mut flags: Vec<_> = tree
        .get_subcommands()
        .flat_map(|command| command.get_arguments().filter(takes_word))
        .filter_map(Arg::get_long)
        .filter(|flag| *flag != "id")
        .map(|flag| format!("--{flag}"))
        .collect();
    flags.sort();
    flags.dedup();
    flags
}

/// The generated function, and leases on top of what it found.
fn bash(script: &str, commands: &[String], flags: &[String]) -> String {
    let patterns: Vec<_> = commands
        .iter()
        .map(|command| format!("{command}:*"))
        .collect();
    let commands_pattern = patterns.join("|");
    let flags = flags.join("|");
    format!(
        r#"{script}
_crabbox_and_leases() {{
    _crabbox "$@"
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} wanted=
    case $prev in
        --id|forget) COMPREPLY=() wanted=1 ;;
        {flags}) ;;
        *) case ${{COMP_WORDS[1]}}:$cur in *:-*) ;; {commands_pattern}) wanted=1 ;; esac ;;
    esac
    if [[ $wanted && $COMP_CWORD -gt 1 ]]; then
        COMPREPLY+=( $(compgen -W "$("${{COMP_WORDS[0]}}" claims slugs 2>/dev/null)" -- "$cur") )
    fi
}}
complete -F _crabbox_and_leases -o nosort -o bashdefault -o default crabbox
"#
    )
}

fn zsh(script: &str) -> String {
    let known = script
        .replace(":LEASE:_default", ":LEASE:_crabbox_leases")
        .lines()
        .map(|line| match line.contains("lease -- ") {
            true => line.replace(":_default'", ":_crabbox_leases'"),
            false => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n");
    let leases = r#"(( $+functions[_crabbox_leases] )) ||
_crabbox_leases() {
    local -a leases
    leases=(${(f)"$(crabbox claims slugs 2>/dev/null)"})
    compadd -a leases
}
"#;
    // Before the last lines, which call the whole.
    match known.rfind("\nif [ \"$funcstack[1]\"") {
        Some(at) => {
            let (before, after) = known.split_at(at + 1);
            format!("{before}{leases}\n{after}\n")
        }
        None => format!("{known}\n{leases}"),
    }
}

fn fish(script: &str, commands: &[String]) -> String {
    let slugs = "(crabbox claims slugs 2>/dev/null)";
    let commands = commands.join(" ");
    format!(
        "{script}complete -c crabbox -n \"__fish_seen_subcommand_from {commands} forget\" -f -a \"{slugs}\"\n\
         complete -c crabbox -n \"__fish_seen_subcommand_from {commands} run cp doctor\" -l id -x -a \"{slugs}\"\n"
    )
}

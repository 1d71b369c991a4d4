//! The reference page's table, from the same rows.

use super::table::{Applies, Kind, Setting, Trust};

/// The rows as a Markdown table. A pipe in a cell is escaped.
pub fn reference(settings: &[Setting]) -> String {
    let mut table = String::from(
        "| Key | Flag | Environment | Default | From the repository | Meaning |\n|---|---|---|---|---|---|\n",
    );
    for setting in settings {
        let cells = [
            key(setting),
            setting
                .flag
                .map_or_else(String::new, |flag| code(&format!("--{flag}"))),
            join(setting.env.iter().copied()),
            default(setting),
            repository(setting.trust).to_owned(),
            meaning(setting),
        ];
        table.push_str("| ");
        table.push_str(&cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
        table.push_str(" |\n");
    }
    table
}

fn key(setting: &Setting) -> String {
    let path = setting.path();
    match setting.trust {
        Trust::OutsideFiles | Trust::FlagOnly => "-".to_owned(),
        Trust::Anyone
        | Trust::User
        | Trust::NeverRepository
        | Trust::ShorterThanUser
        | Trust::WithinUser
        | Trust::ConfiguredProvider
        | Trust::OwnProfile => join(
            [path.as_str()]
                .into_iter()
                .chain(setting.aliases.iter().copied()),
        ),
    }
}

fn default(setting: &Setting) -> String {
    match (setting.default, setting.kind) {
        ("", _) => "-".to_owned(),
        (list, Kind::List(_)) => join(list.split(',')),
        (text, _) => code(text),
    }
}

fn repository(trust: Trust) -> &'static str {
    match trust {
        Trust::Anyone => "yes",
        Trust::User => "after `crabbox trust`",
        Trust::ShorterThanUser => "shorter than yours only",
        Trust::WithinUser => "names in your own list only",
        Trust::ConfiguredProvider => "configured providers and the default only",
        Trust::OwnProfile => "profiles without variables of yours only",
        Trust::NeverRepository | Trust::OutsideFiles | Trust::FlagOnly => "no",
    }
}

fn meaning(setting: &Setting) -> String {
    let mut meaning = setting.help.to_owned();
    if let Kind::List(_) = setting.kind
        && setting.flag.is_some()
    {
        meaning.push_str(" (can be repeated)");
    }
    meaning.push_str(match setting.applies {
        Applies::Always => "",
        Applies::ToNewSandboxes => " (for new sandboxes)",
        Applies::ToRuns => " (for new sandboxes; renewed by every `run`)",
    });
    meaning
}

fn join<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(code).collect::<Vec<_>>().join(", ")
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

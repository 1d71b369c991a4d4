//! `run --preset`: a command of the configuration in the place of the words.

use std::collections::BTreeMap;

use crabbox_core::command::{Expanded, display};
use crabbox_core::settings::{Preset, Settings};
use crabbox_core::{Code, Failure};

use crate::app::App;

#[derive(Debug, clap::Args)]
pub(super) struct PresetArgs {
    /// Run a preset in place of COMMAND; `--preset-var NAME=VALUE` fills in `{{NAME}}`
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    #[arg(
        long,
        value_name = "NAME=VALUE,...",
        value_delimiter = ',',
        hide = true
    )]
    preset_var: Vec<String>,
    #[arg(long, value_name = "TEXT", hide = true)]
    scenario: Option<String>,
}

/// A preset with its values.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) command: Expanded,
    pub(super) env: BTreeMap<String, String>,
    pub(super) preflight: bool,
}

impl PresetArgs {
    /// `None` where none is asked for. `words` is the command that a preset leaves no place for.
    pub(super) fn choose(
        &self,
        settings: &Settings,
        words: &[String],
    ) -> Result<Option<Chosen>, Failure> {
        let Some(name) = &self.preset else {
            let flag = match (self.preset_var.is_empty(), &self.scenario) {
                (false, _) => "preset-var",
                (true, Some(_)) => "scenario",
                (true, None) => return Ok(None),
            };
            return Err(Failure::usage(format!("--{flag} requires --preset")));
        };
        if !words.is_empty() {
            let message = "--preset has a command of its own; leave the command out";
            return Err(Failure::usage(message));
        }
        let profile = settings.text(None, "profile");
        let preset = settings
            .preset(profile, name)
            .ok_or_else(|| unknown(name, &settings.preset_names(profile)))?;
        if let Some(key) = preset.unsupported.first() {
            let message = format!("preset `{name}` sets `{key}`, which no provider here supports");
            return Err(Failure::new(Code::Unsupported, message));
        }
        self.expand(name, preset).map(Some)
    }

    fn expand(&self, name: &str, preset: &Preset) -> Result<Chosen, Failure> {
        let mut values = BTreeMap::new();
        for pair in &self.preset_var {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                Failure::usage(format!(
                    "invalid --preset-var `{}`: expected NAME=VALUE",
                    crabbox_core::printable(pair)
                ))
            })?;
            values.insert(key.trim().to_owned(), value.to_owned());
        }
        if let Some(scenario) = &self.scenario {
            values.insert("scenario".to_owned(), scenario.clone());
        }
        let command =
            Expanded::new(&preset.command, preset.shell, &values).map_err(|mut failure| {
                failure.message = format!("preset `{name}`: {}", failure.message);
                failure
            })?;
        Ok(Chosen {
            command,
            env: preset.env.clone(),
            preflight: preset.preflight,
        })
    }

    /// What is run, with the names of the variables only.
    pub(super) fn tell(&self, app: &App<'_>, chosen: &Chosen) {
        let name = self.preset.as_deref().unwrap_or_default();
        let env: Vec<_> = chosen.env.keys().map(String::as_str).collect();
        let env = match env.is_empty() {
            true => String::new(),
            false => format!("env={} ", env.join(",")),
        };
        let command = display(&chosen.command.words());
        app.ui
            .say(&format!("expanded preset {name}: {env}{command}"));
    }
}

fn unknown(name: &str, known: &[&str]) -> Failure {
    let failure = Failure::usage(format!(
        "unknown preset `{}`",
        crabbox_core::printable(name)
    ));
    match known {
        [] => failure.hint("define it under `presets` in .crabbox.yaml"),
        known => failure.hint(format!("presets: {}", known.join(", "))),
    }
}

//! `sbx settings`

use std::collections::BTreeMap;

use sbx_api::SettingsState;
use sbx_engine::StateDir;
use sbx_engine::state::settings::table::{self, Setting, TABLE};
use sbx_engine::state::settings::{self, SettingError, Values};
use serde_json::{Value, json};

use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{similar, text};

/// Show and change the settings of the engine
///
/// They are in `settings.json` of the state directory. Variables in the daemon's environment take precedence.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List settings, their values and where these come from
    #[command(visible_alias = "ls")]
    List(List),
    /// Print the value of a setting
    Get(Key),
    /// Change a setting
    #[command(
        after_help = "Examples:\n  sbx settings set auto_stop_seconds 600\n  sbx settings set auto_stop_seconds off"
    )]
    Set(Set),
    /// Reset a setting to its default
    Unset(Key),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Also the settings that few users need
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Accepted for compatibility: nothing is truncated
    #[arg(long, hide = true)]
    no_trunc: bool,
}

#[derive(Debug, clap::Args)]
struct Key {
    /// Name of the setting, as `sbx settings list` shows it
    key: String,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Name of the setting, as `sbx settings list` shows it
    key: String,
    /// New value
    #[arg(allow_hyphen_values = true)]
    value: String,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        matches!(&self.command, Command::List(List { json: true, .. }))
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Default,
    Variable,
    File,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Variable => "envvar",
            Self::File => "override",
        }
    }
}

/// What is known about the values.
struct Known {
    file: Values,
    /// By key.
    environment: BTreeMap<String, String>,
    restart_needed: Vec<String>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::List(list) => show(context, list),
        Command::Get(Key { key }) => {
            let setting = find(key)?;
            let (value, _) = Known::read(context)?.value(setting);
            context.ui.data(format!("{}\n", plain(&value)))
        }
        Command::Set(Set { key, value }) => {
            let setting = find(key)?;
            let value = Setting::parse(value);
            settings::check(key, &value).map_err(|error| refused(&error, setting))?;
            let state = context.state()?;
            state.claim()?;
            state.change_setting(key, Some(value))?;
            follow(context, setting)
        }
        Command::Unset(Key { key }) => {
            let setting = find(key)?;
            let state = context.state()?;
            if !state.is_claimed() || !state.change_setting(key, None)? {
                context.ui.note(format!("`{key}` was not set."));
                return Ok(());
            }
            follow(context, setting)
        }
    }
}

fn find(key: &str) -> Result<&'static Setting, Failure> {
    table::find(key).ok_or_else(|| {
        let known = TABLE.iter().map(|setting| setting.key);
        let mut message = format!("unknown setting `{}`", key.escape_debug());
        if let Some(close) = similar::similar_names(key, known).first() {
            message.push_str(&format!("; did you mean `{close}`?"));
        }
        Failure::new(Kind::NotFound, message).hint("sbx settings list --all")
    })
}

fn refused(error: &SettingError, setting: &Setting) -> Failure {
    let message = sbx_engine::error::chain(error);
    Failure::new(Kind::BadRequest, message).hint(format!(
        "sbx settings set {} '{}'",
        setting.key,
        setting.example()
    ))
}

/// Tells the daemon, and the user what does not hold yet.
fn follow(context: &Context, setting: &Setting) -> Result<(), Failure> {
    let client = Client::new(context, Absent::Report)?;
    let told = match client.reload_settings() {
        Err(failure) if failure.kind == Kind::NoDaemon => SettingsState {
            environment: from_own_environment(context),
            restart_needed: Vec::new(),
        },
        other => other?,
    };
    if let Some(value) = told.environment.get(setting.key) {
        context.ui.warning(format!(
            "{}={value} in the environment beats the file",
            setting.variable
        ));
    } else if told.restart_needed.iter().any(|key| key == setting.key) {
        context
            .ui
            .note("The running daemon keeps the old value; to apply it: sbx daemon restart");
    }
    Ok(())
}

/// As a daemon would get it that is started now.
fn from_own_environment(context: &Context) -> BTreeMap<String, String> {
    let set = TABLE.iter().filter_map(|setting| {
        let value = context.env.text(setting.variable)?;
        Some((setting.key.to_owned(), value.to_owned()))
    });
    set.collect()
}

impl Known {
    fn read(context: &Context) -> Result<Self, Failure> {
        let state: StateDir = context.state()?;
        state.check_own()?;
        let client = Client::new(context, Absent::Report)?;
        let told = match client.settings() {
            Err(failure) if failure.kind == Kind::NoDaemon => SettingsState {
                environment: from_own_environment(context),
                restart_needed: Vec::new(),
            },
            other => other?,
        };
        Ok(Self {
            file: state.settings_values()?,
            environment: told.environment,
            restart_needed: told.restart_needed,
        })
    }

    fn value(&self, setting: &Setting) -> (Value, Source) {
        if let Some(text) = self.environment.get(setting.key) {
            return (Setting::parse(text), Source::Variable);
        }
        match self.file.get(setting.key) {
            Some(value) => (value.clone(), Source::File),
            None => (setting.default(), Source::Default),
        }
    }
}

fn show(context: &Context, list: &List) -> Result<(), Failure> {
    let known = Known::read(context)?;
    let shown = TABLE.iter().filter_map(|setting| {
        let (value, source) = known.value(setting);
        let wanted = list.all || !setting.advanced || source != Source::Default;
        wanted.then_some((setting, value, source))
    });
    if list.json {
        let all: Vec<Value> = shown
            .map(|(setting, value, source)| {
                json!({
                    "key": setting.key,
                    "type": setting.kind.name(),
                    "default": setting.default(),
                    "value": value,
                    "source": source.name(),
                    "description": setting.description,
                    "env_var": setting.variable,
                    "requires_restart": setting.requires_restart,
                    "restart_needed": known.restart_needed.iter().any(|key| key == setting.key),
                })
            })
            .collect();
        return context.ui.json(&json!({"settings": all}));
    }
    let header = ["KEY", "VALUE", "TYPE", "SOURCE", "RESTART", "DESCRIPTION"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    for (setting, value, source) in shown {
        let source = match source {
            Source::Variable => format!("{} ({})", source.name(), setting.variable),
            Source::Default | Source::File => source.name().to_owned(),
        };
        let restart = match (
            known.restart_needed.iter().any(|key| key == setting.key),
            setting.requires_restart,
        ) {
            (true, _) => "needed",
            (false, true) => "yes",
            (false, false) => "no",
        };
        rows.push(vec![
            setting.key.to_owned(),
            plain(&value),
            setting.kind.name().to_owned(),
            source,
            restart.to_owned(),
            setting.description.to_owned(),
        ]);
    }
    let mut lines = text::table(&rows);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    context.ui.data(lines.join("\n") + "\n")
}

/// As it is typed; empty when there is none.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text::one_line(text),
        other => other.to_string(),
    }
}

//! `settings.json` of the state directory: the few things a user can change about the engine.

pub mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::machine::ModeOverride;

/// How long a sandbox without a command stays up.
pub(crate) const DEFAULT_AUTO_STOP_DELAY: Duration = Duration::from_secs(30);

const DEFAULT_CACHE_MIB: u64 = 10 << 10;

/// By key, as `settings.json` has them.
pub type Values = Map<String, Value>;

/// By key, the text of the variables that are set in the environment of the daemon ([`table::Setting::variable`]).
pub type Overrides = BTreeMap<String, String>;

#[derive(Debug, Error)]
pub enum SettingError {
    #[error("unknown setting `{0}`")]
    Unknown(String),
    #[error("invalid value `{value}` for the setting `{key}`")]
    Value {
        key: String,
        value: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("invalid value `{value}` of the variable {variable} for the setting `{key}`")]
    Variable {
        variable: &'static str,
        key: String,
        value: String,
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// `0` and `"off"` mean never.
    #[serde(rename = "auto_stop_seconds", deserialize_with = "auto_stop")]
    pub auto_stop: Option<Duration>,
    /// How large all build caches together may become.
    pub cache_max_mib: u64,
    /// Show the caller's `GOCACHE` inside.
    pub go_build_cache: bool,
    /// Variables that an SSH client may give to a command: names in which `*` and `?` stand for others.
    #[serde(deserialize_with = "names")]
    pub ssh_accept_env: Vec<String>,
    /// Use less than what the machine offers.
    pub mode: Option<ModeOverride>,
}

impl Settings {
    /// What holds: variables beat the file.
    pub fn new(file: &Values, overrides: &Overrides) -> Result<Self, SettingError> {
        let mut values = file.clone();
        for (key, value) in file {
            check(key, value)?;
        }
        for (key, text) in overrides {
            let setting = table::find(key).ok_or_else(|| SettingError::Unknown(key.clone()))?;
            let value = table::Setting::parse(text);
            alone(key, &value).map_err(|source| SettingError::Variable {
                variable: setting.variable,
                key: key.clone(),
                value: text.clone(),
                source,
            })?;
            values.insert(key.clone(), value);
        }
        // Each by itself is valid.
        serde_json::from_value(Value::Object(values)).map_err(|source| SettingError::Value {
            key: "settings".into(),
            value: String::new(),
            source,
        })
    }

    /// The settings in which a daemon that began with `self` goes on although they are others by now.
    pub fn needs_restart_for(&self, now: &Self) -> Vec<&'static str> {
        if self.mode == now.mode {
            Vec::new()
        } else {
            vec!["mode"]
        }
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_max_mib.saturating_mul(1 << 20)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            auto_stop: Some(DEFAULT_AUTO_STOP_DELAY),
            cache_max_mib: DEFAULT_CACHE_MIB,
            go_build_cache: false,
            ssh_accept_env: Vec::new(),
            mode: None,
        }
    }
}

/// That the key exists and can have this value.
pub fn check(key: &str, value: &Value) -> Result<(), SettingError> {
    if table::find(key).is_none() {
        return Err(SettingError::Unknown(key.to_owned()));
    }
    alone(key, value).map_err(|source| SettingError::Value {
        key: key.to_owned(),
        value: match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        },
        source,
    })
}

fn alone(key: &str, value: &Value) -> Result<(), serde_json::Error> {
    let values = Values::from_iter([(key.to_owned(), value.clone())]);
    serde_json::from_value::<Settings>(Value::Object(values)).map(drop)
}

fn auto_stop<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    if value.as_str() == Some("off") {
        return Ok(None);
    }
    let seconds = value
        .as_u64()
        .ok_or_else(|| D::Error::custom("expected a number of seconds or \"off\""))?;
    Ok((seconds != 0).then(|| Duration::from_secs(seconds)))
}

/// A list, or a text in which commas separate the names, as a command line and a variable have it.
fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "a list of names, or names with commas between them"
    )]
    enum Names {
        List(Vec<String>),
        Text(String),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::List(names) => names,
        Names::Text(text) => {
            let names = text.split(',').map(str::trim);
            names
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_beat_the_file() {
        let file = Values::from_iter([
            ("auto_stop_seconds".to_owned(), 5.into()),
            ("cache_max_mib".to_owned(), 7.into()),
        ]);
        let with = |key: &str, text: &str| {
            let overrides = Overrides::from([(key.to_owned(), text.to_owned())]);
            Settings::new(&file, &overrides)
        };
        let settings = with("auto_stop_seconds", "off").unwrap();
        assert_eq!((settings.auto_stop, settings.cache_max_mib), (None, 7));
        let error = with("auto_stop_seconds", "soon").unwrap_err().to_string();
        assert!(error.contains("SBX_AUTO_STOP_SECONDS"), "{error}");
        assert!(with("nothing", "1").is_err());
        assert!(check("mode", &"root".into()).is_err());
        assert!(check("mode", &"single".into()).is_ok());
        let single = with("mode", "single").unwrap();
        assert_eq!(settings.needs_restart_for(&single), ["mode"]);
    }

    #[test]
    fn names_are_a_list_or_a_text() {
        for text in [r#"["LC_*", "TERM"]"#, r#""LC_*, TERM,""#] {
            let value = serde_json::from_str(text).unwrap();
            let file = Values::from_iter([("ssh_accept_env".to_owned(), value)]);
            let settings = Settings::new(&file, &Overrides::new()).unwrap();
            assert_eq!(settings.ssh_accept_env, ["LC_*", "TERM"]);
        }
        assert!(check("ssh_accept_env", &7.into()).is_err());
    }

    #[test]
    fn auto_stop_values() {
        let parse = |text: &str| {
            serde_json::from_str::<Settings>(text)
                .map(|s| s.auto_stop)
                .map_err(|e| e.to_string())
        };
        assert_eq!(parse("{}"), Ok(Some(Duration::from_secs(30))));
        assert_eq!(
            parse(r#"{"auto_stop_seconds": 5}"#),
            Ok(Some(Duration::from_secs(5)))
        );
        assert_eq!(parse(r#"{"auto_stop_seconds": 0}"#), Ok(None));
        assert_eq!(parse(r#"{"auto_stop_seconds": "off"}"#), Ok(None));
        assert!(parse(r#"{"auto_stop_seconds": -1}"#).is_err());
        assert!(parse(r#"{"auto_stop_second": 1}"#).is_err());
    }
}

//! Every setting, once: what the command line lists, what a variable may replace, and what the documentation says.

use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub key: &'static str,
    pub kind: Kind,
    /// The variable of the daemon's environment that beats the file.
    pub variable: &'static str,
    /// A running daemon does not follow a change.
    pub requires_restart: bool,
    /// For few users: `sbx settings list` shows it with `--all`, or when it is set.
    pub advanced: bool,
    pub description: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    String,
    List,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::String => "string",
            Self::List => "list",
        }
    }
}

pub const TABLE: &[Setting] = &[
    Setting {
        key: "auto_stop_seconds",
        kind: Kind::Int,
        variable: "SBX_AUTO_STOP_SECONDS",
        requires_restart: false,
        advanced: false,
        description: "How long a sandbox stays up after its last command; `0` and `off` mean for ever",
    },
    Setting {
        key: "cache_max_mib",
        kind: Kind::Int,
        variable: "SBX_CACHE_MAX_MIB",
        requires_restart: false,
        advanced: false,
        description: "How large all build caches (`--cache`) may be together; the least recently used ones are removed",
    },
    Setting {
        key: "go_build_cache",
        kind: Kind::Bool,
        variable: "SBX_GO_BUILD_CACHE",
        requires_restart: false,
        advanced: false,
        description: "Show your Go build cache in sandboxes from their next start on: what was compiled of all your Go projects, read-only below each sandbox's own layer",
    },
    Setting {
        key: "ssh_accept_env",
        kind: Kind::List,
        variable: "SBX_SSH_ACCEPT_ENV",
        requires_restart: false,
        advanced: true,
        description: "Which variables an [SSH](ssh.md) client may give to a command (`SendEnv`, `SetEnv`): names with `*` and `?`, separated by commas",
    },
    Setting {
        key: "mode",
        kind: Kind::String,
        variable: "SBX_MODE",
        requires_restart: true,
        advanced: true,
        description: "Use a lesser privilege mode than the machine offers: `subordinate` (subordinate ids) or `single` (one id)",
    },
];

pub fn find(key: &str) -> Option<&'static Setting> {
    TABLE.iter().find(|setting| setting.key == key)
}

impl Setting {
    pub fn default(&self) -> Value {
        match self.key {
            "auto_stop_seconds" => json!(super::DEFAULT_AUTO_STOP_DELAY.as_secs()),
            "cache_max_mib" => json!(super::DEFAULT_CACHE_MIB),
            "go_build_cache" => json!(false),
            "ssh_accept_env" => json!([]),
            _ => Value::Null,
        }
    }

    /// A valid value, as it is typed.
    pub fn example(&self) -> &'static str {
        match self.key {
            "auto_stop_seconds" => "600",
            "cache_max_mib" => "10240",
            "go_build_cache" => "true",
            "ssh_accept_env" => "LC_*",
            _ => "subordinate",
        }
    }

    /// A value as it is typed: what looks like a number or a truth value is one.
    pub fn parse(text: &str) -> Value {
        match (text.parse::<u64>(), text.parse::<bool>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(truth)) => truth.into(),
            _ => text.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;

    use super::*;
    use crate::state::settings::{Settings, Values};
    use crate::state::{Durability, write_atomic};

    #[test]
    fn the_defaults_are_those_of_the_settings() {
        let all: Values = TABLE
            .iter()
            .map(|setting| (setting.key.to_owned(), setting.default()))
            .collect();
        let parsed: Settings = serde_json::from_value(Value::Object(all)).unwrap();
        assert_eq!(parsed, Settings::default());
    }

    #[test]
    fn every_example_is_valid() {
        for setting in TABLE {
            let value = Setting::parse(setting.example());
            crate::state::settings::check(setting.key, &value).unwrap();
        }
    }

    /// `UPDATE_DOCS=1` writes the table anew.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller of the test chooses to update the file"
    )]
    fn the_documented_table_is_this_one() {
        let mut table = String::from(
            "| key | type | default | variable | takes effect | meaning |\n|---|---|---|---|---|---|\n",
        );
        for setting in TABLE {
            let default = match setting.default() {
                Value::Null => "-".to_owned(),
                value => format!("`{value}`"),
            };
            let effect = if setting.requires_restart {
                "with the next daemon"
            } else {
                "at once"
            };
            writeln!(
                table,
                "| `{}` | {} | {default} | `{}` | {effect} | {} |",
                setting.key,
                setting.kind.name(),
                setting.variable,
                setting.description
            )
            .unwrap();
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/engine/settings.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (begin, end) = ("<!-- settings:begin -->\n\n", "\n<!-- settings:end -->");
        let from = text.find(begin).unwrap() + begin.len();
        let to = text.find(end).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let text = format!("{}{table}{}", &text[..from], &text[to..]);
            let directory = path.parent().unwrap();
            write_atomic(directory, "settings.md", text.as_bytes(), Durability::Soon).unwrap();
            return;
        }
        assert_eq!(
            &text[from..to],
            table,
            "UPDATE_DOCS=1 cargo test -p sbx-engine documented_table"
        );
    }
}

//! Requests that start commands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Code, ErrorBody};

/// The body of `POST /command`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Milliseconds; absent or 0 means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envs: Option<BTreeMap<String, String>>,
}

/// What a valid request asks to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// For `bash -c`, or `sh -c` where there is no bash.
    Script(String),
    Argv(Vec<String>),
}

impl CommandRequest {
    pub fn program(&self) -> Result<Program, ErrorBody> {
        let invalid = |message: &str| Err(ErrorBody::new(Code::InvalidRequestBody, message));
        if self.gid.is_some() && self.uid.is_none() {
            return invalid("gid requires uid");
        }
        if has_invalid_name(self.envs.as_ref()) {
            return invalid("envs: invalid variable name");
        }
        let text = self.command.as_deref().filter(|text| !text.is_empty());
        let argv = self.argv.as_ref().filter(|argv| !argv.is_empty());
        match (text, argv) {
            (Some(_), Some(_)) => invalid("exactly one of command and argv is required"),
            (None, None) => invalid("command is required"),
            (Some(text), None) if text.contains('\0') => invalid("command contains a NUL byte"),
            (Some(text), None) => Ok(Program::Script(text.to_owned())),
            (None, Some(argv)) if argv.iter().any(|word| word.contains('\0')) => {
                invalid("argv contains a NUL byte")
            }
            (None, Some(argv)) => Ok(Program::Argv(argv.clone())),
        }
    }
}

/// The kernel takes any string with a `=`; a name that contains one, or a NUL byte, would become another variable.
fn has_invalid_name(envs: Option<&BTreeMap<String, String>>) -> bool {
    envs.into_iter()
        .flatten()
        .any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'))
}

/// The body of `POST /session`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCreated {
    pub session_id: String,
}

/// The body of `POST /session/{id}/run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRun {
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

/// The answer of `GET /command/status/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandStatus {
    pub id: String,
    pub content: String,
    pub running: bool,
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// RFC 3339.
    pub started_at: String,
    pub finished_at: Option<String>,
}

/// The answer of `GET /metrics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub cpu_count: f64,
    pub cpu_used_pct: f64,
    pub mem_total_mib: f64,
    pub mem_used_mib: f64,
    pub timestamp: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> Result<Program, String> {
        let request: CommandRequest = serde_json::from_str(text).unwrap();
        request.program().map_err(|error| error.message)
    }

    #[test]
    fn exactly_one_program() {
        assert_eq!(
            program(r#"{"command":"ls"}"#),
            Ok(Program::Script("ls".into()))
        );
        assert_eq!(
            program(r#"{"argv":["ls"],"command":""}"#),
            Ok(Program::Argv(vec!["ls".into()]))
        );
        assert_eq!(program("{}"), Err("command is required".into()));
        assert!(program(r#"{"command":"a","argv":["b"]}"#).is_err());
        assert!(program(r#"{"command":"a","gid":1}"#).is_err());
        assert!(program(r#"{"command":"a","envs":{"A=B":"c"}}"#).is_err());
        assert!(program(r#"{"command":"a\u0000b"}"#).is_err());
    }
}

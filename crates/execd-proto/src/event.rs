//! The events of a command stream.
//!
//! The official daemon answers `text/event-stream`, but writes each event as one bare JSON object followed by two line
//! feeds, without SSE's `data:` prefix. Official clients depend on that form, so [`Event::encode`] writes exactly it.
//! Empty fields are omitted, `execution_time: 0` included.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The `ename` of a command that could not start, failed or was killed.
pub const COMMAND_ERROR: &str = "CommandExecError";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub execution_count: u64,
    /// Milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub execution_time: u64,
    /// Official daemons do not send it; others say it with `result` or `execution_complete`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Milliseconds since the Unix epoch.
    #[serde(default)]
    pub timestamp: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub results: BTreeMap<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ExecutionError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Init,
    Stdout,
    Stderr,
    Result,
    ExecutionCount,
    Error,
    ExecutionComplete,
    Status,
    Ping,
    /// A kind that a newer daemon has. Clients skip it.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionError {
    #[serde(default)]
    pub ename: String,
    #[serde(default)]
    pub evalue: String,
    /// `null` and a single string occur in older daemons.
    #[serde(default, deserialize_with = "traceback")]
    pub traceback: Vec<String>,
}

/// How a command ended, as the terminal event of its stream says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    /// Killed by a signal or by its timeout: the daemon does not say by which number.
    Killed(String),
    /// Never started; the text says why.
    NotStarted(String),
}

impl Event {
    pub fn new(kind: Kind, timestamp: u64) -> Self {
        Self {
            kind,
            text: String::new(),
            execution_count: 0,
            execution_time: 0,
            exit_code: None,
            timestamp,
            results: BTreeMap::new(),
            error: None,
        }
    }

    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    pub fn complete(execution_time: u64, timestamp: u64) -> Self {
        Self {
            execution_time,
            ..Self::new(Kind::ExecutionComplete, timestamp)
        }
    }

    /// The terminal event of a command that did not exit with 0.
    pub fn failed(ending: &Ending, timestamp: u64) -> Self {
        let (evalue, trace) = match ending {
            Ending::Exited(code) => (code.to_string(), format!("exit status {code}")),
            Ending::Killed(signal) => ("-1".to_owned(), format!("signal: {signal}")),
            Ending::NotStarted(reason) => (reason.clone(), reason.clone()),
        };
        Self {
            error: Some(ExecutionError {
                ename: COMMAND_ERROR.to_owned(),
                evalue,
                traceback: vec![trace],
            }),
            ..Self::new(Kind::Error, timestamp)
        }
    }

    /// One frame: the JSON object and two line feeds.
    pub fn encode(&self) -> Vec<u8> {
        // Serializing a struct of strings and numbers into memory cannot fail; an empty frame would be skipped.
        let mut frame = serde_json::to_vec(self).unwrap_or_default();
        frame.extend_from_slice(b"\n\n");
        frame
    }

    /// How the command ended, if this is the stream's terminal event. Nothing else proves an exit code.
    pub fn ending(&self) -> Option<Ending> {
        match self.kind {
            Kind::ExecutionComplete => Some(exited(self.exit_code.unwrap_or(0))),
            Kind::Result => self.exit_code.map(exited),
            Kind::Error => Some(self.error.clone().unwrap_or_default().ending()),
            Kind::Init
            | Kind::Stdout
            | Kind::Stderr
            | Kind::ExecutionCount
            | Kind::Status
            | Kind::Ping
            | Kind::Unknown => None,
        }
    }
}

/// No process exits with another number.
fn exited(code: i32) -> Ending {
    match (0..=255).contains(&code) {
        true => Ending::Exited(code),
        false => Ending::Killed(String::new()),
    }
}

impl ExecutionError {
    fn ending(self) -> Ending {
        match self.evalue.trim().parse::<i32>() {
            Ok(code) if (0..=255).contains(&code) => Ending::Exited(code),
            Ok(_) => {
                let trace = self.traceback.into_iter().next().unwrap_or_default();
                let signal = trace.strip_prefix("signal: ").unwrap_or(&trace);
                Ending::Killed(signal.to_owned())
            }
            Err(_) => Ending::NotStarted(self.evalue),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde's skip_serializing_if calls"
)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn traceback<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Many(Vec<String>),
        One(String),
        None(()),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::Many(lines) => lines,
        Form::One(line) => vec![line],
        Form::None(()) => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_bare_json_with_empty_fields_omitted() {
        let init = Event::new(Kind::Init, 17).with_text("c7d9");
        assert_eq!(
            init.encode(),
            b"{\"type\":\"init\",\"text\":\"c7d9\",\"timestamp\":17}\n\n"
        );
        assert_eq!(
            Event::complete(25, 18).encode(),
            b"{\"type\":\"execution_complete\",\"execution_time\":25,\"timestamp\":18}\n\n"
        );
        assert_eq!(
            Event::complete(0, 18).encode(),
            b"{\"type\":\"execution_complete\",\"timestamp\":18}\n\n"
        );
    }

    #[test]
    fn endings_survive_the_wire() {
        for ending in [
            Ending::Exited(1),
            Ending::Exited(255),
            Ending::Killed("killed".into()),
            Ending::NotStarted("chdir /none: no such file or directory".into()),
        ] {
            let frame = Event::failed(&ending, 1).encode();
            let event: Event = serde_json::from_slice(&frame).unwrap();
            assert_eq!(event.ending(), Some(ending));
        }
        assert_eq!(Event::complete(1, 1).ending(), Some(Ending::Exited(0)));
        assert_eq!(Event::new(Kind::Stdout, 1).ending(), None);
    }

    #[test]
    fn an_exit_code_beside_the_event_counts() {
        for (text, ending) in [
            (
                r#"{"type":"execution_complete","exit_code":3}"#,
                Some(Ending::Exited(3)),
            ),
            (
                r#"{"type":"execution_complete","exit_code":null}"#,
                Some(Ending::Exited(0)),
            ),
            (
                r#"{"type":"execution_complete","exit_code":-1}"#,
                Some(Ending::Killed(String::new())),
            ),
            (
                r#"{"type":"result","exit_code":7}"#,
                Some(Ending::Exited(7)),
            ),
            (r#"{"type":"result","results":{"text":"1"}}"#, None),
        ] {
            let event: Event = serde_json::from_str(text).unwrap();
            assert_eq!(event.ending(), ending, "{text}");
        }
        let wrong = r#"{"type":"execution_complete","exit_code":"x"}"#;
        assert!(serde_json::from_str::<Event>(wrong).is_err());
    }

    #[test]
    fn odd_errors_are_failures() {
        for (text, ending) in [
            (r#"{"type":"error"}"#, Ending::NotStarted(String::new())),
            (
                r#"{"type":"error","error":{"ename":"CommandExecError","evalue":"-1","traceback":null}}"#,
                Ending::Killed(String::new()),
            ),
            (
                r#"{"type":"error","error":{"evalue":"-1","traceback":"signal: terminated"}}"#,
                Ending::Killed("terminated".into()),
            ),
            (
                r#"{"type":"error","error":{"evalue":"70000"}}"#,
                Ending::Killed(String::new()),
            ),
        ] {
            let event: Event = serde_json::from_str(text).unwrap();
            assert_eq!(event.ending(), Some(ending), "{text}");
        }
    }

    #[test]
    fn unknown_kinds_are_kept_apart() {
        let event: Event = serde_json::from_str(r#"{"type":"novel","x":1}"#).unwrap();
        assert_eq!(event.kind, Kind::Unknown);
        assert_eq!(event.ending(), None);
    }
}

//! What `sbx` prints, in all the spellings that are known of it.

use std::collections::{BTreeMap, BTreeSet};

use crabbox_core::{Code, Failure};
use serde::Deserialize;
use serde_json::Value;

/// One sandbox of `sbx ls --json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) id: String,
    pub(super) name: String,
    /// In lower case.
    pub(super) state: String,
    pub(super) agent: String,
    pub(super) workspace: String,
    /// What isolates it, where the engine says so.
    pub(super) backend: String,
}

const WRAPPERS: [&str; 4] = ["sandboxes", "items", "data", "results"];

/// Empty output means that there are no sandboxes; anything that is not a list is not understood.
pub(super) fn list(bytes: &[u8]) -> Result<Vec<Listed>, Failure> {
    if bytes.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| malformed("not valid JSON").because(&error))?;
    // Releases of the foreign engine differ: a bare array, or an object around it.
    let items = match &value {
        Value::Array(items) => items,
        Value::Object(object) => WRAPPERS
            .iter()
            .find_map(|key| object.get(*key)?.as_array())
            .ok_or_else(|| malformed("the object has none of sandboxes, items, data, results"))?,
        Value::Null => return Err(malformed("expected array or object, got null")),
        Value::Bool(_) => return Err(malformed("expected array or object, got boolean")),
        Value::Number(_) => return Err(malformed("expected array or object, got number")),
        Value::String(_) => return Err(malformed("expected array or object, got string")),
    };
    Ok(items.iter().filter_map(listed).collect())
}

fn malformed(reason: &str) -> Failure {
    Failure::new(
        Code::ProviderMalformed,
        format!("parse sbx ls --json output: {reason}"),
    )
    .hint("upgrade or inspect the installed sbx CLI")
}

/// `None` for what is no sandbox: without a name and an id there is nothing to hold on to.
fn listed(item: &Value) -> Option<Listed> {
    let object = item.as_object()?;
    let first = |keys: &[&str]| {
        keys.iter()
            .filter_map(|key| object.get(*key).and_then(text))
            .find(|value| !value.is_empty())
    };
    let id = first(&["id", "ID", "sandboxId", "sandbox_id"]);
    let name = first(&["name", "Name", "sandboxName", "sandbox_name"]);
    let (id, name) = match (id, name) {
        (None, None) => return None,
        (Some(id), None) => (id.clone(), id),
        (None, Some(name)) => (name.clone(), name),
        (Some(id), Some(name)) => (id, name),
    };
    Some(Listed {
        id,
        name,
        state: first(&["state", "status", "Status"])
            .map_or_else(|| "unknown".to_owned(), |state| state.to_lowercase()),
        agent: first(&["agent", "Agent"]).unwrap_or_default(),
        workspace: first(&["workspace", "workdir", "workingDir", "working_dir"])
            .unwrap_or_default(),
        backend: first(&["backend"]).unwrap_or_default(),
    })
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The version that the contract was checked with.
pub(super) const BASELINE: &str = "0.31.3";

/// `sbx version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    /// Its first line that says anything.
    pub(super) first_line: String,
    pub(super) engine: Engine,
    pub(super) compatible: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    /// Ours says which contracts it keeps.
    Own,
    Foreign,
}

/// Of this series 0.37.0, if no more, ignored `exec --env-file` without a word.
const IGNORES_ENV_FILE: &str = "0.37.";

impl Version {
    pub(super) fn may_ignore_env_file(&self) -> bool {
        self.engine == Engine::Foreign
            && words(&self.first_line).any(|word| word.starts_with(IGNORES_ENV_FILE))
    }
}

/// The words of a line, versions among them without their `v`.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || c == ',')
        .map(|word| word.trim_start_matches('v'))
}

pub(super) fn version(text: &str) -> Version {
    let first_line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default()
        .to_owned();
    let says = |line: &str| words(line).any(|word| word == BASELINE);
    let lines_of = |word: &'static str| {
        text.lines()
            .filter(move |line| line.to_lowercase().contains(word))
    };
    let contract = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("contract:"));
    match contract {
        Some(kept) => Version {
            first_line,
            engine: Engine::Own,
            compatible: says(kept),
        },
        None => Version {
            first_line,
            engine: Engine::Foreign,
            compatible: lines_of("client").any(says) && lines_of("server").any(says),
        },
    }
}

/// What `sbx diagnose --output json` found, by the name of the check.
pub(super) fn diagnosis(bytes: &[u8]) -> Option<BTreeMap<String, Finding>> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let checks = value.get("checks")?.as_array()?;
    let finding = |check: &Value| {
        let get = |key| check.get(key).and_then(text).unwrap_or_default();
        let name = get("name");
        (!name.is_empty()).then(|| {
            (
                name,
                Finding {
                    status: get("status").to_lowercase(),
                    message: get("message"),
                    detail: get("detail"),
                    hint: get("hint"),
                },
            )
        })
    };
    Some(checks.iter().filter_map(finding).collect())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) status: String,
    pub(super) message: String,
    pub(super) detail: String,
    pub(super) hint: String,
}

impl Finding {
    /// What it found, why that matters and what to do, as one sentence.
    pub(super) fn text(&self) -> String {
        let mut text = self.message.clone();
        if !self.detail.is_empty() {
            text.push_str(&format!(": {}", self.detail));
        }
        if !self.hint.is_empty() {
            text.push_str(&format!(" (hint: {})", self.hint));
        }
        text
    }
}

/// What went wrong, as an engine tells programs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct EngineError {
    pub(super) message: String,
    #[serde(default)]
    pub(super) hint: Option<String>,
}

/// `{"error":{"message":…,"hint":…}}`, which may stand below other lines.
pub(super) fn engine_error(bytes: &[u8]) -> Option<EngineError> {
    #[derive(Deserialize)]
    struct Document {
        error: EngineError,
    }
    let text = String::from_utf8_lossy(bytes);
    let start = text.find('{')?;
    let document = text.get(start..)?;
    let mut documents = serde_json::Deserializer::from_str(document).into_iter::<Document>();
    let error = documents.next()?.ok()?.error;
    (!error.message.trim().is_empty()).then(|| EngineError {
        hint: error.hint.filter(|hint| !hint.trim().is_empty()),
        ..error
    })
}

/// Whether `sbx rm` failed because there is no sandbox of this name. That something else was not found says nothing.
pub(super) fn is_absence(failure: &Failure, name: &str) -> bool {
    let says_so = |said: &String| {
        let said = said.to_lowercase();
        let words = [
            "not found",
            "no sandbox named",
            "no such sandbox",
            "does not exist",
        ];
        said.contains(name) && words.iter().any(|words| said.contains(words))
    };
    failure.causes.iter().any(says_so)
}

/// Whether a line that an engine prints while it creates a sandbox is for people. Another engine's may be anything.
pub(super) fn is_notice(line: &str, own: bool) -> bool {
    let line = line.trim_start().to_lowercase();
    let is_failure =
        line.starts_with("error:") || line.starts_with("hint:") || line.starts_with('{');
    line.starts_with("warning:") || (own && !line.is_empty() && !is_failure)
}

/// What `sbx policy suggest --json` proposes: what was denied, and what would allow it.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Suggested {
    rules: Vec<Rule>,
    unsolved: Vec<Unsolved>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Rule {
    resource: String,
    covers: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Unsolved {
    target: String,
}

impl Suggested {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Failure> {
        serde_json::from_slice(bytes).map_err(|error| {
            let message = "parse sbx policy suggest --json output";
            Failure::new(Code::ProviderMalformed, message).because(&error)
        })
    }

    /// Everything that was denied, each once.
    pub(super) fn targets(&self) -> Vec<String> {
        let covered = self.rules.iter().flat_map(|rule| &rule.covers);
        let unsolved = self.unsolved.iter().map(|unsolved| &unsolved.target);
        let all: BTreeSet<&String> = covered.chain(unsolved).collect();
        all.into_iter().cloned().collect()
    }

    /// What rules would have to name, as the engine takes it. `None` when no rule is proposed.
    pub(super) fn resources(&self) -> Option<String> {
        let all: Vec<&str> = self
            .rules
            .iter()
            .map(|rule| rule.resource.as_str())
            .collect();
        (!all.is_empty()).then(|| all.join(","))
    }
}

/// Whether an engine does not know a flag that it was thought to know.
pub(super) fn is_unknown_flag(said: &str) -> bool {
    let said = said.to_lowercase();
    [
        "unknown flag",
        "unknown shorthand flag",
        "unexpected argument",
        "unrecognized option",
    ]
    .iter()
    .any(|words| said.contains(words))
}

/// What a program said but for its hints, `None` if there is nothing else, and the hints.
pub(super) fn without_hints(said: &str) -> (Option<String>, Vec<String>) {
    let (mut kept, mut hints) = (Vec::new(), Vec::new());
    for line in said.lines() {
        match line.trim().strip_prefix("hint:") {
            Some(hint) => hints.push(hint.trim().to_owned()),
            None => kept.push(line),
        }
    }
    let kept = kept.join("\n");
    let kept = kept.trim();
    hints.retain(|hint| !hint.is_empty());
    ((!kept.is_empty()).then(|| kept.to_owned()), hints)
}

/// Whether a hint of the engine helps a user who did not call it. A flag of its own means something else or nothing on
/// our command line, unless the whole command stands there.
pub(super) fn is_for_anyone(hint: &str) -> bool {
    let is_flag = |word: &str| word.starts_with("--") || word.starts_with("`-");
    hint.starts_with("sbx ") || !hint.split_whitespace().any(is_flag)
}

/// What to do when there is no answer in time.
pub(super) const NO_ANSWER: &str =
    "the sandbox control plane did not respond; check it with `sbx diagnose`";

/// What to do about an error, by the words of the engine alone: names and paths of the user say nothing.
pub(super) fn guidance(said: &str) -> Option<&'static str> {
    let said = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if has(&[
        "not logged in",
        "login required",
        "unauthorized",
        "authentication",
    ]) {
        Some("run `sbx login` and retry")
    } else if has(&["virtualization", "hypervisor", "kvm"]) {
        Some("enable host virtualization for Docker Sandboxes and retry")
    } else if has(&["timeout", "timed out"]) {
        Some(NO_ANSWER)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(json: &str) -> Vec<String> {
        let all = list(json.as_bytes()).unwrap();
        all.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn denied_targets_and_the_rules_for_them() {
        let text = br#"{"sandbox":"n","rules":[
            {"resource":"*.x.test:443","covers":["b.x.test:443","a.x.test:443"],"why":"w","command":"c"},
            {"resource":"o.test:80","covers":["o.test:80"],"why":"w","command":"c"}],
            "unsolved":[{"target":"10.0.0.1:22","resource":null,"reason":"r"}]}"#;
        let read = Suggested::read(text).unwrap();
        assert_eq!(
            read.targets(),
            ["10.0.0.1:22", "a.x.test:443", "b.x.test:443", "o.test:80"]
        );
        assert_eq!(read.resources().unwrap(), "*.x.test:443,o.test:80");
        let none = Suggested::read(br#"{"rules":[],"unsolved":[]}"#).unwrap();
        assert_eq!((none.targets(), none.resources()), (vec![], None));
        assert!(Suggested::read(b"{}").is_err());
    }

    #[test]
    fn only_our_own_engine_talks_to_people() {
        for (line, own, foreign) in [
            ("warning: a socket in the workspace", true, true),
            ("No network policy has been chosen", true, false),
            ("", false, false),
            ("error: no", false, false),
            ("hint: yes", false, false),
            ("{\"error\":{}}", false, false),
        ] {
            assert_eq!(is_notice(line, true), own, "{line}");
            assert_eq!(is_notice(line, false), foreign, "{line}");
        }
    }

    #[test]
    fn every_wrapper_and_spelling_is_read() {
        for wrapper in WRAPPERS {
            assert_eq!(
                names(&format!(r#"{{"x":1,"{wrapper}":[{{"name":"a"}}]}}"#)),
                ["a"]
            );
        }
        assert_eq!(
            names(r#"[{"name":"a"},{"Name":"b"},{"sandboxName":"c"},{"sandbox_name":"d"}]"#),
            ["a", "b", "c", "d"]
        );
        assert_eq!(
            names(r#"[{"id":"a"},{"ID":"b"},{"sandboxId":7},{"sandbox_id":"d"}]"#),
            ["a", "b", "7", "d"]
        );
        assert_eq!(
            names(r#"[1,"x",null,{},{"state":"running"},{"name":""}]"#),
            [""; 0]
        );
        assert_eq!(
            list(br#"[{"sandbox_id":5,"Name":"n","Status":"RUNNING","Agent":"shell","working_dir":"/w"}]"#).unwrap(),
            [Listed {
                id: "5".into(),
                name: "n".into(),
                state: "running".into(),
                agent: "shell".into(),
                workspace: "/w".into(),
                backend: String::new(),
            }]
        );
        let only = &list(br#"[{"name":"n"}]"#).unwrap()[0];
        assert_eq!((only.id.as_str(), only.state.as_str()), ("n", "unknown"));
    }

    #[test]
    fn the_first_that_says_something_counts() {
        assert_eq!(
            names(
                r#"{"sandboxes":null,"items":{},"data":[{"name":"d"}],"results":[{"name":"r"}]}"#
            ),
            ["d"]
        );
        assert_eq!(
            names(r#"{"results":[{"name":"r"}],"sandboxes":[{"name":"s"}]}"#),
            ["s"]
        );
        let one = |text: &str| list(text.as_bytes()).unwrap().remove(0);
        let read = one(
            r#"[{"id":"","ID":null,"sandboxId":7,"sandbox_id":"x","name":" ","Name":"n",
            "state":"","status":true,"Status":"Running","agent":false,"Agent":"a",
            "workspace":"","workdir":"/w","workingDir":"/v"}]"#,
        );
        assert_eq!((read.id.as_str(), read.name.as_str()), ("7", "n"));
        assert_eq!(
            (read.state.as_str(), read.agent.as_str()),
            ("true", "false")
        );
        assert_eq!(read.workspace, "/w");
    }

    #[test]
    fn nothing_is_none_and_anything_else_is_malformed() {
        assert_eq!(names(""), [""; 0]);
        assert_eq!(names(" \n"), [""; 0]);
        assert_eq!(names("[]"), [""; 0]);
        for (bad, said) in [
            ("{}", "the object has none of"),
            (r#"{"name":"x"}"#, "the object has none of"),
            (r#"{"sandboxes":null}"#, "the object has none of"),
            ("5", "got number"),
            ("null", "got null"),
            ("[", "not valid JSON"),
            ("no sandboxes", "not valid JSON"),
        ] {
            let failure = list(bad.as_bytes()).unwrap_err();
            assert_eq!(failure.code, Code::ProviderMalformed);
            assert!(failure.message.contains(said), "{bad}: {}", failure.message);
        }
    }

    #[test]
    fn compatible_is_both_sides_or_our_own_word() {
        let both = version("Client Version:  v0.31.3\nServer Version: v0.31.3 linux\n");
        assert_eq!(both.first_line, "Client Version:  v0.31.3");
        assert!(both.compatible && both.engine == Engine::Foreign);
        for other in [
            "Client Version: v0.31.3\nServer Version: v0.32.0",
            "sbx version 0.31.3",
            "client 0.31.30\nserver 0.31.3",
            "",
        ] {
            assert!(!version(other).compatible, "{other}");
        }
        let first = "client: v0.1.0 (contract 0.31.3 0.39)";
        for first in [first, "client: v0.1.0"] {
            let own = version(&format!(
                "{first}\nserver: unavailable\ncontract: 0.31.3 0.39\n"
            ));
            assert_eq!((own.engine, own.compatible), (Engine::Own, true));
            assert_eq!(own.first_line, first);
        }
        assert!(!version("client: v9\ncontract: 0.40\n").compatible);
        let may_ignore = |text: &str| version(text).may_ignore_env_file();
        assert!(may_ignore(
            "Client Version: v0.37.0\nServer Version: v0.37.0"
        ));
        assert!(!may_ignore(
            "Client Version: v0.38.0\nServer Version: v0.38.0"
        ));
        assert!(!may_ignore("client: v0.37.1\ncontract: 0.31.3\n"));
    }

    #[test]
    fn the_version_is_the_first_line_that_says_anything() {
        let read = version("\n  \n  Client Version: v0.31.3\nServer Version: v0.31.3\n");
        assert_eq!(read.first_line, "Client Version: v0.31.3");
        assert!(read.compatible);
    }

    #[test]
    fn errors_of_an_engine_come_with_advice() {
        let login = "run `sbx login` and retry";
        let virtualization = "enable host virtualization for Docker Sandboxes and retry";
        for (said, advice) in [
            ("ERROR: Not logged in", Some(login)),
            ("login required", Some(login)),
            ("401 Unauthorized", Some(login)),
            ("authentication failed", Some(login)),
            ("virtualization is off", Some(virtualization)),
            ("no hypervisor", Some(virtualization)),
            ("cannot open /dev/KVM", Some(virtualization)),
            ("i/o timeout", Some(NO_ANSWER)),
            ("it timed out", Some(NO_ANSWER)),
            ("quota exceeded", None),
            ("", None),
        ] {
            assert_eq!(guidance(said), advice, "{said}");
        }
    }

    #[test]
    fn an_error_for_programs_is_told_to_people() {
        let of = |text: &str| engine_error(text.as_bytes());
        let full = r#"{"error":{"code":"x","message":"no daemon","hint":"sbx daemon start"}}"#;
        let expected = EngineError {
            message: "no daemon".to_owned(),
            hint: Some("sbx daemon start".to_owned()),
        };
        assert_eq!(of(full), Some(expected.clone()));
        assert_eq!(of(&format!("warning: old\n{full}\n")), Some(expected));
        let bare = of(r#"{"error":{"message":"m","hint":""}}"#).unwrap();
        assert_eq!(bare.hint, None);
        for other in [
            "",
            "ERROR: plain {",
            "{}",
            r#"{"error":"text"}"#,
            r#"{"error":{"message":" "}}"#,
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_hint_is_told_apart_and_shown_to_whom_it_helps() {
        let (rest, hints) = without_hints("ERROR: no\n  hint: share less\nhint:\n\nmore\n");
        assert_eq!(rest.as_deref(), Some("ERROR: no\n\nmore"));
        assert_eq!(hints, ["share less"]);
        assert_eq!(without_hints("hint: x").0, None);
        for helps in [
            "share a project directory instead, e.g. `cd` to one",
            "mkdir -p /work",
            "sudo sysctl -w user.max_user_namespaces=28633",
            "sbx daemon start -d",
            "sbx policy reset --force",
            "set SBX_HOME=/some/directory",
        ] {
            assert!(is_for_anyone(helps), "{helps}");
        }
        for own in [
            "leave it out, or use `-t host`",
            "use --force",
            "use `--clone`, which comes later",
            "--detach-keys ctrl-p,ctrl-q",
        ] {
            assert!(!is_for_anyone(own), "{own}");
        }
    }

    #[test]
    fn a_flag_that_is_not_known_is_noticed() {
        assert!(is_unknown_flag("ERROR: unknown flag: --status-file"));
        assert!(is_unknown_flag("error: unexpected argument '--json' found"));
        assert!(!is_unknown_flag("no sandbox named 'flag'"));
    }

    #[test]
    fn a_diagnosis_is_read_by_name() {
        let found =
            diagnosis(br#"{"checks":[{"name":"V","status":"PASS","message":"m"},{"status":"x"}]}"#)
                .unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found["V"].status, "pass");
        assert_eq!(diagnosis(b"[]"), None);
    }

    proptest! {
        #[test]
        fn no_output_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = list(&bytes);
            let _ = diagnosis(&bytes);
            let _ = version(&String::from_utf8_lossy(&bytes));
        }
    }
}

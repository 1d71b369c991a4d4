//! Names of sandboxes. A [`SandboxName`] is also a directory name and a host name, so it can be nothing else
//! than what [`SandboxName::parse`] accepts.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest label that DNS allows, since the name is the host name inside.
const MAX_LENGTH: usize = 63;
const RESERVED: &str = "default";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxName(String);

#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    #[error("sandbox name `{0}` is too short: at least 2 characters")]
    TooShort(String),
    #[error("sandbox name `{0}` is too long: at most 63 characters")]
    TooLong(String),
    #[error("sandbox name `{0}` must start with a letter or a digit")]
    BadStart(String),
    #[error("sandbox name `{0}` must not end in `-` or `.`")]
    BadEnd(String),
    #[error(
        "sandbox name `{name}` contains {found:?}; letters, digits, `.` and `-` are allowed (ASCII)"
    )]
    BadCharacter { name: String, found: char },
    #[error("sandbox name `{0}` is reserved")]
    Reserved(String),
}

impl NameError {
    /// A name that is close to it and valid.
    pub fn hint(&self) -> String {
        let (Self::TooShort(name)
        | Self::TooLong(name)
        | Self::BadStart(name)
        | Self::BadEnd(name)
        | Self::BadCharacter { name, .. }
        | Self::Reserved(name)) = self;
        let close = allowed(name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()));
        match SandboxName::parse(&close) {
            Ok(close) => format!("try `{close}`"),
            Err(_) => "2 to 63 letters, digits, `.` and `-`, such as `my-box`".to_owned(),
        }
    }
}

impl SandboxName {
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let name = || text.to_owned();
        if let Some(found) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(NameError::BadCharacter {
                name: name(),
                found,
            });
        }
        if text.len() < 2 {
            return Err(NameError::TooShort(name()));
        }
        if text.len() > MAX_LENGTH {
            return Err(NameError::TooLong(name()));
        }
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(NameError::BadStart(name()));
        }
        if text.ends_with(['-', '.']) {
            return Err(NameError::BadEnd(name()));
        }
        if text == RESERVED {
            return Err(NameError::Reserved(name()));
        }
        Ok(Self(name()))
    }

    /// `<agent>-<directory>`, with every run of characters that a name cannot have turned into one `-`. A directory of
    /// which nothing would be left, such as one in another script, has a number for a name.
    pub fn derive(agent: &str, workspace: &Path) -> Result<Self, NameError> {
        let directory = workspace
            .file_name()
            .map(|name| name.to_string_lossy())
            .unwrap_or_default();
        if directory.contains(|c: char| c.is_ascii_alphanumeric()) || directory.is_empty() {
            Self::parse(&allowed(&format!("{agent}-{directory}")))
        } else {
            let number = fnv1a(directory.as_bytes());
            Self::parse(&allowed(&format!("{agent}-{number:08x}")))
        }
    }

    /// `<agent>-vm`, and `<agent>-vm-2` for the second. Agents have any name; what is left of a long one still ends so.
    pub fn of_vm(agent: &str, number: u32) -> Result<Self, NameError> {
        let end = match number {
            0 | 1 => "-vm".to_owned(),
            more => format!("-vm-{more}"),
        };
        let sanitised = allowed(agent.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()));
        let mut name = if sanitised.is_empty() {
            format!("{:08x}", fnv1a(agent.as_bytes()))
        } else {
            sanitised
        };
        name.truncate(MAX_LENGTH.saturating_sub(end.len()));
        let kept = name.trim_end_matches(['-', '.']).len();
        name.truncate(kept);
        Self::parse(&(name + &end))
    }

    /// `<agent>-<hex>`, from something that is different for every sandbox.
    pub fn without_workspace(agent: &str, unique: &str) -> Result<Self, NameError> {
        let number = fnv1a(unique.as_bytes());
        Self::parse(&allowed(&format!("{agent}-{number:08x}")))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Every run of characters that a name cannot have as one `-`; short enough, and with an end that is allowed.
fn allowed(text: &str) -> String {
    let mut name = String::with_capacity(MAX_LENGTH);
    for c in text.chars() {
        let c = if is_allowed(c) { c } else { '-' };
        if c == '-' && name.ends_with('-') {
            continue;
        }
        name.push(c);
    }
    name.truncate(MAX_LENGTH);
    let end = name.trim_end_matches(['-', '.']).len();
    name.truncate(end);
    name
}

/// The same for ever: it tells which sandbox belongs to a directory.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '.' || c == '-'
}

impl fmt::Display for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SandboxName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl From<SandboxName> for String {
    fn from(name: SandboxName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accepted_names() {
        for name in ["ab", "0x", "shell-my.project", "A-b.C", &"a".repeat(63)] {
            assert_eq!(SandboxName::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn hints_are_names() {
        let hint = |name: &str| SandboxName::parse(name).unwrap_err().hint();
        assert_eq!(hint("a_b"), "try `a-b`");
        assert_eq!(hint("_my box!"), "try `my-box`");
        assert_eq!(hint("ab."), "try `ab`");
        assert_eq!(hint(&"a".repeat(64)), format!("try `{}`", "a".repeat(63)));
        for name in ["", "x", "äö", "default"] {
            assert!(hint(name).ends_with("such as `my-box`"), "{name}");
        }
    }

    #[test]
    fn refused_names() {
        use NameError::*;
        let owned = str::to_owned;
        let bad = |name: &str, found| BadCharacter {
            name: name.to_owned(),
            found,
        };
        for (name, error) in [
            ("", TooShort(owned(""))),
            ("a", TooShort(owned("a"))),
            (&"a".repeat(64), TooLong("a".repeat(64))),
            ("-ab", BadStart(owned("-ab"))),
            ("..", BadStart(owned(".."))),
            ("ab-", BadEnd(owned("ab-"))),
            ("ab.", BadEnd(owned("ab."))),
            ("a_b", bad("a_b", '_')),
            ("a+b", bad("a+b", '+')),
            ("a/b", bad("a/b", '/')),
            ("ü1", bad("ü1", 'ü')),
            ("default", Reserved(owned("default"))),
        ] {
            assert_eq!(SandboxName::parse(name), Err(error), "{name}");
        }
    }

    #[test]
    fn derived_names_are_sanitised() {
        for (path, name) in [
            ("/w/my_project", "shell-my-project"),
            ("/w/a  b", "shell-a-b"),
            ("/w/_x_", "shell-x"),
            ("/w/größe", "shell-gr-e"),
            ("/w/.hidden", "shell-.hidden"),
            ("/w/___", "shell-045a3b34"),
            ("/w/日本", "shell-9f26ee51"),
            ("/", "shell"),
        ] {
            assert_eq!(
                SandboxName::derive("shell", Path::new(path))
                    .unwrap()
                    .as_str(),
                name,
                "{path}"
            );
        }
    }

    #[test]
    fn names_of_vms() {
        let of = |agent: &str, number| SandboxName::of_vm(agent, number).unwrap().0;
        assert_eq!(of("sandbox-agent", 1), "sandbox-agent-vm");
        assert_eq!(of("sandbox-agent", 2), "sandbox-agent-vm-2");
        assert_eq!(of("../../etc/x y", 1), "etc-x-y-vm");
        assert_eq!(of("default", 1), "default-vm");
        assert_eq!(of("日本", 1), "9f26ee51-vm");
        assert_eq!(of(&"a".repeat(200), 10).len(), 63);
        assert_eq!(
            of(&format!("{}-b", "a".repeat(59)), 1),
            format!("{}-vm", "a".repeat(59))
        );
    }

    proptest! {
        #[test]
        fn every_agent_gives_a_name(agent in ".{1,300}", number in 1..100_000u32) {
            SandboxName::of_vm(&agent, number).unwrap();
        }

        #[test]
        fn every_directory_gives_a_name(directory in "[^/\0]{1,300}") {
            let path = Path::new("/w").join(directory);
            SandboxName::derive("shell", &path).unwrap();
        }
    }
}

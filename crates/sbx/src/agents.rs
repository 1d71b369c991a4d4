//! The agents that a sandbox can be made for, and the command line that each starts with.

use std::ffi::OsString;

use sbx_engine::sandbox::agents::LATER;
use sbx_proto::OsBytes;

use crate::failure::{Failure, Kind};

pub(crate) use sbx_engine::sandbox::agents::SHELL;

/// An agent of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agent {
    Shell,
}

impl Agent {
    pub(crate) fn parse(name: &str) -> Result<Self, Failure> {
        if name == SHELL {
            return Ok(Self::Shell);
        }
        if LATER.contains(&name) {
            return Err(Failure::new(
                Kind::NotYet,
                format!("agent `{name}` comes with a later version of sbx"),
            )
            .hint("sbx run shell"));
        }
        Err(
            Failure::new(Kind::BadRequest, format!("unknown agent `{name}`")).hint(format!(
                "known agents: {SHELL}; with a later version: {}",
                LATER.join(", ")
            )),
        )
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shell => SHELL,
        }
    }

    /// The program with its default flags. What the user gives is appended when it begins with a flag, and
    /// stands in place of the default flags when it begins with a word.
    pub(crate) fn argv(self, user: &[OsString]) -> Vec<OsBytes> {
        let (program, defaults) = match self {
            Self::Shell => ("bash", ["-l"]),
        };
        let replaces = user
            .first()
            .is_some_and(|first| !first.as_encoded_bytes().starts_with(b"-"));
        let mut argv = vec![OsBytes::from(program)];
        if !replaces {
            argv.extend(defaults.map(OsBytes::from));
        }
        argv.extend(user.iter().map(|arg| OsBytes::from(arg.as_os_str())));
        argv
    }
}

/// Whether the word names an agent, of this version or a later one.
pub(crate) fn is_agent(name: &str) -> bool {
    name == SHELL || LATER.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(user: &[&str]) -> Vec<OsBytes> {
        let user: Vec<OsString> = user.iter().map(OsString::from).collect();
        Agent::Shell.argv(&user)
    }

    #[test]
    fn flags_are_appended_and_words_replace() {
        assert_eq!(argv(&[]), ["bash", "-l"].map(OsBytes::from));
        assert_eq!(
            argv(&["-c", "make test"]),
            ["bash", "-l", "-c", "make test"].map(OsBytes::from)
        );
        assert_eq!(
            argv(&["script.sh", "-x"]),
            ["bash", "script.sh", "-x"].map(OsBytes::from)
        );
    }

    #[test]
    fn later_agents_are_told_from_unknown_ones() {
        assert_eq!(Agent::parse("claude").unwrap_err().kind, Kind::NotYet);
        assert_eq!(Agent::parse("clod").unwrap_err().kind, Kind::BadRequest);
    }
}

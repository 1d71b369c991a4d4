//! The agents a sandbox can be created for, and the command line of each.

use std::ffi::OsString;

use sbx_engine::sandbox::agents::LATER;
use sbx_proto::OsBytes;

use crate::failure::{Failure, Kind};
use crate::text::one_line;

pub(crate) use sbx_engine::sandbox::agents::SHELL;

/// A supported agent.
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
                format!("agent `{name}` is not supported by this version of sbx"),
            )
            .hint("sbx run shell"));
        }
        Err(Failure::new(
            Kind::BadRequest,
            format!("unknown agent `{}`", one_line(name)),
        )
        .hint(format!(
            "supported agents: {SHELL}; planned: {}",
            LATER.join(", ")
        )))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shell => SHELL,
        }
    }

    /// The program with its default flags. The user's arguments are appended if the first one is a flag, and replace the
    /// default flags otherwise.
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

/// Whether the word names an agent, supported or planned.
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
    fn planned_agents_differ_from_unknown_ones() {
        assert_eq!(Agent::parse("claude").unwrap_err().kind, Kind::NotYet);
        assert_eq!(Agent::parse("clod").unwrap_err().kind, Kind::BadRequest);
    }
}

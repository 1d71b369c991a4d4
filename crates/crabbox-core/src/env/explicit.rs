//! Variables that the command line names one by one: `-e` and `--env-file`.

use super::forward::is_secret_shaped;
use crate::Failure;
use crate::command::is_identifier;

/// A variable.
#[derive(Clone, PartialEq, Eq)]
pub enum Named {
    /// With its value.
    Value(String, String),
    /// With the value that the caller has.
    OfCaller(String),
}

/// `NAME` or `NAME=VALUE`. A secret is refused on the command line, where other users and the shell's history see it.
pub fn parse_env_flag(text: &str) -> Result<Named, Failure> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if !is_identifier(name) {
        return Err(Failure::usage(format!(
            "-e: invalid variable name `{}`",
            crate::printable(name)
        )));
    }
    match value {
        None => Ok(Named::OfCaller(name.to_owned())),
        Some(_) if is_secret_shaped(name) => Err(Failure::usage(format!(
            "-e: the value of {name} would be on the command line, where other users see it"
        ))
        .hint(format!(
            "set {name} in your environment and use `-e {name}`"
        ))
        .hint("or put it into a file that only you can read and use --env-file FILE")),
        Some(value) => Ok(Named::Value(name.to_owned(), value.to_owned())),
    }
}

/// docker's format: `NAME=VALUE` with the value as it is to the end of the line, or `NAME`; comments and empty lines. The
/// error names the line, and never a value.
pub fn parse_env_file(bytes: &[u8]) -> Result<Vec<Named>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut all = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (line.trim_end(), None),
        };
        if !is_identifier(name) {
            return Err(format!("line {}: invalid variable name", index + 1));
        }
        all.push(match value {
            Some(value) => Named::Value(name.to_owned(), value.to_owned()),
            None => Named::OfCaller(name.to_owned()),
        });
    }
    Ok(all)
}

/// No value.
impl std::fmt::Debug for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Value(name, _) | Self::OfCaller(name)) = self;
        f.debug_tuple("Named").field(name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str, value: &str) -> Named {
        Named::Value(name.into(), value.into())
    }

    #[test]
    fn a_secret_value_on_the_command_line_is_refused() {
        assert_eq!(parse_env_flag("A=b=c").unwrap(), value("A", "b=c"));
        assert_eq!(parse_env_flag("A=").unwrap(), value("A", ""));
        let named = parse_env_flag("API_TOKEN").unwrap();
        assert_eq!(named, Named::OfCaller("API_TOKEN".into()));
        let failure = parse_env_flag("API_TOKEN=hunter2").unwrap_err();
        assert!(!format!("{failure:?}").contains("hunter2"), "{failure:?}");
        for wrong in ["", "=x", "1A=x", "A B", "A-B=c"] {
            assert!(parse_env_flag(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_is_read_as_docker_reads_it() {
        let text = "\u{feff}# c\n\nA=two words # and this\r\n  B=\"quoted\"\nC\nD_TOKEN=x\n";
        assert_eq!(
            parse_env_file(text.as_bytes()).unwrap(),
            [
                value("A", "two words # and this"),
                value("B", "\"quoted\""),
                Named::OfCaller("C".into()),
                value("D_TOKEN", "x"),
            ]
        );
        let wrong = parse_env_file(b"A=1\nB C=secret\n").unwrap_err();
        assert_eq!(wrong, "line 2: invalid variable name");
        assert!(parse_env_file(b"A=\xff").is_err());
    }
}

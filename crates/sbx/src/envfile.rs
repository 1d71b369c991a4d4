//! `--env` and `--env-file`, in docker's format.
//!
//! A line is `KEY=VALUE` with the value raw to the end of the line, or `KEY` alone, which copies the caller's
//! variable and is skipped when the caller has none. `#` begins a comment only at the start of a line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sbx_proto::OsBytes;

use crate::env::Env;
use crate::failure::{Failure, Kind};

/// More than the kernel allows as an environment (execve(2)).
const MAX_FILE: u64 = 16 << 20;

pub(crate) type Variables = BTreeMap<OsBytes, OsBytes>;

/// The flags that give a command its environment.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct EnvArgs {
    /// Set an environment variable, or copy it from the caller when no value is given (can be repeated)
    #[arg(short = 'e', long = "env", value_name = "KEY[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// Read environment variables from a file (can be repeated)
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
}

impl EnvArgs {
    /// A later file overrides an earlier one, and `--env` overrides every file. Call it once: a file may be a pipe.
    pub(crate) fn resolve(&self, caller: &Env) -> Result<Variables, Failure> {
        let mut variables = Variables::new();
        for path in &self.env_file {
            let bytes = read(path)?;
            let parsed =
                parse(&bytes, |key| caller.get(key).map(OsBytes::from)).map_err(|bad| {
                    failure(format!("{}:{}: {}", path.display(), bad.line, bad.message))
                })?;
            variables.extend(parsed);
        }
        for arg in &self.env {
            match split(arg.as_bytes()) {
                ([], _) => {
                    return Err(failure(format!(
                        "missing variable name in `--env {}`",
                        arg.display()
                    )));
                }
                (key, Some(value)) => {
                    variables.insert(OsBytes(key.to_vec()), OsBytes(value.to_vec()));
                }
                (key, None) => {
                    if let Some(value) = caller.get(OsStr::from_bytes(key)) {
                        variables.insert(OsBytes(key.to_vec()), value.into());
                    }
                }
            }
        }
        Ok(variables)
    }
}

/// The form in which the variables are stored in a sandbox's record: UTF-8 only.
pub(crate) fn as_text(variables: &Variables) -> Result<BTreeMap<String, String>, Failure> {
    let text = |bytes: &OsBytes| String::from_utf8(bytes.0.clone());
    let pairs = variables
        .iter()
        .map(|(key, value)| match (text(key), text(value)) {
            (Ok(key), Ok(value)) => Ok((key, value)),
            (Ok(key), Err(_)) => Err(failure(format!(
                "the value of variable `{key}` is not UTF-8 and cannot be stored in a sandbox"
            ))),
            (Err(_), _) => Err(failure(
                "a variable's name is not UTF-8 and cannot be stored in a sandbox",
            )),
        });
    pairs.collect()
}

#[derive(Debug, PartialEq, Eq)]
struct BadLine {
    line: usize,
    message: String,
}

/// The variables of one file, in order.
fn parse(
    bytes: &[u8],
    caller: impl Fn(&OsStr) -> Option<OsBytes>,
) -> Result<Vec<(OsBytes, OsBytes)>, BadLine> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut variables = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let bad = |message: String| BadLine {
            line: index + 1,
            message,
        };
        let text = line.trim_ascii_start();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        if text.contains(&0) {
            return Err(bad("NUL byte in line".to_owned()));
        }
        let (key, value) = split(text);
        if key.is_empty() {
            return Err(bad("missing variable name before `=`".to_owned()));
        }
        if key.iter().any(u8::is_ascii_whitespace) {
            return Err(bad(format!(
                "variable name `{}` contains whitespace",
                key.escape_ascii()
            )));
        }
        let value = match value {
            Some(value) => Some(OsBytes(value.to_vec())),
            None => caller(OsStr::from_bytes(key)),
        };
        variables.extend(value.map(|value| (OsBytes(key.to_vec()), value)));
    }
    Ok(variables)
}

fn split(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|byte| *byte == b'=') {
        Some(at) => {
            let (key, rest) = text.split_at(at);
            (key, rest.get(1..))
        }
        None => (text, None),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let fail = |error: std::io::Error| {
        failure(format!(
            "cannot read environment file `{}`: {error}",
            path.display()
        ))
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .map_err(fail)?
        .take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(failure(format!(
            "environment file `{}` is larger than 16 MiB",
            path.display()
        )));
    }
    Ok(bytes)
}

fn failure(message: impl Into<String>) -> Failure {
    Failure::new(Kind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<(String, String)>, (usize, String)> {
        let text_of = |bytes: OsBytes| String::from_utf8(bytes.0).unwrap();
        parse(text.as_bytes(), |key| (key == "HAVE").then(|| "it".into()))
            .map(|all| {
                all.into_iter()
                    .map(|(key, value)| (text_of(key), text_of(value)))
                    .collect()
            })
            .map_err(|bad| (bad.line, bad.message))
    }

    #[test]
    fn values_are_raw() {
        let text =
            "A=1\n# comment\n\n  B= \"two\" # not a comment \nC=\nD=a=b\nHAVE\nMISSING\nE=x\r";
        let expected = [
            ("A", "1"),
            ("B", " \"two\" # not a comment "),
            ("C", ""),
            ("D", "a=b"),
            ("HAVE", "it"),
            ("E", "x\r"),
        ];
        assert_eq!(
            parsed(text).unwrap(),
            expected.map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn bad_lines_are_named_by_number() {
        assert_eq!(parsed("A=1\n=x\n").unwrap_err().0, 2);
        assert_eq!(parsed("\n\nA B=1").unwrap_err().0, 3);
        assert_eq!(parsed("export A=1").unwrap_err().0, 1);
        assert_eq!(parsed("A=\0").unwrap_err().0, 1);
    }

    #[test]
    fn flags_beat_files_and_later_files_beat_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), text.as_bytes())
                .unwrap();
            path
        };
        let args = EnvArgs {
            env: vec!["C=flag".into(), "COPIED".into(), "ABSENT".into()],
            env_file: vec![file("one", "A=1\nB=1\nC=1\n"), file("two", "B=2\nC=2\n")],
        };
        let resolved = args.resolve(&Env::of(&[("COPIED", "yes")])).unwrap();
        let resolved = as_text(&resolved).unwrap();
        let expected = [("A", "1"), ("B", "2"), ("C", "flag"), ("COPIED", "yes")];
        assert_eq!(
            resolved,
            expected
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into()
        );
        let nameless = EnvArgs {
            env: vec!["=x".into()],
            env_file: vec![],
        };
        assert!(nameless.resolve(&Env::default()).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(
            variables in proptest::collection::vec(
                ("[A-Za-z_][A-Za-z0-9_.-]{0,10}", proptest::collection::vec(any::<u8>(), 0..40)),
                0..10,
            )
        ) {
            let mut file = Vec::new();
            let mut expected = Vec::new();
            for (key, mut value) in variables {
                value.retain(|byte| !matches!(byte, 0 | b'\n'));
                file.extend_from_slice(key.as_bytes());
                file.push(b'=');
                file.extend_from_slice(&value);
                file.push(b'\n');
                expected.push((OsBytes::from(key), OsBytes(value)));
            }
            prop_assert_eq!(parse(&file, |_| None).unwrap(), expected);
        }

        #[test]
        fn any_file_is_parsed_or_refused_with_a_line_that_exists(bytes: Vec<u8>) {
            if let Err(bad) = parse(&bytes, |_| None) {
                let lines = bytes.split(|byte| *byte == b'\n').count();
                prop_assert!((1..=lines).contains(&bad.line));
            }
        }
    }
}

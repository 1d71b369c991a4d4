//! Child processes: the programs of providers, and git.
//!
//! A [`Tool`] says what to start. [`Tool::capture`] takes its whole (bounded) output, [`Tool::stream`] passes it on as
//! it comes. Both end the child when the time is over or the user cancels, and neither waits for ever for
//! grandchildren that keep its pipes open. "Could not be started" is a variant of its own and never guessed from
//! text, and no error shows more of the command line than the verb unless the caller says so.

mod cancel;
mod error;
mod outcome;
mod pass;
mod pump;
mod relay;
mod run;
mod status_memfd;

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cancel::{Cancel, CleanupGuard, Reason};
pub use error::{ProcessError, StartKind, Whose};
pub use outcome::{Captured, End, Streamed};
pub use pass::Listener;
pub use relay::{Relay, RelayWriter};
pub use run::OutputComplete;
pub use status_memfd::StatusMemfd;

use crate::command;

/// What a child reads.
pub enum Stdin {
    Null,
    /// Ours. A terminal makes the child part of our process group, or it would be stopped when it reads.
    Inherit,
    Bytes(Vec<u8>),
    /// The child gets the file itself: nothing is copied.
    File(File),
    /// Copied by a thread until the reader or the child ends.
    Reader(Box<dyn Read + Send>),
}

/// Where a child's output goes.
pub enum Output {
    /// To ours, with no copy in between.
    Inherit,
    Null,
    /// Written as it comes and flushed after each piece. When the writer fails, the child's pipe is closed.
    To(Box<dyn Write + Send>),
    /// To a descriptor of ours. The listener hears the beginning and the end.
    Pass(File, Box<dyn Listener>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What a child may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub timeout: Option<Duration>,
    /// How long a child may take to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
    /// The most that is captured of each stream.
    pub output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: None,
            grace: Duration::from_secs(2),
            output: 8 << 20,
        }
    }
}

impl Limits {
    pub fn within(timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..Self::default()
        }
    }
}

/// A program with its arguments, ready to be started once.
pub struct Tool {
    program: PathBuf,
    args: Vec<OsString>,
    /// In order; `None` removes the variable.
    env: Vec<(OsString, Option<OsString>)>,
    stdin: Stdin,
    cwd: Option<PathBuf>,
    shown: Shown,
    heard: Option<Heard>,
}

/// Hears each line of stderr as it comes.
type Heard = Box<dyn FnMut(&str) + Send>;

/// What errors show of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Verb,
    Everything,
}

impl Tool {
    /// A name without a slash is looked up in PATH.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            stdin: Stdin::Null,
            cwd: None,
            shown: Shown::Verb,
            heard: None,
        }
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    #[must_use]
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    #[must_use]
    pub fn cwd(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Tells of each line of stderr as it comes, besides capturing it.
    #[must_use]
    pub fn hear_stderr(mut self, heard: impl FnMut(&str) + Send + 'static) -> Self {
        self.heard = Some(Box::new(heard));
        self
    }

    /// Lets errors show all arguments. Only for command lines that hold nothing of the user's.
    #[must_use]
    pub fn show_args(mut self) -> Self {
        self.shown = Shown::Everything;
        self
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// How errors call this: the program and its verb.
    pub fn label(&self) -> String {
        let name = self.program.file_name().unwrap_or(self.program.as_os_str());
        let mut words = vec![name.to_string_lossy().into_owned()];
        match self.shown {
            Shown::Everything => words.extend(
                self.args
                    .iter()
                    .map(|arg| arg.to_string_lossy().into_owned()),
            ),
            Shown::Verb => words.extend(self.args.first().and_then(|arg| verb(arg))),
        }
        command::display(&words)
    }
}

/// Only a plain word is a verb: an option may carry a value.
fn verb(arg: &OsStr) -> Option<String> {
    let text = arg.to_str()?;
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    (plain && !text.is_empty() && !text.starts_with('-')).then(|| text.to_owned())
}

impl Stdin {
    /// For a provider that sends it over a connection, or puts something before it. Reads block: use a thread.
    pub fn into_reader(self) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Null => Box::new(io::empty()),
            Self::Inherit => Box::new(File::from(io::stdin().as_fd().try_clone_to_owned()?)),
            Self::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            Self::File(file) => Box::new(file),
            Self::Reader(reader) => reader,
        })
    }
}

/// No more than errors show.
impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tool").field(&self.label()).finish()
    }
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "Null",
            Self::Inherit => "Inherit",
            Self::Bytes(_) => "Bytes",
            Self::File(_) => "File",
            Self::Reader(_) => "Reader",
        })
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inherit => "Inherit",
            Self::Null => "Null",
            Self::To(_) => "To",
            Self::Pass(_, _) => "Pass",
        })
    }
}

impl Stream {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

//! Everything that is printed goes through here: data to stdout, all else to stderr.
//!
//! A reader that has gone away ends the command quietly; a closed stderr is never an error.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::failure::{Failure, Kind};
use crate::text;

/// What a shell reports for a program that SIGPIPE ended.
const BROKEN_PIPE: u8 = 141;

/// What nobody wonders about.
const A_MOMENT: Duration = Duration::from_secs(1);

/// How failures are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorStyle {
    Text,
    Json,
}

#[derive(Debug)]
pub(crate) struct Ui {
    pub(crate) errors: ErrorStyle,
    debug: bool,
    colour: bool,
}

impl Ui {
    pub(crate) fn new(errors: ErrorStyle, debug: bool, no_colour: bool) -> Self {
        Self {
            errors,
            debug,
            colour: !no_colour,
        }
    }

    /// Data for whoever asked: written at once and flushed.
    pub(crate) fn data(&self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes.as_ref())
            .and_then(|()| out.flush())
            .map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => Failure::quiet(BROKEN_PIPE),
                _ => Failure::failed(format!("cannot write to stdout: {error}")),
            })
    }

    pub(crate) fn json(&self, value: &impl serde::Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        text.push('\n');
        self.data(text)
    }

    /// A line for people, beside the data. It may name what a sandbox has made.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        self.stderr(format!("{}\n", text::lines(text.as_ref())).as_bytes());
    }

    /// On one line.
    pub(crate) fn warning(&self, text: impl AsRef<str>) {
        self.note(format!("warning: {}", text::one_line(text.as_ref())));
    }

    /// Progress that only a watching person cares for.
    pub(crate) fn progress(&self, text: impl AsRef<str>) {
        if self.debug || self.watched() {
            self.note(text);
        }
    }

    /// Does the work, and says to a watching person what takes so long when it takes longer than a moment.
    pub(crate) fn meanwhile<T>(&self, text: &str, work: impl FnOnce() -> T) -> T {
        if !self.watched() {
            return work();
        }
        unless_done_within(A_MOMENT, || self.note(text), work)
    }

    pub(crate) fn debug(&self, text: impl FnOnce() -> String) {
        if self.debug {
            self.note(format!("debug: {}", text()));
        }
    }

    /// A person looks at stderr.
    pub(crate) fn watched(&self) -> bool {
        io::stderr().is_terminal()
    }

    /// The heading in bold on a terminal, unless colour is not wanted.
    pub(crate) fn heading(&self, text: &str) -> String {
        if self.colour && io::stdout().is_terminal() {
            format!("\u{1b}[1m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn failure(&self, failure: &Failure) {
        if matches!(failure.kind, Kind::Quiet(_)) {
            return;
        }
        match self.errors {
            ErrorStyle::Json => self.note(failure.to_json().to_string()),
            ErrorStyle::Text => {
                self.note(format!("error: {}", failure.message));
                if let Some(hint) = &failure.hint {
                    self.note(format!("hint: {hint}"));
                }
            }
        }
    }

    /// Bytes of a sandbox's stderr, or of a finished message. Nobody can be told when this fails.
    pub(crate) fn stderr(&self, bytes: &[u8]) {
        drop(io::stderr().lock().write_all(bytes));
    }

    /// Asks a person whether to go on, unless that is said already; `what` needs to be agreed to. Only an explicit yes is
    /// one, and where nobody can be asked there is none.
    pub(crate) fn agreed(&self, force: bool, what: &str, question: &str) -> Result<(), Failure> {
        if force {
            return Ok(());
        }
        if !self.interactive() {
            let message =
                format!("{what} needs a confirmation, and there is no terminal to ask on");
            return Err(Failure::new(Kind::BadRequest, message).hint("use --force"));
        }
        self.stderr(format!("{question} [y/N] ").as_bytes());
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        match (read, answer.trim()) {
            (Ok(_), "y" | "Y" | "yes" | "Yes") => Ok(()),
            _ => Err(Failure::failed(format!(
                "{what}: not confirmed; nothing was removed"
            ))),
        }
    }

    /// Somebody can be asked.
    fn interactive(&self) -> bool {
        io::stdin().is_terminal() && self.watched()
    }
}

fn unless_done_within<T>(
    limit: Duration,
    say: impl FnOnce() + Send,
    work: impl FnOnce() -> T,
) -> T {
    let (done, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let wait = move || {
            if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        };
        // Without a thread nothing is said.
        drop(thread::Builder::new().spawn_scoped(scope, wait));
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_long_is_talked_about() {
        let (said, hear) = mpsc::channel();
        let say = said.clone();
        let told = unless_done_within(
            Duration::ZERO,
            move || say.send("slow").unwrap(),
            || hear.recv().unwrap(),
        );
        assert_eq!(told, "slow");
        unless_done_within(
            Duration::from_secs(3600),
            move || said.send("quick").unwrap(),
            || (),
        );
        assert!(hear.recv().is_err());
    }
}

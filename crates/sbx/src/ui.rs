//! All output: data to stdout, everything else to stderr.
//!
//! EPIPE on stdout ends the command with 141 and no message, as SIGPIPE would; errors of writing to stderr are ignored. Text
//! that may come from a sandbox is escaped before it reaches a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::failure::{Failure, Kind};
use crate::text;

/// What a shell reports for a program that was killed by SIGPIPE.
const BROKEN_PIPE: u8 = 141;

/// Before a progress message is shown.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

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

    /// Writes data to stdout and flushes it.
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

    /// A line for users, on stderr. Escaped, because it may contain names that come from a sandbox.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        self.stderr(format!("{}\n", text::lines(text.as_ref())).as_bytes());
    }

    /// A warning on one line.
    pub(crate) fn warning(&self, text: impl AsRef<str>) {
        self.note(format!("warning: {}", text::one_line(text.as_ref())));
    }

    /// Progress, shown on a terminal or with `--debug`.
    pub(crate) fn progress(&self, text: impl AsRef<str>) {
        if self.debug || self.watched() {
            self.note(text);
        }
    }

    /// Does the work, and shows `text` on a terminal when it takes longer than [`PROGRESS_DELAY`].
    pub(crate) fn with_progress<T>(&self, text: &str, work: impl FnOnce() -> T) -> T {
        if !self.watched() {
            return work();
        }
        notify_if_slower_than(PROGRESS_DELAY, || self.note(text), work)
    }

    pub(crate) fn debug(&self, text: impl FnOnce() -> String) {
        if self.debug {
            self.note(format!("debug: {}", text()));
        }
    }

    /// Whether stderr is a terminal.
    pub(crate) fn watched(&self) -> bool {
        io::stderr().is_terminal()
    }

    /// The heading, in bold on a terminal unless colour is disabled.
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
            // The error is the last line: the one that is left when output is cut off at the top.
            ErrorStyle::Text => {
                if let Some(hint) = &failure.hint {
                    self.note(format!("hint: {hint}"));
                }
                self.note(format!("error: {}", failure.message));
            }
        }
    }

    /// Raw bytes for stderr. A failure cannot be reported anywhere and is ignored.
    pub(crate) fn stderr(&self, bytes: &[u8]) {
        drop(io::stderr().lock().write_all(bytes));
    }

    /// Asks for confirmation of `what`, unless `force` is set. Only an explicit yes counts; without a terminal the answer
    /// is an error.
    pub(crate) fn confirm(&self, force: bool, what: &str, question: &str) -> Result<(), Failure> {
        if force {
            return Ok(());
        }
        if !self.interactive() {
            let message = format!("cannot confirm {what}: stdin or stderr is not a terminal");
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

    /// The answer to a question, without spaces around it; none where it cannot be asked or is not answered.
    pub(crate) fn ask(&self, question: &str) -> Option<String> {
        if !self.interactive() {
            return None;
        }
        self.stderr(format!("{} ", text::one_line(question)).as_bytes());
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer).ok()?;
        (read > 0).then(|| answer.trim().to_owned())
    }

    /// Whether a question can be asked and answered.
    fn interactive(&self) -> bool {
        io::stdin().is_terminal() && self.watched()
    }
}

fn notify_if_slower_than<T>(
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
        // If the thread cannot be started, the message is left out.
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
    fn only_slow_work_shows_the_message() {
        let (said, hear) = mpsc::channel();
        let say = said.clone();
        let told = notify_if_slower_than(
            Duration::ZERO,
            move || say.send("slow").unwrap(),
            || hear.recv().unwrap(),
        );
        assert_eq!(told, "slow");
        notify_if_slower_than(
            Duration::from_secs(3600),
            move || said.send("quick").unwrap(),
            || (),
        );
        assert!(hear.recv().is_err());
    }
}

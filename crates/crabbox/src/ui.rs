//! The only place that prints. Data goes to stdout, everything else to stderr.

mod cursor;
mod slow;
pub(crate) mod table;
mod verbosity;

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crabbox_core::history::RunLog;
use crabbox_core::lifecycle::Report;
use crabbox_core::redact::Redactor;
use crabbox_core::{Code, Failure, printable_lines};
use serde::Serialize;

pub(crate) use cursor::Cursor;
pub(crate) use slow::SlowNotice;
pub(crate) use verbosity::{Verbosity, Wanted};

/// Before a person at a terminal is told what takes so long.
const SLOW_NOTICE_DELAY: Duration = Duration::from_millis(500);

/// How failures are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Json,
}

#[derive(Debug)]
pub(crate) struct Ui {
    style: Cell<Style>,
    verbosity: Cell<Verbosity>,
    lines: Lines,
}

/// Writes whole lines for people, from any thread.
#[derive(Debug, Clone, Default)]
struct Lines {
    state: Arc<Mutex<LineState>>,
    cursor: Cursor,
}

#[derive(Debug, Default)]
struct LineState {
    redactor: Redactor,
    /// Where lines go once no terminal is left to read them.
    log: Option<RunLog>,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clean(&self, text: &str) -> String {
        self.lock().redactor.clean(text).into_owned()
    }

    /// It may quote what a repository or another program says.
    fn write(&self, line: &str) {
        self.write_raw(&printable_lines(&self.clean(line)));
    }

    fn write_raw(&self, line: &str) {
        match &self.lock().log {
            Some(log) => log.append(format!("{line}\n").as_bytes()),
            None => {
                // Output of a command may have ended within a line.
                let before = match self.cursor.take_line() {
                    true => "\n",
                    false => "",
                };
                let text = format!("{before}{line}\n");
                // A closed stderr cannot be reported anywhere.
                drop(io::stderr().lock().write_all(text.as_bytes()));
            }
        }
    }
}

impl Ui {
    pub(crate) fn new(style: Style) -> Self {
        Self {
            style: Cell::new(style),
            verbosity: Cell::new(Verbosity::Full),
            lines: Lines::default(),
        }
    }

    pub(crate) fn set_verbosity(&self, wanted: Wanted) {
        let chosen = Verbosity::choose(wanted, io::stderr().is_terminal());
        self.verbosity.set(chosen);
    }

    pub(crate) fn verbosity(&self) -> Verbosity {
        self.verbosity.get()
    }

    /// Follows what a command writes to the terminal that our lines go to.
    pub(crate) fn cursor(&self) -> Cursor {
        self.lines.cursor.clone()
    }

    /// Whether data on stdout is read by a person, who wants headers and sentences.
    pub(crate) fn data_is_for_people(&self, verbose: bool) -> bool {
        !verbose && self.style.get() == Style::Text && io::stdout().is_terminal()
    }

    /// From now on what is said goes to the log of the run: the terminal belongs to other commands.
    pub(crate) fn continue_in(&self, log: RunLog) {
        self.lines.lock().log = Some(log);
    }

    /// Said to a person at a terminal if the work takes long.
    pub(crate) fn notice_if_slow(&self, line: String) -> SlowNotice {
        if self.verbosity() != Verbosity::Brief {
            return SlowNotice::none();
        }
        let lines = self.lines.clone();
        SlowNotice::after(SLOW_NOTICE_DELAY, move || lines.write(&line))
    }

    /// A function that says lines, for other threads.
    pub(crate) fn line_writer(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (lines, verbosity) = (self.lines.clone(), self.verbosity());
        move |line: &str| {
            if verbosity != Verbosity::Quiet {
                lines.write(line);
            }
        }
    }

    /// A line for people only.
    pub(crate) fn brief(&self, line: &str) {
        if self.verbosity() == Verbosity::Brief {
            self.say(line);
        }
    }

    pub(crate) fn set_style(&self, style: Style) {
        self.style.set(style);
    }

    /// From now on these values are not shown.
    pub(crate) fn hide(&self, redactor: Redactor) {
        self.lines.lock().redactor = redactor;
    }

    pub(crate) fn data(&self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Data. A closed pipe (EPIPE) is not a failure.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::new(Code::Local, "cannot write to stdout").because(&error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        // One value per line for programs, indented for people.
        let text = match io::stdout().is_terminal() {
            true => serde_json::to_string_pretty(value),
            false => serde_json::to_string(value),
        };
        let text =
            text.map_err(|error| Failure::new(Code::Local, "cannot write JSON").because(&error))?;
        self.data(&format!("{text}\n"))
    }

    /// How long it took, as one line.
    pub(crate) fn timing(&self, timing: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(timing).map_err(|error| {
            Failure::new(Code::Local, "cannot write the timing").because(&error)
        })?;
        self.lines.write(&line);
        Ok(())
    }

    /// A line about what is going on. It may quote what a repository or another program says.
    pub(crate) fn say(&self, line: &str) {
        if self.verbosity() != Verbosity::Quiet {
            self.lines.write(line);
        }
    }

    fn clean(&self, text: &str) -> String {
        self.lines.clean(text)
    }

    /// The last words when it is the command that failed, and not us.
    pub(crate) fn command_exit(&self, line: &str, code: u8, hints: Vec<String>) {
        let mut failure = Failure::new(Code::CommandExit, line);
        failure.hints = hints;
        match self.style.get() {
            Style::Json => self.print_json_failure(&failure, code),
            // The exit code says it.
            Style::Text if self.verbosity() == Verbosity::Quiet => {}
            Style::Text => self.failure(&failure),
        }
    }

    fn print_json_failure(&self, failure: &Failure, exit_code: u8) {
        let all = |texts: &[String]| texts.iter().map(|text| self.clean(text)).collect();
        let error = JsonFailure {
            code: failure.code,
            exit_code,
            message: self.clean(&failure.message),
            causes: all(&failure.causes),
            also: all(&failure.also),
            hints: all(&failure.hints),
            snippet: failure.snippet.as_ref().map(|text| self.clean(text)),
        };
        // It is texts and a number: nothing of it cannot be written.
        let text = serde_json::to_string(&Document { error }).unwrap_or_default();
        self.lines.write_raw(&text);
    }

    /// The last words: what it is about and hints first, the cause last and on one line.
    pub(crate) fn failure(&self, failure: &Failure) {
        match self.style.get() {
            Style::Json => self.print_json_failure(failure, failure.exit_code()),
            Style::Text => {
                let say = |line: &str| self.lines.write(line);
                if let Some(snippet) = &failure.snippet {
                    say(snippet);
                }
                for hint in &failure.hints {
                    say(&format!("hint: {hint}"));
                }
                say(&format!("error: {}", one_line(&failure.to_string())));
            }
        }
    }
}

/// A line of our own words, from any thread.
pub(crate) fn notice(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// What another program said on several lines would end with any of them, and not with the cause.
pub(crate) fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

/// A failure, as it is told to programs.
#[derive(Debug, Serialize)]
struct Document {
    error: JsonFailure,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonFailure {
    code: Code,
    exit_code: u8,
    message: String,
    causes: Vec<String>,
    also: Vec<String>,
    hints: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snippet: Option<String>,
}

impl Report for Ui {
    fn line(&self, line: &str) {
        self.say(line);
    }

    fn fact(&self, line: &str) {
        if self.verbosity() == Verbosity::Full {
            self.say(line);
        }
    }

    fn progress(&self, line: &str) {
        if io::stderr().is_terminal() {
            self.say(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_are_told_as_one() {
        assert_eq!(one_line("one"), "one");
        assert_eq!(
            one_line("`x` exited 1: a:\n\n  b\t\r\nc\n"),
            "`x` exited 1: a: b c"
        );
    }
}

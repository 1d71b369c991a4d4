//! The only place that prints. Data goes to stdout, everything else to stderr.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal, Write};

use crabbox_core::lifecycle::Report;
use crabbox_core::redact::Redactor;
use crabbox_core::{Code, Failure, printable_lines};
use serde::Serialize;

/// How failures are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Json,
}

#[derive(Debug)]
pub(crate) struct Ui {
    style: Cell<Style>,
    redactor: RefCell<Redactor>,
}

impl Ui {
    pub(crate) fn new(style: Style) -> Self {
        Self {
            style: Cell::new(style),
            redactor: RefCell::new(Redactor::default()),
        }
    }

    pub(crate) fn set_style(&self, style: Style) {
        self.style.set(style);
    }

    /// From now on these values are not shown.
    pub(crate) fn hide(&self, redactor: Redactor) {
        *self.redactor.borrow_mut() = redactor;
    }

    pub(crate) fn data(&self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Data. A reader that has gone away is no failure of ours.
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
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::new(Code::Local, "cannot write JSON").because(&error))?;
        self.data(&format!("{text}\n"))
    }

    /// How long it took, as one line.
    pub(crate) fn timing(&self, timing: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(timing).map_err(|error| {
            Failure::new(Code::Local, "cannot write the timing").because(&error)
        })?;
        self.say(&line);
        Ok(())
    }

    /// A line about what is going on. It may quote what a repository or another program says.
    pub(crate) fn say(&self, line: &str) {
        let line = printable_lines(&self.clean(line));
        // A closed stderr cannot be reported anywhere.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    fn clean(&self, text: &str) -> String {
        self.redactor.borrow().clean(text).into_owned()
    }

    /// The last words when it is the command that failed, and not us.
    pub(crate) fn command_exit(&self, line: &str, code: u8, hints: Vec<String>) {
        let mut failure = Failure::new(Code::CommandExit, line);
        failure.hints = hints;
        match self.style.get() {
            Style::Json => self.print_json_failure(&failure, code),
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
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// The last words: what it is about and hints first, the cause last and on one line.
    pub(crate) fn failure(&self, failure: &Failure) {
        match self.style.get() {
            Style::Json => self.print_json_failure(failure, failure.code.exit_code()),
            Style::Text => {
                if let Some(snippet) = &failure.snippet {
                    self.say(snippet);
                }
                for hint in &failure.hints {
                    self.say(&format!("hint: {hint}"));
                }
                self.say(&format!("error: {}", one_line(&failure.to_string())));
            }
        }
    }
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

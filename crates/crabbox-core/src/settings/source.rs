//! A configuration file as people see it: which one, and the place in it that an error is about.
//!
//! What is in a repository's file is untrusted text: its control characters never reach the terminal.

use std::path::{Path, PathBuf};

use crate::failure::{Code, Failure};
pub(super) use crate::printable::printable;
use crate::printable::unsafe_to_print;

/// A file that the caller has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// As it is shown.
    pub path: PathBuf,
    /// With every link resolved: trust is recorded for this path.
    pub canonical: PathBuf,
    pub bytes: Vec<u8>,
}

/// A place in a file. Both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: u64,
    pub(super) column: u64,
    /// How many characters are meant.
    pub(super) width: u64,
}

/// How much of the line an error shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    Line,
    /// Up to the end of the marked part: what follows a key that we do not know may be a credential.
    UpToMark,
}

/// The text of a file with its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

/// A shown line is cut to this many characters before and after the marked place.
const CONTEXT: usize = 60;

impl Source<'_> {
    pub(super) fn failure(&self, at: Position, show: Show, what: &str) -> Failure {
        let mut failure = Failure::new(Code::Config, format!("{}: {what}", self.place(at)));
        failure.snippet = self.snippet(at, show).map(Into::into);
        failure
    }

    /// What an error about this place begins with.
    pub(super) fn place(&self, at: Position) -> String {
        format!(
            "parse config {}: line {} column {}",
            self.path.display(),
            at.line,
            at.column
        )
    }

    pub(super) fn unknown_key(&self, at: Position, path: &str, meant: Option<&str>) -> Failure {
        let path = printable(path);
        let what = match meant {
            Some(meant) => format!("unknown key `{path}`; did you mean `{meant}`?"),
            None => format!("unknown key `{path}`"),
        };
        self.failure(at, Show::UpToMark, &what)
    }

    /// The line and a mark under the place.
    pub(super) fn snippet(&self, at: Position, show: Show) -> Option<String> {
        let line = self.text.lines().nth(index(at.line)?)?;
        let start = index(at.column)?;
        let width = usize::try_from(at.width).ok()?.clamp(1, CONTEXT);
        let from = start.saturating_sub(CONTEXT);
        let end = match show {
            Show::Line => start.saturating_add(CONTEXT),
            Show::UpToMark => start.saturating_add(width),
        };
        let shown: Vec<char> = line.chars().skip(from).take(end - from).collect();
        let before: String = shown.iter().take(start - from).map(|c| plain(*c)).collect();
        let marked: String = shown.iter().skip(start - from).map(|c| plain(*c)).collect();
        let more = match line.chars().nth(end) {
            Some(_) => " ...",
            None => "",
        };
        let number = at.line.to_string();
        let margin = " ".repeat(number.len());
        let indent = " ".repeat(before.chars().count());
        let carets = "^".repeat(width.min(marked.chars().count().max(1)));
        Some(format!(
            "{margin} |\n{number} | {before}{marked}{more}\n{margin} | {indent}{carets}"
        ))
    }
}

/// From a number that counts from 1.
fn index(number: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

fn plain(c: char) -> char {
    match c {
        '\t' => ' ',
        c if unsafe_to_print(c) => '\u{fffd}',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, at: Position, show: Show) -> String {
        let path = Path::new("/r/crabbox.yaml");
        let failure = Source { path, text }.failure(at, show, "no");
        match failure.snippet {
            Some(snippet) => format!("{}\n{snippet}", failure.message),
            None => failure.message,
        }
    }

    #[test]
    fn the_place_is_marked_and_a_value_can_be_kept_back() {
        let at = Position {
            line: 2,
            column: 3,
            width: 5,
        };
        let text = "a:\n  token: s3cret\n";
        assert_eq!(
            shown(text, at, Show::Line),
            "parse config /r/crabbox.yaml: line 2 column 3: no\n  |\n2 |   token: s3cret\n  |   ^^^^^"
        );
        assert_eq!(
            shown(text, at, Show::UpToMark),
            "parse config /r/crabbox.yaml: line 2 column 3: no\n  |\n2 |   token ...\n  |   ^^^^^"
        );
    }

    #[test]
    fn long_lines_and_control_characters_are_tamed() {
        let text = format!("{}\u{1b}[31m{}", "x".repeat(500), "y".repeat(500));
        let at = Position {
            line: 1,
            column: 501,
            width: 400,
        };
        let message = shown(&text, at, Show::Line);
        assert!(
            !message.contains('\u{1b}') && message.len() < 400,
            "{message}"
        );
        assert_eq!(
            printable("a\u{1b}[0m\u{202e}b\n"),
            "a\\u{1b}[0m\\u{202e}b\\n"
        );
    }

    #[test]
    fn a_place_that_does_not_exist_shows_nothing() {
        let at = Position {
            line: 9,
            column: 0,
            width: 0,
        };
        assert_eq!(
            shown("a", at, Show::Line),
            "parse config /r/crabbox.yaml: line 9 column 0: no"
        );
    }
}

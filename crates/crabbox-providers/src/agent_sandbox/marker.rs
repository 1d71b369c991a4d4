//! The markers in the output of a command: found, taken out, and nothing else changed.
//!
//! A marker may arrive in pieces, so the longest end of the output that could be its beginning is held back until the next
//! bytes decide. On stderr kubectl's own lines stand before the first marker and after the last one: they are kept apart
//! from what the command wrote.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crabbox_core::process::OutputComplete;

use super::kubectl::COMMAND_ENDED;
use super::script::WRONG_POD;

/// The most that is kept of what kubectl says before the command starts, or after it ended.
const MAX_MESSAGES: usize = 64 << 10;

/// What the markers have told so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) started: bool,
    pub(super) code: Option<i32>,
    pub(super) stdout_ended: bool,
    /// What kubectl itself said.
    pub(super) words: Vec<u8>,
}

/// Shared by both streams.
#[derive(Debug, Clone)]
pub(super) struct Markers {
    seen: Arc<Mutex<Seen>>,
    /// When both streams have ended, kubectl need not be waited for.
    enough: OutputComplete,
}

impl Markers {
    pub(super) fn new(enough: &OutputComplete) -> Self {
        Self {
            seen: Arc::default(),
            enough: enough.clone(),
        }
    }

    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.lock();
        change(&mut seen);
        if seen.stdout_ended && seen.code.is_some() {
            self.enough.set();
        }
    }

    /// The command's stdout, without its end marker.
    pub(super) fn stdout<W: Write>(&self, nonce: &str, to: W) -> Stdout<W> {
        let markers = self.clone();
        Stdout {
            filter: Filter::new(nonce),
            to,
            markers,
            ended: false,
        }
    }

    /// The command's stderr: between the start and the end marker.
    pub(super) fn stderr<W: Write>(&self, nonce: &str, to: W) -> Stderr<W> {
        Stderr {
            filter: Filter::new(nonce),
            to,
            markers: self.clone(),
            stage: Stage::Before,
            rest: Vec::new(),
            held: Vec::new(),
        }
    }
}

/// Finds a text in a stream. What may be its beginning is held back.
#[derive(Debug)]
struct Filter {
    needle: Vec<u8>,
    held: Vec<u8>,
}

/// What a piece of the stream is.
enum Piece {
    /// Nothing of the needle.
    Plain(Vec<u8>),
    /// What came before the needle, and what comes after it.
    Found(Vec<u8>, Vec<u8>),
}

impl Filter {
    fn new(needle: &str) -> Self {
        Self {
            needle: needle.as_bytes().to_vec(),
            held: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Piece {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let first = self.needle.first().copied().unwrap_or_default();
        let mut from = 0;
        while let Some(at) = all
            .get(from..)
            .and_then(|rest| rest.iter().position(|&byte| byte == first))
        {
            let at = from + at;
            let rest = all.get(at..).unwrap_or_default();
            if rest.starts_with(&self.needle) {
                let after = rest.get(self.needle.len()..).unwrap_or_default().to_vec();
                all.truncate(at);
                return Piece::Found(all, after);
            }
            if self.needle.starts_with(rest) {
                self.held = rest.to_vec();
                all.truncate(at);
                return Piece::Plain(all);
            }
            from = at + 1;
        }
        Piece::Plain(all)
    }
}

pub(super) struct Stdout<W: Write> {
    filter: Filter,
    to: W,
    markers: Markers,
    ended: bool,
}

impl<W: Write> Write for Stdout<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.ended {
            match self.filter.take(bytes) {
                Piece::Plain(plain) => self.to.write_all(&plain)?,
                // What a program in the background writes after the command's end is not the command's.
                Piece::Found(before, _) => {
                    self.to.write_all(&before)?;
                    self.ended = true;
                    self.markers.change(|seen| seen.stdout_ended = true);
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// What was held back and came to nothing.
impl<W: Write> Drop for Stdout<W> {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.filter.held);
        let _ = self.to.write_all(&held); // the marker, not this write, says how the stream ended
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Before,
    Command,
    /// The marker was found, and its line is not complete.
    Code,
    After,
}

/// Where it begins at the end of the text, also if only a part of it is there yet; else the end. A shorter part is not
/// looked for, so that a prompt is shown at once.
fn last_line_of_kubectl(text: &[u8]) -> usize {
    const MIN_PART: usize = 8;
    const MAX_LINE: usize = COMMAND_ENDED.len() + 4;
    let is_part = |rest: &[u8]| match rest.strip_prefix(COMMAND_ENDED.as_bytes()) {
        Some(code) => {
            let digits = code.strip_suffix(b"\n").unwrap_or(code);
            digits.iter().all(u8::is_ascii_digit)
        }
        None => rest.len() >= MIN_PART && COMMAND_ENDED.as_bytes().starts_with(rest),
    };
    let first = text.len().saturating_sub(MAX_LINE);
    let found = (first..text.len()).find(|&from| text.get(from..).is_some_and(is_part));
    found.unwrap_or(text.len())
}

pub(super) struct Stderr<W: Write> {
    filter: Filter,
    to: W,
    markers: Markers,
    stage: Stage,
    rest: Vec<u8>,
    /// What may be kubectl's last line. Without a marker before it, only its place at the very end tells.
    held: Vec<u8>,
}

impl<W: Write> Stderr<W> {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.stage {
            Stage::Before => match self.filter.take(bytes) {
                Piece::Plain(plain) => self.words(&plain),
                Piece::Found(before, after) => {
                    self.words(&before);
                    self.rest = after;
                    return self.line();
                }
            },
            Stage::Command => match self.filter.take(bytes) {
                Piece::Plain(plain) => return self.output(&plain),
                Piece::Found(before, after) => {
                    let held = std::mem::take(&mut self.held);
                    self.to.write_all(&held)?;
                    self.to.write_all(&before)?;
                    self.stage = Stage::Code;
                    self.rest = after;
                    return self.line();
                }
            },
            Stage::Code => {
                self.rest.extend_from_slice(bytes);
                return self.line();
            }
            Stage::After => self.words(bytes),
        }
        Ok(())
    }

    fn output(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let from = last_line_of_kubectl(&all);
        self.held = all.split_off(from);
        self.to.write_all(&all)
    }

    /// After a marker: `+` and a newline, or `=`, the code and a newline.
    fn line(&mut self) -> io::Result<()> {
        let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') else {
            self.stage = Stage::Code;
            return Ok(());
        };
        let rest = std::mem::take(&mut self.rest);
        let (line, after) = rest.split_at_checked(end).unwrap_or_default();
        let after = after.get(1..).unwrap_or_default();
        match line.split_first() {
            Some((b'+', _)) => {
                self.stage = Stage::Command;
                self.markers.change(|seen| seen.started = true);
            }
            Some((b'=', code)) => {
                self.stage = Stage::After;
                let code = str::from_utf8(code).ok().and_then(|code| code.parse().ok());
                self.markers.change(|seen| seen.code = code);
                // The script gave up, and waits for an end of stdin that comes only after it.
                if code.is_none() {
                    self.markers.enough.set();
                }
            }
            _ => self.stage = Stage::After,
        }
        match after.is_empty() {
            true => Ok(()),
            false => self.take(after),
        }
    }

    fn words(&self, bytes: &[u8]) {
        let mut seen = self.markers.lock();
        let room = MAX_MESSAGES.saturating_sub(seen.words.len());
        let bytes = bytes.get(..room).unwrap_or(bytes);
        seen.words.extend_from_slice(bytes);
        let refused = !seen.started && String::from_utf8_lossy(&seen.words).contains(WRONG_POD);
        drop(seen);
        // So does the loader where it is in another pod.
        if refused {
            self.markers.enough.set();
        }
    }
}

impl<W: Write> Write for Stderr<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> Drop for Stderr<W> {
    fn drop(&mut self) {
        let mut held = std::mem::take(&mut self.filter.held);
        match self.stage {
            Stage::Before | Stage::After => self.words(&held),
            Stage::Command | Stage::Code => {
                let last = std::mem::take(&mut self.held);
                if !held.is_empty() || last.last() != Some(&b'\n') {
                    held = [last, held].concat();
                }
                let _ = self.to.write_all(&held); // the marker, not this write, says how the stream ended
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crabbox_core::process::Cancel;

    use super::*;

    /// However the streams are cut into pieces.
    #[test]
    fn markers_are_taken_out_and_nothing_else() {
        let stdout = b"binary \xff\x00 nonc nononce nonce".to_vec();
        let stderr =
            b"Defaulted container\nnonce+\nit failed, no newlinenonce=7\ncommand terminated"
                .to_vec();
        for size in 1..stderr.len() {
            let enough = OutputComplete::new(&Cancel::new());
            let markers = Markers::new(&enough);
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let mut to = markers.stdout("nonce", &mut out);
            // Here the first `nonce` is within a longer word: the nonce is random, so that this never happens.
            for piece in stdout.chunks(size) {
                to.write_all(piece).unwrap();
            }
            drop(to);
            let mut to = markers.stderr("nonce", &mut err);
            for piece in stderr.chunks(size) {
                to.write_all(piece).unwrap();
            }
            drop(to);
            assert_eq!(out, b"binary \xff\x00 nonc no", "{size}");
            assert_eq!(err, b"it failed, no newline", "{size}");
            let seen = markers.take();
            assert!(seen.started && seen.stdout_ended);
            assert_eq!(seen.code, Some(7));
            assert_eq!(seen.words, b"Defaulted container\ncommand terminated");
            assert!(enough.is_set());
        }
    }

    /// Neither reads on: stdin has no end before they have.
    #[test]
    fn a_script_that_gives_up_is_not_waited_for() {
        let wrong = format!("{WRONG_POD}\n");
        for (said, refused) in [
            ("mkdir: no\nnonce=\n", true),
            (wrong.as_str(), true),
            ("nonce+\ncrabbox: this is another pod\n", false),
            ("Defaulted container\n", false),
        ] {
            let enough = OutputComplete::new(&Cancel::new());
            let markers = Markers::new(&enough);
            let mut to = markers.stderr("nonce", Vec::new());
            to.write_all(said.as_bytes()).unwrap();
            assert_eq!(enough.is_set(), refused, "{said}");
            drop(to);
            assert_eq!(markers.take().code, None);
        }
    }

    /// A prompt is shown at once, whatever digit the nonce begins with.
    #[test]
    fn digits_are_not_held_back() {
        let markers = Markers::new(&OutputComplete::new(&Cancel::new()));
        let (first, mut out) = (super::super::script::marker("7f"), Vec::new());
        let mut to = markers.stdout(&first, &mut out);
        to.write_all(b"number 7").unwrap();
        assert_eq!(to.to.as_slice(), b"number 7");
    }

    /// The node has killed the script with the command.
    #[test]
    fn the_last_line_of_kubectl_is_not_the_commands() {
        let ended = "command terminated with exit code 137\n";
        for (said, shown) in [
            (ended.to_owned(), ""),
            (format!("no newline{ended}"), "no newline"),
            (format!("{ended}{ended}"), ended),
            (
                format!("{ended}more"),
                "command terminated with exit code 137\nmore",
            ),
            (
                "command terminated with".to_owned(),
                "command terminated with",
            ),
        ] {
            for at in [0, said.len().saturating_sub(20)] {
                let markers = Markers::new(&OutputComplete::new(&Cancel::new()));
                let mut err = Vec::new();
                let mut to = markers.stderr("nonce", &mut err);
                to.write_all(b"nonce+\n").unwrap();
                to.write_all(&said.as_bytes()[..at]).unwrap();
                to.write_all(&said.as_bytes()[at..]).unwrap();
                drop(to);
                assert_eq!(String::from_utf8_lossy(&err), shown, "{at}");
            }
            // With a marker behind it, it is the command's own.
            let markers = Markers::new(&OutputComplete::new(&Cancel::new()));
            let mut err = Vec::new();
            let mut to = markers.stderr("nonce", &mut err);
            write!(to, "nonce+\n{said}nonce=1\n").unwrap();
            drop(to);
            assert_eq!(String::from_utf8_lossy(&err), said);
        }
    }

    #[test]
    fn without_a_marker_nothing_is_proved_and_nothing_is_lost() {
        let enough = OutputComplete::new(&Cancel::new());
        let markers = Markers::new(&enough);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        markers
            .stdout("nonce", &mut out)
            .write_all(b"some non")
            .unwrap();
        let mut to = markers.stderr("nonce", &mut err);
        to.write_all(b"nonce+\nno end, non").unwrap();
        drop(to);
        assert_eq!(
            (out.as_slice(), err.as_slice()),
            (&b"some non"[..], &b"no end, non"[..])
        );
        let seen = markers.take();
        assert_eq!(
            (seen.code, seen.stdout_ended, enough.is_set()),
            (None, false, false)
        );
    }
}

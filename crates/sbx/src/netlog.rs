//! The network log, read from its files; no daemon is needed and nothing is created.
//!
//! [`NetworkLog`] finds and reads lines, [`Filter`] selects, [`rows`] groups them. A [`Cursor`] remembers inode and offset of
//! each file, so that a reader that follows the log survives rotation (a rename) and half-written lines.

mod filter;
mod rows;

pub(crate) use filter::Filter;
pub(crate) use rows::{Row, denied_hosts, is_unanswerable_query, place, rows, via};

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sbx_engine::StateDir;
use sbx_proxy::audit::{self, Line, Part};

use crate::failure::Failure;

/// Files are rotated long before this size.
const MAX_FILE: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct NetworkLog {
    dir: PathBuf,
}

/// How far the log of one sandbox has been read, for each part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor([Position; Part::ALL.len()]);

/// How far the files of one part have been read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    /// The inode; `None` when there was no file.
    file: Option<u64>,
    offset: u64,
}

impl Cursor {
    /// Whether lines of that part were written, or their files replaced, in between.
    pub(crate) fn has_moved(&self, since: &Self, part: Part) -> bool {
        let mut all = Part::ALL.into_iter().zip(self.0.iter().zip(&since.0));
        all.any(|(one, (now, then))| one == part && now != then)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) lines: Vec<Line>,
    /// Lines that could not be read.
    pub(crate) damaged: usize,
    /// Last lines without a line break: being written, or cut off.
    unfinished: usize,
}

impl NetworkLog {
    /// Only in a state directory of the caller: another user could have put symbolic links or FIFOs there.
    pub(crate) fn of(state: &StateDir) -> Result<Self, Failure> {
        state.check_own()?;
        Ok(Self {
            dir: state.network_log(),
        })
    }

    /// The sandboxes that have a log, including removed ones.
    pub(crate) fn sandboxes(&self) -> Result<Vec<String>, Failure> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(&self.dir, &error)),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            let entry = entry.map_err(|error| unreadable(&self.dir, &error))?;
            let file = entry.file_name();
            names.extend(file.to_str().and_then(audit::sandbox_of).map(str::to_owned));
        }
        Ok(names.into_iter().collect())
    }

    /// All lines of one sandbox or of all, sorted by time.
    pub(crate) fn read(&self, sandbox: Option<&str>) -> Result<Entries, Failure> {
        let sandboxes = match sandbox {
            Some(sandbox) => vec![sandbox.to_owned()],
            None => self.sandboxes()?,
        };
        let mut all = Entries::default();
        for sandbox in sandboxes {
            let entries = self.read_on(&sandbox, &mut Cursor::default())?;
            all.lines.extend(entries.lines);
            all.damaged += entries.damaged + entries.unfinished;
        }
        all.lines = audit::joined(all.lines);
        all.lines.sort_by_key(|line| line.time);
        Ok(all)
    }

    /// The end of a sandbox's log.
    pub(crate) fn end(&self, sandbox: &str) -> Cursor {
        let position = |part| match fs::metadata(audit::file(&self.dir, sandbox, part)) {
            Ok(meta) => Position {
                file: Some(meta.ino()),
                offset: meta.len(),
            },
            Err(_) => Position::default(),
        };
        Cursor(Part::ALL.map(position))
    }

    /// The lines after the cursor, which moves behind the last complete one.
    pub(crate) fn read_on(&self, sandbox: &str, cursor: &mut Cursor) -> Result<Entries, Failure> {
        let mut entries = Entries::default();
        for (part, position) in Part::ALL.into_iter().zip(&mut cursor.0) {
            self.add(&mut entries, (sandbox, part), position)?;
        }
        Ok(entries)
    }

    fn add(
        &self,
        entries: &mut Entries,
        of: (&str, Part),
        position: &mut Position,
    ) -> Result<(), Failure> {
        let mut files = self.open(of)?;
        let known = |files: &[Opened]| files.iter().position(|f| Some(f.inode) == position.file);
        let mut start = known(&files);
        if position.file.is_some() && start.is_none() {
            // A rotation between two of our opens can hide the file once.
            files = self.open(of)?;
            start = known(&files);
        }
        let mut offset = start.map_or(0, |_| position.offset);
        for opened in files.into_iter().skip(start.unwrap_or(0)) {
            let read = entries
                .add(opened.file, offset)
                .map_err(|error| unreadable(&opened.path, &error))?;
            *position = Position {
                file: Some(opened.inode),
                offset: offset + read,
            };
            offset = 0;
        }
        Ok(())
    }

    /// The files that exist, oldest first.
    fn open(&self, (sandbox, part): (&str, Part)) -> Result<Vec<Opened>, Failure> {
        let mut opened: Vec<Opened> = Vec::new();
        for path in audit::files(&self.dir, sandbox, part) {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(&path, &error)),
            };
            let inode = file
                .metadata()
                .map_err(|error| unreadable(&path, &error))?
                .ino();
            // Renamed between two opens, so that it was opened twice.
            opened.retain(|other| other.inode != inode);
            opened.push(Opened { path, file, inode });
        }
        Ok(opened)
    }
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    inode: u64,
}

impl Entries {
    /// Adds the lines after `offset`; returns the size of the complete ones.
    fn add(&mut self, mut file: File, offset: u64) -> io::Result<u64> {
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n');
        let whole = whole.map_or(0, |last| last + 1);
        self.unfinished += usize::from(bytes.len() > whole);
        let (bytes, _) = bytes.split_at(whole);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(line) => self.lines.push(line),
                Err(_) => self.damaged += 1,
            }
        }
        Ok(whole as u64)
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "cannot read the network log `{}`: {error}",
        path.display()
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use sbx_proxy::audit::{Entrance, Outcome, Phase, Via};

    use super::*;

    pub(crate) fn line(sandbox: &str, host: &str, verdict: Outcome) -> Line {
        Line {
            time: "2026-01-29T10:15:25Z".parse().unwrap(),
            sandbox: sandbox.into(),
            id: 1,
            entrance: Entrance::Connect,
            proxy: Via::Forward,
            host: host.into(),
            port: Some(443),
            address: None,
            verdict,
            deny_kind: None,
            rule: None,
            rule_name: None,
            reason: "No matching allow rule (default deny)".into(),
            sent: 0,
            received: 0,
            duration_ms: 0,
            phase: Phase::Closed,
            error: None,
            first: None,
            count: 1,
        }
    }

    fn append(path: &Path, text: &str) {
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn text(line: &Line) -> String {
        serde_json::to_string(line).unwrap() + "\n"
    }

    fn log() -> (tempfile::TempDir, NetworkLog) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().to_owned();
        (temp, NetworkLog { dir })
    }

    #[test]
    fn a_missing_log_is_an_empty_one() {
        let log = NetworkLog {
            dir: "/missing".into(),
        };
        assert!(log.sandboxes().unwrap().is_empty());
        assert!(log.read(None).unwrap().lines.is_empty());
        assert_eq!(log.end("ab"), Cursor::default());
    }

    #[test]
    fn damaged_lines_are_counted_and_phases_joined() {
        let (temp, log) = log();
        let mut open = line("ab", "a.test", Outcome::Allow);
        open.phase = Phase::Open;
        let became = Line {
            host: "b.test".into(),
            ..open.clone()
        };
        let mut closed = became.clone();
        closed.phase = Phase::Closed;
        closed.received = 7;
        let content = [
            &text(&open),
            "garbage\n",
            &text(&became),
            &text(&closed),
            "{\"time\":\"2026",
        ]
        .concat();
        append(&temp.path().join("ab.jsonl"), &content);
        let entries = log.read(None).unwrap();
        assert_eq!((entries.lines, entries.damaged), (vec![closed], 2));
    }

    #[test]
    fn a_cursor_survives_rotation_and_half_lines() {
        let (temp, log) = log();
        let path = |name: &str| temp.path().join(name);
        let hosts = |cursor: &mut Cursor| -> Vec<String> {
            let entries = log.read_on("ab", cursor).unwrap();
            entries.lines.into_iter().map(|line| line.host).collect()
        };
        let deny = |host| text(&line("ab", host, Outcome::Deny));
        append(&path("ab.jsonl"), &deny("one"));
        let mut cursor = log.end("ab");
        assert_eq!(hosts(&mut cursor), [""; 0]);
        let two = deny("two");
        let (half, rest) = two.split_at(9);
        append(&path("ab.jsonl"), half);
        assert_eq!(hosts(&mut cursor), [""; 0]);
        append(&path("ab.jsonl"), rest);
        append(&path("ab.jsonl"), &deny("three"));
        fs::rename(path("ab.jsonl"), path("ab.jsonl.1")).unwrap();
        append(&path("ab.jsonl"), &deny("four"));
        assert_eq!(hosts(&mut cursor), ["two", "three", "four"]);
        assert_eq!(hosts(&mut cursor), [""; 0]);
        assert_eq!(hosts(&mut Cursor::default()).len(), 4);
        // Denials and DNS queries have files of their own; older logs had them in the main file.
        append(&path("ab_denied.jsonl"), &deny("five"));
        let seven = text(&line("ab", "seven", Outcome::Allow));
        append(&path("ab_dns.jsonl"), &seven);
        append(&path("ab.jsonl"), &text(&line("ab", "six", Outcome::Allow)));
        assert_eq!(hosts(&mut cursor), ["six", "seven", "five"]);
        assert_eq!(log.sandboxes().unwrap(), ["ab"]);
        assert_eq!(cursor, log.end("ab"));
        let before = log.end("ab");
        append(
            &path("ab.jsonl"),
            &text(&line("ab", "eight", Outcome::Allow)),
        );
        assert!(!log.end("ab").has_moved(&before, Part::Denied));
        append(&path("ab_denied.jsonl"), &deny("nine"));
        assert!(log.end("ab").has_moved(&before, Part::Denied));
    }
}

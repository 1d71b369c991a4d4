//! Output of detached commands: two files in turn, each of bounded size, so that the newest is always kept.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use jiff::Timestamp;
use sbx_proto::OsBytes;
use serde::{Deserialize, Serialize};

/// When one file has this many bytes the other one is emptied and used.
const MAX_FILE: u64 = 8 << 20;

/// Of what one line holds. Escaped it grows six-fold at most, and a line must be shorter than [`HEAD`].
const MAX_DATA: usize = 128 << 10;
/// How much is read of a file to find its first line.
const HEAD: u64 = 1 << 20;

/// One line of the log.
#[derive(Debug, Serialize, Deserialize)]
struct Line<'a> {
    t: Timestamp,
    /// Grows with every change of file: orders the two files.
    #[serde(rename = "gen")]
    generation: u64,
    id: u64,
    s: &'a str,
    d: OsBytes,
}

#[derive(Debug)]
pub(super) struct Log {
    files: [File; 2],
    generation: u64,
    written: u64,
}

impl Log {
    pub(super) fn new(files: [OwnedFd; 2]) -> Self {
        let mut files = files.map(File::from);
        let newest = files.iter_mut().map(last_generation).max().flatten();
        let mut log = Self {
            files,
            generation: newest.unwrap_or(0),
            written: 0,
        };
        match newest {
            Some(_) => log.go_on(),
            None => log.start_file(),
        }
        log
    }

    /// Every start adds to what earlier ones have written.
    fn go_on(&mut self) {
        let file = self.current();
        let mut last = [b'\n'];
        let _ = file
            .seek(SeekFrom::End(-1))
            .and_then(|_| file.read_exact(&mut last));
        // An init that died in the middle of a line would spoil the next one.
        if last != *b"\n" {
            let _ = file.write_all(b"\n");
        }
        self.written = file.seek(SeekFrom::End(0)).unwrap_or(0);
    }

    /// What is too long for a line, the arguments of a command, loses its end.
    pub(super) fn write(&mut self, id: u64, kind: &str, data: &[u8]) {
        let data = data.get(..MAX_DATA).unwrap_or(data);
        if self.written > MAX_FILE {
            self.generation += 1;
            self.start_file();
        }
        self.append(id, kind, data);
    }

    fn append(&mut self, id: u64, kind: &str, data: &[u8]) {
        let line = Line {
            t: Timestamp::now(),
            generation: self.generation,
            id,
            s: kind,
            d: OsBytes(data.to_vec()),
        };
        let Ok(mut text) = serde_json::to_vec(&line) else {
            return;
        };
        text.push(b'\n');
        // A full disk costs the log, never the sandbox.
        if self.current().write_all(&text).is_ok() {
            self.written += text.len() as u64;
        }
    }

    fn current(&mut self) -> &mut File {
        let [even, odd] = &mut self.files;
        if self.generation.is_multiple_of(2) {
            even
        } else {
            odd
        }
    }

    fn start_file(&mut self) {
        self.written = 0;
        let file = self.current();
        let held_something = file.metadata().is_ok_and(|meta| meta.len() > 0);
        let _ = file.set_len(0);
        let _ = file.seek(SeekFrom::Start(0));
        if held_something {
            self.append(0, "dropped", b"");
        }
    }
}

/// The generation that a file of an earlier start holds: its first line says it.
fn last_generation(file: &mut File) -> Option<u64> {
    use std::io::{BufRead, BufReader};
    #[derive(Deserialize)]
    struct Head {
        #[serde(rename = "gen")]
        generation: u64,
    }
    let mut line = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    BufReader::new(file.take(HEAD)).read_line(&mut line).ok()?;
    serde_json::from_str::<Head>(&line)
        .ok()
        .map(|head| head.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> [File; 2] {
        [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()]
    }

    fn open(files: &[File; 2]) -> Log {
        Log::new(
            files
                .each_ref()
                .map(|file| file.try_clone().unwrap().into()),
        )
    }

    fn texts(files: &[File; 2]) -> [String; 2] {
        files.each_ref().map(|mut file| {
            let mut text = String::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_string(&mut text).unwrap();
            text
        })
    }

    #[test]
    fn starts_add_to_what_earlier_ones_wrote() {
        let files = files();
        for word in ["first", "second", "third", "fourth"] {
            open(&files).write(1, "out", word.as_bytes());
        }
        let [even, odd] = texts(&files);
        let lines: Vec<_> = even.lines().collect();
        assert_eq!((lines.len(), odd.as_str()), (4, ""), "{even}");
        assert!(!even.contains("dropped"), "{even}");
        // A full file is full for the next start too, and half a line stays one.
        open(&files).current().set_len(MAX_FILE + 1).unwrap();
        let mut log = open(&files);
        assert_eq!(log.written, MAX_FILE + 2);
        log.write(1, "out", b"fifth");
        let [even, odd] = texts(&files);
        assert!(even.ends_with("\0\n") && odd.contains("fifth"), "{odd}");
        open(&files).write(1, "out", b"sixth");
        let [_, odd] = texts(&files);
        assert!(odd.contains("fifth") && odd.contains("sixth"), "{odd}");
    }

    #[test]
    fn a_first_line_of_any_length_is_found_by_the_next_start() {
        for byte in [b'x', 1, 0xff] {
            let files = files();
            let argv = vec![byte; 3 << 20];
            open(&files).write(1, "start", &argv);
            open(&files).write(2, "out", b"second");
            let [even, odd] = texts(&files);
            assert_eq!((even.lines().count(), odd.as_str()), (2, ""));
            let [first, second] = [0, 1].map(|n| even.lines().nth(n).unwrap());
            assert!(first.contains("start") && first.len() as u64 + 1 < HEAD);
            assert!(second.contains("second"), "{second}");
        }
    }

    #[test]
    fn what_is_dropped_is_said_and_the_newest_is_kept() {
        let files = files();
        let mut log = open(&files);
        log.write(1, "out", b"first");
        for word in ["second", "third"] {
            log.written = MAX_FILE + 1;
            log.write(1, "out", word.as_bytes());
        }
        let [even, odd] = texts(&files);
        assert!(odd.contains("second") && !odd.contains("dropped"), "{odd}");
        assert!(even.contains("third") && even.contains("dropped"), "{even}");
        assert!(!even.contains("first"), "{even}");
    }
}

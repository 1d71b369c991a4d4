//! Output of detached commands: two files in turn, each of bounded size, so that the newest is always kept.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use jiff::Timestamp;
use sbx_proto::OsBytes;
use serde::{Deserialize, Serialize};

/// When one file has this many bytes the other one is emptied and used.
const MAX_FILE: u64 = 8 << 20;

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
        let generation = newest.map_or(0, |generation| generation + 1);
        let mut log = Self {
            files,
            generation,
            written: 0,
        };
        log.start_file();
        log
    }

    pub(super) fn write(&mut self, id: u64, kind: &str, data: &[u8]) {
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
    use std::io::{BufRead, BufReader, Read};
    #[derive(Deserialize)]
    struct Head {
        #[serde(rename = "gen")]
        generation: u64,
    }
    let mut line = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    BufReader::new(file.take(1 << 20))
        .read_line(&mut line)
        .ok()?;
    serde_json::from_str::<Head>(&line)
        .ok()
        .map(|head| head.generation)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_dropped_is_said_and_the_newest_is_kept() {
        let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let copies = files.each_ref().map(|file| file.try_clone().unwrap());
        let texts = || {
            copies.each_ref().map(|mut file| {
                let mut text = String::new();
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_to_string(&mut text).unwrap();
                text
            })
        };
        let mut log = Log::new(files.map(OwnedFd::from));
        log.write(1, "out", b"first");
        for word in ["second", "third"] {
            log.written = MAX_FILE + 1;
            log.write(1, "out", word.as_bytes());
        }
        let [even, odd] = texts();
        assert!(odd.contains("second") && !odd.contains("dropped"), "{odd}");
        assert!(even.contains("third") && even.contains("dropped"), "{even}");
        assert!(!even.contains("first"), "{even}");
    }
}

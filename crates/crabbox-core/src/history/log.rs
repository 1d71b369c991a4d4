//! One stream of one run, as much of it as is kept: the beginning and the end.
//!
//! The file is made for the first byte. What fits goes to it as it comes, so that a killed process leaves it behind.
//! The end of a longer stream is kept in memory and written last. Secrets are taken out of what goes to the file and of
//! nothing else, which is what makes a gigabyte cost no more than copying it.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::LogInfo;
use crate::process::Listener;
use crate::redact::{Redactor, StreamRedactor};

/// Where a command's output is written down. Clones write to the same log; it never fails whom it listens to.
#[derive(Debug, Clone)]
pub struct RunLog(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    path: PathBuf,
    file: Option<File>,
    finished: bool,
    redactor: Redactor,
    scan: StreamRedactor,
    /// How much of the beginning, and of the end, is kept.
    half: usize,
    /// What came in.
    total: u64,
    /// What is in the file.
    stored: u64,
    head: Option<Head>,
    tail: Ring,
    failed: bool,
}

/// What is in the file when the first half is full, and how much of the stream that is.
#[derive(Debug, Clone, Copy)]
struct Head {
    stored: u64,
    stream: u64,
}

impl RunLog {
    /// Keeps at most `cap` bytes of the stream.
    pub(super) fn new(path: PathBuf, redactor: &Redactor, cap: usize) -> Self {
        let half = (cap / 2).max(1);
        Self(Arc::new(Mutex::new(State {
            path,
            file: None,
            finished: false,
            redactor: redactor.clone(),
            scan: StreamRedactor::new(redactor),
            half,
            total: 0,
            stored: 0,
            head: None,
            tail: Ring::new(half + redactor.longest()),
            failed: false,
        })))
    }

    pub fn append(&self, bytes: &[u8]) {
        self.lock().append(bytes);
    }

    /// Writes the end. What comes later is not written down any more.
    pub(super) fn finish(&self) -> LogInfo {
        self.lock().finish()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for RunLog {
    fn hear(&self, bytes: &[u8]) {
        self.append(bytes);
    }

    fn miss(&self, bytes: u64) {
        self.lock().miss(bytes);
    }
}

impl State {
    fn append(&mut self, bytes: &[u8]) {
        if self.finished {
            return;
        }
        let half = self.half as u64;
        let (first, rest) = split(bytes, half.saturating_sub(self.total));
        self.total += first.len() as u64;
        self.write_clean(first);
        self.tail.push(bytes);
        if rest.is_empty() {
            return;
        }
        if self.head.is_none() {
            self.head = Some(Head {
                stored: self.stored,
                stream: self.total - self.scan.held() as u64,
            });
        }
        // The second half is written too, as long as it may be all.
        let (second, _) = split(rest, (2 * half).saturating_sub(self.total));
        self.write_clean(second);
        self.total += rest.len() as u64;
    }

    /// What was kept so far is not what comes before the next bytes.
    fn miss(&mut self, bytes: u64) {
        self.total += bytes;
        self.tail = Ring::new(self.tail.capacity);
    }

    fn finish(&mut self) -> LogInfo {
        if !self.finished {
            match self.head {
                Some(head) if self.total > 2 * self.half as u64 => self.write_end(head),
                Some(_) | None => {
                    let rest = self.scan.finish();
                    self.write(&rest);
                }
            }
            self.file = None;
            self.finished = true;
        }
        LogInfo {
            bytes: self.total,
            stored: self.stored,
            truncated: self.failed || self.total > 2 * self.half as u64,
        }
    }

    /// Replaces what follows the first half by a note and the last bytes of the stream.
    fn write_end(&mut self, head: Head) {
        let tail = self.tail.bytes();
        // More was kept than is shown, to recognise a secret that is cut at its beginning.
        let skip = tail.len().saturating_sub(self.half);
        let shown = (tail.len() - skip) as u64;
        let left_out = self.total.saturating_sub(head.stream + shown);
        let clean = self.redactor.clean_tail(&tail, skip);
        let rewound = self.file.as_mut().map(|file| {
            file.set_len(head.stored)?;
            file.seek(SeekFrom::Start(head.stored))
        });
        if let Some(Err(_)) = rewound {
            self.failed = true;
            return;
        }
        self.stored = head.stored;
        self.write(format!("\n[... {left_out} bytes omitted ...]\n").as_bytes());
        self.write(&clean);
    }

    fn write_clean(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let clean = self.scan.push(bytes);
            self.write(&clean);
        }
    }

    /// After the first failure nothing is written any more: the disk is full, or the directory is gone.
    fn write(&mut self, bytes: &[u8]) {
        if self.failed || bytes.is_empty() {
            return;
        }
        match self.file().and_then(|file| file.write_all(bytes)) {
            Ok(()) => self.stored += bytes.len() as u64,
            Err(_) => self.failed = true,
        }
    }

    fn file(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&self.path)?,
        };
        Ok(self.file.insert(file))
    }
}

fn split(bytes: &[u8], most: u64) -> (&[u8], &[u8]) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    bytes.split_at_checked(most).unwrap_or((bytes, &[]))
}

/// The last bytes of a stream.
#[derive(Debug)]
struct Ring {
    /// Grows up to the capacity; then `next` is both the oldest byte and the next to be replaced.
    bytes: Vec<u8>,
    capacity: usize,
    next: usize,
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Self {
            bytes: Vec::new(),
            capacity,
            next: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let skip = bytes.len().saturating_sub(self.capacity);
        let mut bytes = bytes.get(skip..).unwrap_or_default();
        let room = self.capacity - self.bytes.len();
        if room > 0 {
            let (now, later) = split(bytes, room as u64);
            self.bytes.extend_from_slice(now);
            bytes = later;
        }
        while !bytes.is_empty() {
            let Some(place) = self
                .bytes
                .get_mut(self.next..)
                .filter(|place| !place.is_empty())
            else {
                self.next = 0;
                continue;
            };
            let count = place.len().min(bytes.len());
            let (now, later) = split(bytes, count as u64);
            if let Some(place) = place.get_mut(..count) {
                place.copy_from_slice(now);
            }
            self.next += count;
            bytes = later;
        }
    }

    /// Oldest first.
    fn bytes(&self) -> Vec<u8> {
        let (newer, older) = self.bytes.split_at_checked(self.next).unwrap_or_default();
        [older, newer].concat()
    }
}

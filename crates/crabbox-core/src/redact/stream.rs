//! Known secrets out of a stream, also where one is split over two writes.
//!
//! The end of each chunk is searched for a prefix of a known secret. From there on the bytes are held back until the next
//! chunk decides whether it is one, so at most the longest secret minus one byte is delayed. Matches may overlap:
//! `covered` remembers how much of the held bytes belongs to a secret that was already replaced by the mark.

use std::io::{self, Write};

use super::{KnownSecrets, MARK, Redactor};

/// Holds back only what may be the beginning of a secret, which is less than the longest one.
///
/// A flush does not let go of it: a secret may come in two flushes. [`Self::finish`] does.
#[derive(Debug)]
pub struct RedactingWriter<W> {
    out: W,
    scan: StreamRedactor,
}

impl<W: Write> RedactingWriter<W> {
    pub fn new(out: W, redactor: &Redactor) -> Self {
        Self {
            out,
            scan: StreamRedactor::new(redactor),
        }
    }

    /// Writes what was held back: the stream has ended, so it is not a secret.
    pub fn finish(mut self) -> io::Result<W> {
        let rest = self.scan.finish();
        self.out.write_all(&rest)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let clean = self.scan.push(bytes);
        self.out.write_all(&clean)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The same without a writer: bytes in, clean bytes out. What comes out does not depend on how the bytes were split.
#[derive(Debug)]
pub(crate) struct StreamRedactor {
    known: KnownSecrets,
    held: Vec<u8>,
    /// How much of what is held back belongs to a secret that has been replaced already.
    covered: usize,
}

impl StreamRedactor {
    pub(crate) fn new(redactor: &Redactor) -> Self {
        Self {
            known: redactor.known().clone(),
            held: Vec::new(),
            covered: 0,
        }
    }

    /// How many bytes are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.known.is_empty() {
            return bytes.to_vec();
        }
        self.held.extend_from_slice(bytes);
        let decided = self.known.partial_match_start(&self.held);
        self.emit(decided)
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.emit(self.held.len())
    }

    /// Lets go of the first `decided` bytes, in which no secret begins whose end is not known.
    fn emit(&mut self, decided: usize) -> Vec<u8> {
        let mut clean = Vec::with_capacity(decided);
        // Everything before this is written or hidden.
        let mut at = self.covered;
        for secret in self.known.find(&self.held) {
            if secret.start >= decided {
                break;
            }
            if secret.start >= at {
                clean.extend_from_slice(self.held.get(at..secret.start).unwrap_or_default());
                clean.extend_from_slice(MARK.as_bytes());
            }
            at = at.max(secret.end);
        }
        clean.extend_from_slice(self.held.get(at..decided).unwrap_or_default());
        self.covered = at.saturating_sub(decided);
        self.held.drain(..decided);
        clean
    }
}

//! The most recent output of a session, by byte offset.

use std::collections::VecDeque;

const CAPACITY: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct History {
    bytes: VecDeque<u8>,
    /// The offset of the first byte that is still there.
    start: u64,
}

impl History {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(CAPACITY);
        self.bytes.drain(..excess);
        self.start += excess as u64;
    }

    /// The offset behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// What there is from `offset` on, and where it begins: later than `offset` if that is gone already.
    pub(crate) fn since(&self, offset: u64) -> (u64, Vec<u8>) {
        let start = offset.clamp(self.start, self.end());
        let skip = usize::try_from(start - self.start).unwrap_or(usize::MAX);
        (start, self.bytes.iter().skip(skip).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_output_is_dropped_and_offsets_stay() {
        let mut history = History::default();
        history.push(b"abc");
        assert_eq!(history.since(1), (1, b"bc".to_vec()));
        assert_eq!(history.since(9), (3, Vec::new()));
        history.push(&vec![b'x'; CAPACITY]);
        assert_eq!(history.end(), CAPACITY as u64 + 3);
        let (start, bytes) = history.since(0);
        assert_eq!((start, bytes.len()), (3, CAPACITY));
    }
}

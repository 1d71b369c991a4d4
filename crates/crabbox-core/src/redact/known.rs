//! Known secrets in bytes.

use std::fmt;
use std::ops::Range;

/// Finds them all. Never shows them.
#[derive(Clone)]
pub(super) struct KnownSecrets {
    /// Longest first.
    secrets: Vec<Vec<u8>>,
    /// Whether one begins with this byte.
    first: [bool; 256],
}

impl KnownSecrets {
    pub(super) fn new(mut secrets: Vec<Vec<u8>>) -> Self {
        secrets.retain(|secret| !secret.is_empty());
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        let mut first = [false; 256];
        for start in secrets.iter().filter_map(|secret| secret.first()) {
            if let Some(known) = first.get_mut(usize::from(*start)) {
                *known = true;
            }
        }
        Self { secrets, first }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The length of the longest one.
    pub(super) fn longest(&self) -> usize {
        self.secrets.first().map_or(0, Vec::len)
    }

    /// Every place where one stands, those that overlap too: of each of them nothing may stay.
    pub(super) fn find(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(start) = self.candidate(bytes, at) {
            let rest = bytes.get(start..).unwrap_or_default();
            // Sorted: the first that fits is the longest, and covers the others.
            if let Some(secret) = self.secrets.iter().find(|secret| rest.starts_with(secret)) {
                found.push(start..start + secret.len());
            }
            at = start + 1;
        }
        found
    }

    /// Where the end of `bytes` may be the beginning of a secret.
    pub(super) fn partial_match_start(&self, bytes: &[u8]) -> usize {
        let mut at = bytes.len().saturating_sub(self.longest().saturating_sub(1));
        while let Some(start) = self.candidate(bytes, at) {
            let rest = bytes.get(start..).unwrap_or_default();
            let open = |secret: &Vec<u8>| secret.len() > rest.len() && secret.starts_with(rest);
            if self.secrets.iter().any(open) {
                return start;
            }
            at = start + 1;
        }
        bytes.len()
    }

    fn candidate(&self, bytes: &[u8], from: usize) -> Option<usize> {
        let is_first = |byte: &u8| {
            self.first
                .get(usize::from(*byte))
                .copied()
                .unwrap_or_default()
        };
        let at = bytes.get(from..)?.iter().position(is_first)?;
        Some(from + at)
    }
}

impl Default for KnownSecrets {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KnownSecrets({} secrets)", self.secrets.len())
    }
}

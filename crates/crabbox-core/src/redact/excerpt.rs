//! Parts of long output, cut so that no cut makes a secret unrecognisable.

use super::{MARK, Redactor};
use crate::command::is_unseen;

impl Redactor {
    /// The beginning of a program's output for an error message: at most `most` bytes of clean text without control
    /// characters.
    pub fn excerpt(&self, bytes: &[u8], most: usize) -> String {
        // More is cleaned than shown, because hiding can make text shorter.
        let window = bytes.get(..most.saturating_mul(4)).unwrap_or(bytes);
        let whole = window.len() == bytes.len();
        let window = match whole {
            true => window,
            false => window
                .get(..self.known().partial_match_start(window))
                .unwrap_or_default(),
        };
        let text = String::from_utf8_lossy(window);
        let clean = self.clean(&text);
        let mut shown = String::new();
        for char in clean.trim().chars() {
            if shown.len() + char.len_utf8() > most {
                break;
            }
            match char {
                '\n' | '\t' => shown.push(char),
                '\r' => {}
                _ if is_unseen(char) => shown.push(char::REPLACEMENT_CHARACTER),
                _ => shown.push(char),
            }
        }
        // A replaced character may be wider than what it stands for.
        shown.truncate(shown.floor_char_boundary(most));
        shown
    }

    /// The end of a stream, of which the first `skip` bytes are only there to recognise secrets that begin in them.
    pub(crate) fn clean_tail(&self, bytes: &[u8], skip: usize) -> Vec<u8> {
        let mut clean = Vec::with_capacity(bytes.len());
        let mut at = skip;
        for secret in self.known().find(bytes) {
            if secret.end <= skip {
                continue;
            }
            if secret.start >= at || at == skip {
                clean.extend_from_slice(bytes.get(at..secret.start).unwrap_or_default());
                clean.extend_from_slice(MARK.as_bytes());
            }
            at = at.max(secret.end);
        }
        clean.extend_from_slice(bytes.get(at..).unwrap_or_default());
        clean
    }
}

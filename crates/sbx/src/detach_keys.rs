//! `--detach-keys`: a sequence such as `ctrl-p,ctrl-q` that leaves a session without ending its command.
//!
//! Keys that may be its beginning are held back. The session that holds them decides for how long: a single ctrl-p is
//! for the program, as in a shell's history.

use crate::failure::{Failure, Kind};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DetachKeys {
    keys: Vec<u8>,
    /// How many of the keys have been seen, and are held back.
    seen: usize,
}

/// What to do with typed bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// These go to the command.
    Forward(Vec<u8>),
    /// The sequence is complete; what was typed before it still goes to the command.
    Detach(Vec<u8>),
}

impl DetachKeys {
    /// docker's own: ctrl-p,ctrl-q.
    pub(crate) fn usual() -> Self {
        Self {
            keys: vec![0x10, 0x11],
            seen: 0,
        }
    }

    /// Whether keys are held back.
    pub(crate) fn is_holding(&self) -> bool {
        self.seen > 0
    }

    /// The keys that were held back: they are no sequence any more.
    pub(crate) fn release(&mut self) -> Vec<u8> {
        let held = self.keys.iter().take(self.seen).copied().collect();
        self.seen = 0;
        held
    }

    /// docker's grammar: single characters or `ctrl-` with a letter or one of `@[\]^_`, joined by commas.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let keys = text.split(',').map(key).collect::<Option<Vec<u8>>>();
        match keys {
            Some(keys) => Ok(Self { keys, seen: 0 }),
            None => Err(Failure::new(
                Kind::BadRequest,
                format!(
                    "`{}` is not a valid sequence of detach keys",
                    text.escape_debug()
                ),
            )
            .hint("--detach-keys ctrl-p,ctrl-q")),
        }
    }

    pub(crate) fn take(&mut self, typed: &[u8]) -> Typed {
        let mut forward = Vec::with_capacity(typed.len());
        for byte in typed {
            if self.keys.get(self.seen) == Some(byte) {
                self.seen += 1;
                if self.seen == self.keys.len() {
                    self.seen = 0;
                    return Typed::Detach(forward);
                }
                continue;
            }
            forward.extend(self.release());
            if self.keys.first() == Some(byte) {
                self.seen = 1;
            } else {
                forward.push(*byte);
            }
        }
        Typed::Forward(forward)
    }
}

fn key(text: &str) -> Option<u8> {
    if let Some(with_control) = text.strip_prefix("ctrl-") {
        return match with_control.as_bytes() {
            [letter @ b'a'..=b'z'] => Some(letter - b'a' + 1),
            [symbol @ (b'@' | b'[' | b'\\' | b']' | b'^' | b'_')] => Some(symbol - b'@'),
            _ => None,
        };
    }
    match text.as_bytes() {
        [byte] if byte.is_ascii() => Some(*byte),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences() {
        assert_eq!(
            DetachKeys::parse("ctrl-p,ctrl-q,a,ctrl-@").unwrap().keys,
            [16, 17, b'a', 0]
        );
        for bad in ["", "ctrl-", "ctrl-1", "ab", "a,,b", "ä"] {
            assert!(DetachKeys::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_sequence_may_come_in_pieces_and_a_false_start_is_typed() {
        let mut keys = DetachKeys::parse("ctrl-p,ctrl-q").unwrap();
        assert_eq!(keys.take(b"ab"), Typed::Forward(b"ab".to_vec()));
        assert_eq!(keys.take(b"\x10"), Typed::Forward(vec![]));
        assert_eq!(keys.take(b"x"), Typed::Forward(b"\x10x".to_vec()));
        assert_eq!(keys.take(b"\x10\x10"), Typed::Forward(b"\x10".to_vec()));
        assert_eq!(keys.take(b"\x11"), Typed::Detach(vec![]));
        assert_eq!(keys.take(b"yz\x10\x11"), Typed::Detach(b"yz".to_vec()));
        assert_eq!(keys, DetachKeys::usual());
    }

    #[test]
    fn what_is_held_back_can_be_had() {
        let mut keys = DetachKeys::usual();
        assert!(!keys.is_holding() && keys.release().is_empty());
        assert_eq!(keys.take(b"a\x10"), Typed::Forward(b"a".to_vec()));
        assert!(keys.is_holding());
        assert_eq!(keys.release(), b"\x10");
        assert_eq!(keys.take(b"\x11"), Typed::Forward(b"\x11".to_vec()));
    }
}

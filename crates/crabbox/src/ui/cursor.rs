//! Whether the output of a command left the terminal's cursor within a line, where our next line would be glued to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;
/// Back from the alternate screen: the cursor is where it was before.
const LEAVE_SCREEN: [&[u8]; 3] = [b"?1049l", b"?1047l", b"?47l"];
/// No sequence that matters is longer.
const MAX_PARAMETERS: usize = 16;

/// Shared by all that write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cursor(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    within_line: bool,
    sequence: Sequence,
}

/// A control sequence that began and moves nothing that is followed here.
#[derive(Debug, Default)]
enum Sequence {
    #[default]
    None,
    Begun,
    /// `ESC [`, and what came since.
    Parameters(Vec<u8>),
    /// A title and the like, up to its end.
    Text,
}

impl Cursor {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn follow(&self, bytes: &[u8]) {
        let mut state = self.lock();
        for byte in bytes {
            state.step(*byte);
        }
    }

    /// Whether a line has to be ended first, which the caller does.
    pub(super) fn take_line(&self) -> bool {
        std::mem::take(&mut self.lock().within_line)
    }
}

impl State {
    fn step(&mut self, byte: u8) {
        let sequence = std::mem::take(&mut self.sequence);
        self.sequence = match (sequence, byte) {
            (_, ESCAPE) => Sequence::Begun,
            (Sequence::None, b'\n') => {
                self.within_line = false;
                Sequence::None
            }
            (Sequence::None, _) => {
                self.within_line |= !byte.is_ascii_control();
                Sequence::None
            }
            (Sequence::Begun, b'[') => Sequence::Parameters(Vec::new()),
            (Sequence::Begun, b']' | b'P' | b'_' | b'^') => Sequence::Text,
            // A character set, whose name follows.
            (Sequence::Begun, b' '..=b'/') => Sequence::Begun,
            (Sequence::Begun, _) => Sequence::None,
            (Sequence::Parameters(mut parameters), _) => {
                if parameters.len() < MAX_PARAMETERS {
                    parameters.push(byte);
                }
                match byte {
                    b'@'..=b'~' => {
                        self.within_line &= !LEAVE_SCREEN.contains(&parameters.as_slice());
                        Sequence::None
                    }
                    _ => Sequence::Parameters(parameters),
                }
            }
            (Sequence::Text, BELL) => Sequence::None,
            (Sequence::Text, _) => Sequence::Text,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_not_ended_is_known() {
        for (output, within) in [
            ("", false),
            ("whole\r\n", false),
            ("part", true),
            ("50 %\r", true),
            ("^C", true),
            ("a\nb", true),
            ("red\n\x1b[0m", false),
            ("\x1b[31mred\x1b[0m", true),
            ("\x1b]0;title\x07", false),
            ("\x1b]0;title\x1b\\", false),
            ("\x1b(B\x1b[m", false),
            ("\x1b[?1049htext of an editor\x1b[?1049l\x1b[23;0;0t", false),
            ("ä", true),
        ] {
            let cursor = Cursor::default();
            for byte in output.bytes() {
                cursor.follow(&[byte]);
            }
            assert_eq!(cursor.take_line(), within, "{output:?}");
            assert!(!cursor.take_line(), "{output:?}");
        }
    }
}

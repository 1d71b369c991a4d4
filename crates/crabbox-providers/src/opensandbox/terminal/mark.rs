//! The mark at the end of a command's output, see [`script::terminal`](super::super::script::terminal).

use execd_proto::pty::Output;
use tokio_tungstenite::tungstenite::Message;

use super::super::script::MARK;

/// Takes the mark with the exit status out of the output.
pub(super) struct EndScanner {
    mark: Vec<u8>,
    held: Vec<u8>,
}

impl EndScanner {
    pub(super) fn new(nonce: &str) -> Self {
        Self {
            mark: format!("\x1b]{MARK}{nonce};").into_bytes(),
            held: Vec::new(),
        }
    }

    pub(super) fn read(&mut self, message: &Message) -> (Vec<u8>, Option<i32>) {
        let Message::Binary(bytes) = message else {
            return (Vec::new(), None);
        };
        match Output::decode(bytes) {
            Some(Output::Stdout(bytes) | Output::Stderr(bytes) | Output::Replay { bytes, .. }) => {
                self.push(bytes)
            }
            None => (Vec::new(), None),
        }
    }

    /// What can be shown, and the exit status once it is there.
    fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, Option<i32>) {
        self.held.extend_from_slice(bytes);
        let found = self
            .held
            .windows(self.mark.len())
            .position(|window| window == self.mark);
        let Some(at) = found else {
            // The end may be the beginning of the mark.
            let start = self.held.len().saturating_sub(self.mark.len() - 1);
            let keep = (start..self.held.len())
                .find(|at| {
                    let rest = self.held.get(*at..).unwrap_or_default();
                    self.mark.starts_with(rest)
                })
                .unwrap_or(self.held.len());
            let rest = self.held.split_off(keep);
            return (std::mem::replace(&mut self.held, rest), None);
        };
        let status = self.held.get(at + self.mark.len()..).unwrap_or_default();
        let Some(end) = status.iter().position(|byte| *byte == 7) else {
            return (Vec::new(), None);
        };
        let code = std::str::from_utf8(status.get(..end).unwrap_or_default())
            .ok()
            .and_then(|text| text.parse().ok());
        self.held.truncate(at);
        (std::mem::take(&mut self.held), Some(code.unwrap_or(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_in_any_pieces_and_not_shown() {
        let text = b"a\x1b[0mb\x1b]other\x07\x1b]crabbox:n1;42\x07trailing";
        for cut in 0..text.len() {
            let mut scanner = EndScanner::new("n1");
            let (first, ended) = scanner.push(&text[..cut]);
            let (shown, ended) = match ended {
                Some(code) => (first, Some(code)),
                None => {
                    let (second, ended) = scanner.push(&text[cut..]);
                    ([first, second].concat(), ended)
                }
            };
            assert_eq!(shown, b"a\x1b[0mb\x1b]other\x07", "{cut}");
            assert_eq!(ended, Some(42), "{cut}");
        }
        let mut scanner = EndScanner::new("n1");
        assert_eq!(scanner.push(b"x\x1b]crabbox:n2;1\x07").1, None);
    }
}

//! Decoding of a command stream, as it arrives.
//!
//! Two framings occur: execd's bare JSON objects, each followed by an empty line, and server-sent events (WHATWG HTML,
//! section 9.2), where data lines start with `data:`. A proxy in between may turn one into the other, so every line is
//! looked at by itself: an empty line ends a frame, `data:` lines are joined, a line that starts with `{` is data too, and
//! all other fields are ignored. A frame of the event `stdout` or `stderr` has the output itself as its data, also where
//! that looks like JSON.

use crate::event::{Event, Kind};

/// The largest frame that is accepted. The official daemon cuts lines at 64 KiB; JSON escapes can make them six times as long.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Decoder {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The stream that the frame's `event:` line names.
    output: Option<Kind>,
    /// Whether a line of the frame was a `data:` line.
    framed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    TooLong,
    /// Not an event; the text is the parser's reason, never the frame, which may carry secrets.
    Invalid(String),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong => write!(f, "event is longer than {MAX_FRAME} bytes"),
            Self::Invalid(reason) => write!(f, "invalid event: {reason}"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl Decoder {
    /// The events that `bytes` complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, DecodeError> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            self.extend(line)?;
            rest = after.get(1..).unwrap_or_default();
            events.extend(self.end_line()?);
        }
        self.extend(rest)?;
        Ok(events)
    }

    /// The event that the stream's end completes: the last frame may lack its empty line.
    pub fn finish(&mut self) -> Result<Option<Event>, DecodeError> {
        if !self.line.is_empty() {
            self.end_line()?;
        }
        self.end_frame()
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        let held = self.data.as_ref().map_or(0, Vec::len);
        if self.line.len() + held + bytes.len() > MAX_FRAME {
            return Err(DecodeError::TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Result<Option<Event>, DecodeError> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            return self.end_frame();
        }
        if let Some(name) = line.strip_prefix(b"event:") {
            self.output = match name.trim_ascii() {
                b"stdout" => Some(Kind::Stdout),
                b"stderr" => Some(Kind::Stderr),
                _ => None,
            };
            return Ok(None);
        }
        let (data, framed) = if let Some(data) = line.strip_prefix(b"data:") {
            (data.strip_prefix(b" ").unwrap_or(data), true)
        } else if line.trim_ascii_start().starts_with(b"{") {
            (line, false)
        } else {
            return Ok(None);
        };
        match &mut self.data {
            Some(before) => {
                before.push(b'\n');
                before.extend_from_slice(data);
            }
            None => self.data = Some(data.to_vec()),
        }
        self.framed |= framed;
        Ok(None)
    }

    fn end_frame(&mut self) -> Result<Option<Event>, DecodeError> {
        let data = self.data.take();
        let output = self.output.take();
        let framed = std::mem::take(&mut self.framed);
        match (data, output) {
            (None, _) => Ok(None),
            (Some(data), Some(kind)) if framed => {
                let text = String::from_utf8_lossy(&data);
                Ok(Some(Event::new(kind, 0).with_text(text)))
            }
            (Some(data), _) if data.is_empty() => Ok(None),
            (Some(data), _) => serde_json::from_slice(&data)
                .map(Some)
                .map_err(|error| DecodeError::Invalid(reason(&error))),
        }
    }
}

fn reason(error: &serde_json::Error) -> String {
    let class = match error.classify() {
        serde_json::error::Category::Io => "unreadable",
        serde_json::error::Category::Syntax => "not JSON",
        serde_json::error::Category::Data => "not an event",
        serde_json::error::Category::Eof => "cut off",
    };
    format!(
        "{class} at line {}, column {}",
        error.line(),
        error.column()
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(chunks: &[&[u8]]) -> Result<Vec<Event>, DecodeError> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for chunk in chunks {
            events.extend(decoder.push(chunk)?);
        }
        events.extend(decoder.finish()?);
        Ok(events)
    }

    #[test]
    fn both_framings_are_accepted() {
        let bare = b"{\"type\":\"init\",\"text\":\"a\",\"timestamp\":1}\n\n{\"type\":\"ping\",\"timestamp\":2}\n\n";
        let sse = b": comment\nevent: message\ndata: {\"type\":\"init\",\ndata:\"text\":\"a\",\"timestamp\":1}\r\n\r\ndata: {\"type\":\"ping\",\"timestamp\":2}";
        let expected = [
            Event::new(Kind::Init, 1).with_text("a"),
            Event::new(Kind::Ping, 2),
        ];
        assert_eq!(all(&[bare]).unwrap(), expected);
        assert_eq!(all(&[sse]).unwrap(), expected);
    }

    #[test]
    fn named_output_is_raw() {
        let stream = b"event: stdout\ndata: {\"type\":\"error\"}\n\nevent:stderr\ndata: a\ndata:\n\nevent: stdout\ndata:\n\nevent: stdout\n\nevent: execution_complete\ndata: {\"type\":\"execution_complete\"}\n\n";
        let text = |kind, text: &str| Event::new(kind, 0).with_text(text);
        assert_eq!(
            all(&[stream]).unwrap(),
            [
                text(Kind::Stdout, "{\"type\":\"error\"}"),
                text(Kind::Stderr, "a\n"),
                text(Kind::Stdout, ""),
                Event::new(Kind::ExecutionComplete, 0),
            ]
        );
        // A bare object is an event, whatever is said before it.
        let bare = b"event: stdout\n{\"type\":\"ping\"}\n\n";
        assert_eq!(all(&[bare]).unwrap(), [Event::new(Kind::Ping, 0)]);
    }

    #[test]
    fn garbage_is_an_error_without_its_text() {
        let error = all(&[b"{\"type\":\"init\",\"secret\n\n"]).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(all(&[b"\n\nretry: 5\n\n"]).unwrap(), []);
    }

    #[test]
    fn endless_frames_are_refused() {
        let mut decoder = Decoder::default();
        let chunk = vec![b'{'; 1 << 20];
        let outcome = (0..8).try_for_each(|_| decoder.push(&chunk).map(drop));
        assert_eq!(outcome, Err(DecodeError::TooLong));
    }

    proptest! {
        #[test]
        fn chunking_does_not_matter(texts in prop::collection::vec(".*", 0..5), cuts in prop::collection::vec(0usize..400, 0..6)) {
            let events: Vec<Event> = texts.iter().map(|text| Event::new(Kind::Stdout, 7).with_text(text.clone())).collect();
            let bytes: Vec<u8> = events.iter().flat_map(Event::encode).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(all(&chunks).unwrap(), events);
        }

        #[test]
        fn hostile_bytes_do_not_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..8)) {
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            let _ = all(&chunks);
        }
    }
}

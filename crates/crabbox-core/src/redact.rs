//! Secrets out of text that people or programs will read.
//!
//! A [`Redactor`] knows some secrets exactly and the shapes that others have. [`Redactor::clean`] is for messages and
//! uses both; [`RedactingWriter`] is for streams and uses the known ones. Rather too much is hidden than too little.

mod excerpt;
mod known;
mod patterns;
mod stream;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use known::KnownSecrets;
pub use stream::RedactingWriter;
pub(crate) use stream::StreamRedactor;

pub const MARK: &str = "[redacted]";

/// Shorter ones would take ordinary words with them.
const MIN_SECRET_CHARS: usize = 4;
/// Hiding one thing can bring out another. What does not come to rest is hidden as a whole.
const MAX_PASSES: usize = 64;

#[derive(Debug, Clone, Default)]
pub struct Redactor {
    known: KnownSecrets,
}

impl Redactor {
    /// Secrets under four characters are not looked for, nor is what the mark itself contains.
    pub fn new<S: Into<String>>(secrets: impl IntoIterator<Item = S>) -> Self {
        let secrets = secrets
            .into_iter()
            .map(Into::into)
            .filter(|secret: &String| {
                secret.chars().count() >= MIN_SECRET_CHARS && !MARK.contains(secret)
            });
        Self {
            known: KnownSecrets::new(secrets.map(String::into_bytes).collect()),
        }
    }

    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut clean = Cow::Borrowed(text);
        for _ in 0..MAX_PASSES {
            let mut spans = self.known.find(clean.as_bytes());
            spans.extend(patterns::find(&clean));
            let replaced = hide(&clean, spans);
            if replaced == clean {
                return clean;
            }
            clean = Cow::Owned(replaced);
        }
        Cow::Borrowed(MARK)
    }

    /// The length of the longest known secret, in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.known.longest()
    }

    fn known(&self) -> &KnownSecrets {
        &self.known
    }
}

/// Replaces the spans, those that overlap by one mark.
fn hide(text: &str, mut spans: Vec<Range<usize>>) -> String {
    spans.sort_by_key(|span| (span.start, span.end));
    let mut hidden = String::with_capacity(text.len());
    let mut at = 0;
    let mut spans = spans.into_iter().peekable();
    while let Some(mut span) = spans.next() {
        while let Some(next) = spans.next_if(|next| next.start < span.end) {
            span.end = span.end.max(next.end);
        }
        hidden.push_str(text.get(at..span.start).unwrap_or_default());
        hidden.push_str(MARK);
        at = span.end;
    }
    hidden.push_str(text.get(at..).unwrap_or_default());
    hidden
}

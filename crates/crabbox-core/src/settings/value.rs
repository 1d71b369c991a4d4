//! From the text of a variable, a flag or a scalar to a value, by the kind of its setting.

use std::time::Duration;

use super::duration::{DurationError, format_duration, parse_duration};
use super::source::printable;
use super::table::{Entries, Kind};
use crate::command::is_identifier;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Count(u64),
    Bool(bool),
    Duration(Duration),
    List(Vec<String>),
}

/// What is wrong with a text. It reads as the rest of a sentence that begins with the setting's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// A name that the sentence begins with whatever the source is.
    pub(super) subject: Option<&'static str>,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            subject: None,
            message: message.into(),
        }
    }

    fn must_be(what: &str, text: &str) -> Self {
        Self::new(format!("must be {what}, not `{}`", printable(text)))
    }

    /// The sentence, for a setting that its source calls `name`.
    pub(super) fn about(&self, name: &str) -> String {
        format!("{} {}", self.subject.unwrap_or(name), self.message)
    }
}

/// What a scalar means for a setting: `None` leaves what a weaker source says.
pub(super) fn scalar(kind: Kind, text: &str) -> Result<Option<Value>, Problem> {
    if text.contains('\0') {
        return Err(Problem::new("must not contain a NUL character"));
    }
    let trimmed = text.trim();
    match kind {
        Kind::Text => Ok((!text.is_empty()).then(|| Value::Text(text.to_owned()))),
        Kind::OptionalText | Kind::Url => Ok(Some(Value::Text(text.to_owned()))),
        Kind::Name => Ok((!trimmed.is_empty()).then(|| Value::Text(trimmed.to_lowercase()))),
        Kind::Count => count(trimmed).map(|count| Some(Value::Count(count))),
        Kind::Bool => boolean(trimmed).map(|yes| Some(Value::Bool(yes))),
        Kind::Duration | Kind::Lifetime(_) if trimmed.is_empty() => Ok(None),
        Kind::Duration => match parse_duration(trimmed) {
            Ok(duration) => Ok(Some(Value::Duration(duration))),
            Err(error) => Err(duration_problem(error, trimmed)),
        },
        Kind::Lifetime(subject) => match parse_duration(trimmed) {
            Ok(Duration::ZERO) | Err(DurationError::Negative) => Err(Problem {
                subject: Some(subject),
                message: "must be positive".to_owned(),
            }),
            // Claims count in seconds: a fraction would be lost, and less than one would mean "for ever".
            Ok(duration) if duration.subsec_nanos() != 0 => Err(Problem {
                subject: Some(subject),
                ..Problem::must_be("whole seconds, at least one", trimmed)
            }),
            Ok(duration) => Ok(Some(Value::Duration(duration))),
            Err(error) => Err(duration_problem(error, trimmed)),
        },
        Kind::List(_) => Err(Problem::must_be("a list", text)),
    }
}

fn count(text: &str) -> Result<u64, Problem> {
    // `2.0` is a whole number too: sizes were decimal numbers once.
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|digit| digit == b'0') => {
            whole
        }
        Some(_) | None => text,
    };
    let digits = whole.strip_prefix(['-', '+']).unwrap_or(whole);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::must_be("an integer", text));
    }
    if whole.starts_with('-') && digits.bytes().any(|byte| byte != b'0') {
        return Err(Problem::must_be("non-negative", text));
    }
    digits
        .parse()
        .map_err(|_| Problem::must_be("an integer below 2^64", text))
}

fn boolean(text: &str) -> Result<bool, Problem> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(Problem::must_be("true or false", text)),
    }
}

fn duration_problem(error: DurationError, text: &str) -> Problem {
    match error {
        DurationError::Malformed => Problem::must_be("a duration such as 90m or 1h30m", text),
        DurationError::Negative => Problem::must_be("non-negative", text),
        DurationError::TooLong => Problem::must_be("shorter than 292 years", text),
    }
}

/// A list in a variable: comma-separated, empty entries skipped, `none` for the empty list.
pub(super) fn comma_list(text: &str) -> Vec<String> {
    if text.trim() == "none" {
        return Vec::new();
    }
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect()
}

/// An entry of a list in a file or of a flag that can be repeated.
pub(super) fn entry(entries: Entries, text: &str) -> Result<String, Problem> {
    if text.contains('\0') {
        return Err(Problem::new("must not contain a NUL character"));
    }
    if text.trim().is_empty() {
        return Err(Problem::new("must not have an empty entry"));
    }
    match entries {
        Entries::Texts => {}
        Entries::Variables => {
            let names = text.split(',').map(str::trim);
            let mut wrong = names.filter(|name| !name.is_empty() && !names_variables(name));
            if let Some(name) = wrong.next() {
                let what = "a list of variables, such as `CI` or `NPM_*`";
                return Err(Problem::must_be(what, name));
            }
        }
    }
    Ok(text.to_owned())
}

/// A bare `*` is not an error: it is ignored, and the caller warns.
fn names_variables(name: &str) -> bool {
    match name.strip_suffix('*') {
        Some("") => true,
        Some(beginning) => is_identifier(beginning),
        None => is_identifier(name),
    }
}

/// The default as a table spells it.
pub(super) fn default(kind: Kind, text: &str) -> Result<Value, Problem> {
    match kind {
        Kind::List(_) => Ok(Value::List(comma_list(text))),
        Kind::Text | Kind::Name if text.is_empty() => Ok(Value::Text(String::new())),
        Kind::Text
        | Kind::OptionalText
        | Kind::Name
        | Kind::Url
        | Kind::Count
        | Kind::Bool
        | Kind::Duration
        | Kind::Lifetime(_) => {
            scalar(kind, text)?.ok_or_else(|| Problem::new("must have a default"))
        }
    }
}

impl Value {
    /// As one word, for people. Empty is empty.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Bool(yes) => yes.to_string(),
            Self::Duration(duration) => format_duration(*duration),
            Self::List(entries) => entries.join(","),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::table::Merge;

    fn message_of(kind: Kind, text: &str) -> String {
        scalar(kind, text).unwrap_err().about("KEY")
    }

    #[test]
    fn texts_by_kind() {
        let text = |text: &str| Ok(Some(Value::Text(text.to_owned())));
        assert_eq!(scalar(Kind::Text, ""), Ok(None));
        assert_eq!(scalar(Kind::Text, " a "), text(" a "));
        assert_eq!(scalar(Kind::OptionalText, ""), text(""));
        assert_eq!(scalar(Kind::Name, "  Made-UP "), text("made-up"));
        assert_eq!(scalar(Kind::Name, " "), Ok(None));
        assert_eq!(
            message_of(Kind::Text, "a\0"),
            "KEY must not contain a NUL character"
        );
    }

    #[test]
    fn counts() {
        for (text, count) in [("0", 0), ("-0", 0), ("+3", 3), ("2.0", 2), ("007", 7)] {
            assert_eq!(scalar(Kind::Count, text), Ok(Some(Value::Count(count))));
        }
        assert_eq!(
            message_of(Kind::Count, "x"),
            "KEY must be an integer, not `x`"
        );
        assert_eq!(
            message_of(Kind::Count, ""),
            "KEY must be an integer, not ``"
        );
        assert_eq!(
            message_of(Kind::Count, "1.5"),
            "KEY must be an integer, not `1.5`"
        );
        assert_eq!(
            message_of(Kind::Count, "NaN"),
            "KEY must be an integer, not `NaN`"
        );
        assert_eq!(
            message_of(Kind::Count, "-1"),
            "KEY must be non-negative, not `-1`"
        );
        assert_eq!(
            message_of(Kind::Count, "18446744073709551616"),
            "KEY must be an integer below 2^64, not `18446744073709551616`"
        );
    }

    #[test]
    fn booleans() {
        for text in ["1", "true", "YES", "on"] {
            assert_eq!(scalar(Kind::Bool, text), Ok(Some(Value::Bool(true))));
        }
        for text in ["0", "False", "no", "off"] {
            assert_eq!(scalar(Kind::Bool, text), Ok(Some(Value::Bool(false))));
        }
        assert_eq!(
            message_of(Kind::Bool, "maybe"),
            "KEY must be true or false, not `maybe`"
        );
    }

    #[test]
    fn durations_and_lifetimes() {
        let life = Kind::Lifetime("idle timeout");
        let minutes = |n: u64| Ok(Some(Value::Duration(Duration::from_secs(60 * n))));
        assert_eq!(scalar(Kind::Duration, "15m"), minutes(15));
        assert_eq!(scalar(Kind::Duration, "0s"), minutes(0));
        assert_eq!(scalar(life, "90m"), minutes(90));
        assert_eq!(scalar(life, ""), Ok(None));
        for text in ["0", "0s", "-5m"] {
            assert_eq!(message_of(life, text), "idle timeout must be positive");
        }
        for text in ["900ms", "1ns", "1.5s", "1h0.1s"] {
            let expected =
                format!("idle timeout must be whole seconds, at least one, not `{text}`");
            assert_eq!(message_of(life, text), expected);
        }
        assert!(scalar(life, "1s").is_ok() && scalar(life, "1.5h").is_ok());
        assert_eq!(
            message_of(life, "90"),
            "KEY must be a duration such as 90m or 1h30m, not `90`"
        );
        assert_eq!(
            message_of(Kind::Duration, "-5m"),
            "KEY must be non-negative, not `-5m`"
        );
    }

    #[test]
    fn lists_of_variables() {
        for text in ["CI", "NPM_*", "_a1", "A,B_*, C", "*"] {
            assert!(entry(Entries::Variables, text).is_ok(), "{text}");
        }
        for (text, wrong) in [
            ("FOO-BAR", "FOO-BAR"),
            ("A,1B", "1B"),
            ("A B", "A B"),
            ("*X", "*X"),
            ("A\u{1b}", "A\\u{1b}"),
        ] {
            assert_eq!(
                entry(Entries::Variables, text).unwrap_err().about("KEY"),
                format!("KEY must be a list of variables, such as `CI` or `NPM_*`, not `{wrong}`")
            );
        }
    }

    #[test]
    fn lists() {
        assert_eq!(comma_list("a, b,,c ,"), ["a", "b", "c"]);
        for empty in ["", " ", "none", " none ", ",,"] {
            assert!(comma_list(empty).is_empty(), "{empty:?}");
        }
        assert_eq!(comma_list("none,a"), ["none", "a"]);
        assert_eq!(entry(Entries::Texts, "none"), Ok("none".to_owned()));
        assert!(entry(Entries::Texts, " ").is_err());
        assert!(scalar(Kind::List(Merge::Replace), "a").is_err());
    }
}

//! Durations as Go writes them: `90m`, `1h30m`, `1.5h`, `300ms`.
//!
//! Nothing is longer than what Go can hold (about 292 years), so that every duration that is read can be written
//! for a reader in either language.

use std::fmt;
use std::time::Duration;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Unit by unit, and the longer name of two with the same beginning first.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3600 * NANOS_PER_SECOND),
];
/// Digits behind the point that can still make a nanosecond of an hour.
const FRACTION_DIGITS: usize = 15;

/// Why a text is not a valid duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurationError {
    Malformed,
    Negative,
    TooLong,
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "expected a value such as 90m or 1h30m",
            Self::Negative => "must not be negative",
            Self::TooLong => "must be shorter than 292 years",
        })
    }
}

impl std::error::Error for DurationError {}

/// Reads Go's syntax. A negative duration is told apart, because what is wrong with it depends on the setting.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let nanos = if digits == "0" {
        0
    } else {
        total_nanos(digits)?
    };
    if nanos == 0 {
        return Ok(Duration::ZERO);
    }
    if negative {
        return Err(DurationError::Negative);
    }
    Ok(Duration::from_nanos(nanos))
}

fn total_nanos(text: &str) -> Result<u64, DurationError> {
    if text.is_empty() {
        return Err(DurationError::Malformed);
    }
    let mut total: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (nanos, next) = element(rest)?;
        total = total.saturating_add(nanos);
        rest = next;
    }
    match i64::try_from(total) {
        Ok(nanos) => Ok(nanos.unsigned_abs()),
        Err(_) => Err(DurationError::TooLong),
    }
}

/// One number with its unit, and what follows.
fn element(text: &str) -> Result<(u128, &str), DurationError> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::Malformed);
    }
    let (unit, rest) = UNITS
        .iter()
        .filter_map(|(name, nanos)| Some((u128::from(*nanos), rest.strip_prefix(name)?)))
        // `5ms` begins like `5m`: what follows a unit is a number or nothing.
        .find(|(_, rest)| !rest.starts_with(|c: char| !c.is_ascii_digit() && c != '.'))
        .ok_or(DurationError::Malformed)?;
    let whole = match whole {
        "" => 0,
        digits => digits
            .parse::<u64>()
            .map_or(u128::MAX, |number| u128::from(number) * unit),
    };
    Ok((whole.saturating_add(part(fraction, unit)), rest))
}

/// The nanoseconds behind the point, cut off and not rounded.
fn part(fraction: &str, unit: u128) -> u128 {
    let mut scale = 1;
    let mut number = 0;
    for digit in fraction.bytes().take(FRACTION_DIGITS) {
        number = number * 10 + u128::from(digit.wrapping_sub(b'0'));
        scale *= 10;
    }
    number * unit / scale
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Writes what Go writes: `1h30m0s`, `15m0s`, `1.234s`, `300ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.subsec_nanos();
    let seconds = duration.as_secs();
    if seconds == 0 {
        return match nanos {
            0 => "0s".to_owned(),
            1..1_000 => format!("{nanos}ns"),
            1_000..1_000_000 => format!("{}µs", decimal(nanos.into(), 3)),
            _ => format!("{}ms", decimal(nanos.into(), 6)),
        };
    }
    let rest = decimal(seconds % 60 * NANOS_PER_SECOND + u64::from(nanos), 9);
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{rest}s"),
        (0, minutes) => format!("{minutes}m{rest}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// `number` with the point before its last `places` digits, without zeros at the end.
fn decimal(number: u64, places: u32) -> String {
    let scale = 10_u64.pow(places);
    let places = places as usize;
    let text = format!("{}.{:0places$}", number / scale, number % scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_go_reads() {
        let read = |text| parse_duration(text).map(|duration| duration.as_nanos());
        let second = 1_000_000_000;
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("-0s", 0),
            ("90m", 5400 * second),
            ("1h30m", 5400 * second),
            ("1.5h", 5400 * second),
            ("180s", 180 * second),
            ("+5s", 5 * second),
            ("300ms", 300_000_000),
            ("5ms", 5_000_000),
            ("1us", 1_000),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("1ns", 1),
            (".5s", second / 2),
            ("1.s", second),
            ("1h1h", 7200 * second),
            ("0.000000000000000001h", 0),
            ("9223372036854775807ns", 9_223_372_036_854_775_807),
        ] {
            assert_eq!(read(text), Ok(nanos), "{text}");
        }
        for text in [
            "", "-", "+", ".", ".s", "s", "5", "90", "1x", "1 h", " 1h", "1h ", "m5", "1h-5m",
            "--5s", "∞s", "5msm", "1hx",
        ] {
            assert_eq!(read(text), Err(DurationError::Malformed), "{text}");
        }
        assert_eq!(read("-5m"), Err(DurationError::Negative));
        for text in ["9223372036854775808ns", "99999999999999999999h", "2562048h"] {
            assert_eq!(read(text), Err(DurationError::TooLong), "{text}");
        }
    }

    #[test]
    fn writes_what_go_writes() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (300_000_000, "300ms"),
            (1_234_000_000, "1.234s"),
            (60_000_000_000, "1m0s"),
            (900_000_000_000, "15m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_400_000_000_000, "1h30m0s"),
            (5_400_000_000_001, "1h30m0.000000001s"),
            (9_223_372_036_854_775_807, "2562047h47m16.854775807s"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanos)), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(nanos in 0..=i64::MAX.unsigned_abs()) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn small_ones_too(nanos in 0..5_000_000_000_u64) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[-+.0-9a-zµ ]{0,24}") {
            if let Ok(duration) = parse_duration(&text) {
                prop_assert!(duration.as_nanos() <= i64::MAX.unsigned_abs().into());
            }
        }
    }
}

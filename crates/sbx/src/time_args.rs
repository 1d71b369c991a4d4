//! Parsing of the durations and points in time that users type: `1h30m`, `2026-01-31T12:00:00Z`.

use jiff::{SignedDuration, Timestamp};

use crate::failure::{Failure, Kind};

/// Ten years; anything longer is taken for a typing error.
const MAX_SECONDS: u64 = 10 * 366 * 86_400;

/// `90s`, `10m`, `1h30m`, `2d`: whole seconds, at least one.
pub(crate) fn duration(text: &str) -> Result<u64, Failure> {
    let refused = || {
        Failure::new(
            Kind::BadRequest,
            format!("invalid duration `{}`", text.escape_debug()),
        )
        .hint("use a duration such as 90s, 10m, 1h30m or 2d")
    };
    let (mut total, mut digits) = (0_u64, String::new());
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(refused()),
        };
        let count: u64 = digits.parse().map_err(|_| refused())?;
        total = count
            .checked_mul(unit)
            .and_then(|seconds| total.checked_add(seconds))
            .ok_or_else(refused)?;
        digits.clear();
    }
    if !digits.is_empty() || !(1..=MAX_SECONDS).contains(&total) {
        return Err(refused());
    }
    Ok(total)
}

/// An RFC 3339 timestamp, or a duration before `now`.
pub(crate) fn timestamp(text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    if let Ok(timestamp) = text.parse() {
        return Ok(timestamp);
    }
    let seconds = duration(text).map_err(|_| {
        Failure::new(
            Kind::BadRequest,
            format!("invalid time `{}`", text.escape_debug()),
        )
        .hint("use a duration such as 10m or 2d, or a timestamp such as 2026-01-31T12:00:00Z")
    })?;
    let before = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    Ok(now.checked_sub(before).unwrap_or(Timestamp::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in [
            ("1s", 1),
            ("10m", 600),
            ("1h30m", 5400),
            ("2d", 172_800),
            ("0m1s", 1),
        ] {
            assert_eq!(duration(text).unwrap(), seconds, "{text}");
        }
        for text in [
            "",
            "0s",
            "10",
            "m",
            "-1s",
            "1.5h",
            "1 h",
            "10M",
            "1w",
            "99999999999999999999d",
            "18446744073709551615d",
            "4000d",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn timestamps_are_absolute_or_relative() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let shown = |text| timestamp(text, now).unwrap().to_string();
        assert_eq!(shown("10m"), "2026-01-31T11:50:00Z");
        assert_eq!(shown("2026-01-01T00:00:00+01:00"), "2025-12-31T23:00:00Z");
        assert!(timestamp("yesterday", now).is_err());
    }
}

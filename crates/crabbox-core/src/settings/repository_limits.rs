//! What a repository may set without the user's trust. Every answer is "no" unless a rule says otherwise.

use std::collections::{BTreeMap, BTreeSet};

use super::profiles::ProfileLayer;
use super::source::printable;
use super::table::{Setting, Trust};
use super::value::Value;

/// What the user says about one setting, by whatever means.
#[derive(Debug)]
pub(super) struct UserValue {
    /// The user's file, or the default.
    pub(super) base: Value,
    /// Variables and flags: the user's word too, though they win anyway.
    pub(super) stronger: Vec<Value>,
}

/// What the user has set up.
#[derive(Debug)]
pub(super) struct User<'a> {
    /// Providers by name, the default among them.
    pub(super) providers: BTreeSet<String>,
    pub(super) profiles: Option<&'a BTreeMap<String, ProfileLayer>>,
}

/// Why the repository may not set this, or `None` if it may.
pub(super) fn refusal(
    setting: &Setting,
    value: &Value,
    own: &UserValue,
    user: &User<'_>,
) -> Option<String> {
    match setting.trust {
        Trust::Anyone => None,
        Trust::User | Trust::OutsideFiles | Trust::FlagOnly => {
            Some("it controls what runs or is reachable outside the sandbox".to_owned())
        }
        Trust::NeverRepository => {
            Some("only your own file and the flag may, whatever you trust".to_owned())
        }
        Trust::ShorterThanUser => longer(value, own),
        Trust::WithinUser => match value {
            Value::List(names) => not_covered(names, &own.lists()),
            Value::Text(_) | Value::Count(_) | Value::Bool(_) | Value::Duration(_) => {
                Some("not a list".to_owned())
            }
        },
        Trust::ConfiguredProvider => {
            let name = value.to_text();
            (!user.providers.contains(&name))
                .then(|| format!("you have not configured `{}`", printable(&name)))
        }
        // To say what holds anyway gains nothing.
        Trust::OwnProfile if own.base == *value => None,
        Trust::OwnProfile => {
            let name = value.to_text();
            let profile = user.profiles.and_then(|profiles| profiles.get(&name))?;
            (!profile.env.is_empty() || profile.allow.is_some())
                .then(|| format!("your own profile `{}` sets variables", printable(&name)))
        }
    }
}

impl UserValue {
    /// Every list that allows something.
    pub(super) fn lists(&self) -> Vec<&[String]> {
        [&self.base]
            .into_iter()
            .chain(&self.stronger)
            .filter_map(|value| match value {
                Value::List(names) => Some(names.as_slice()),
                Value::Text(_) | Value::Count(_) | Value::Bool(_) | Value::Duration(_) => None,
            })
            .collect()
    }
}

/// Those of `names` that no list covers.
pub(super) fn not_covered(names: &[String], lists: &[&[String]]) -> Option<String> {
    /// More would hide the message.
    const SHOWN: usize = 5;
    let covered = |name: &str| {
        let mut allowed = lists.iter().flat_map(|list| list.iter());
        allowed.any(|pattern| covers(pattern, name))
    };
    let extra: Vec<_> = names.iter().filter(|name| !covered(name)).collect();
    if extra.is_empty() {
        return None;
    }
    let mut shown: Vec<_> = (extra.iter().take(SHOWN))
        .map(|name| format!("`{}`", printable(name)))
        .collect();
    if extra.len() > SHOWN {
        shown.push(format!("{} more", extra.len() - SHOWN));
    }
    let verb = if extra.len() == 1 { "is" } else { "are" };
    Some(format!("{} {verb} not in your own list", shown.join(", ")))
}

/// Whether everything that `name` can mean is meant by `pattern` too. A bare `*` means nothing.
fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some("") => false,
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

fn longer(value: &Value, own: &UserValue) -> Option<String> {
    let limits = || [&own.base].into_iter().chain(&own.stronger);
    let fits = limits().any(|limit| match (length(value), length(limit)) {
        (Some(value), Some(limit)) => value <= limit,
        (None, _) | (_, None) => false,
    });
    (!fits).then(|| {
        let (value, limit) = (value.to_text(), own.base.to_text());
        format!("{value} is longer than your {limit}")
    })
}

/// For comparing: zero is without limit.
fn length(value: &Value) -> Option<u128> {
    let length = match value {
        Value::Duration(duration) => duration.as_nanos(),
        Value::Count(count) => u128::from(*count),
        Value::Text(_) | Value::Bool(_) | Value::List(_) => return None,
    };
    Some(match length {
        0 => u128::MAX,
        length => length,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn beginnings_cover_names_and_longer_beginnings() {
        assert!(covers("CI", "CI"));
        assert!(covers("AWS_*", "AWS_REGION"));
        assert!(covers("AWS_*", "AWS_S3_*"));
        assert!(!covers("AWS_S3_*", "AWS_*"));
        assert!(!covers("CI", "CI_*"));
        assert!(!covers("*", "CI"));
        assert!(!covers("*", "*"));
        assert!(!covers("", "CI"));
    }

    #[test]
    fn zero_is_without_limit() {
        let own = |base: u64| UserValue {
            base: Value::Count(base),
            stronger: Vec::new(),
        };
        assert_eq!(longer(&Value::Count(5), &own(0)), None);
        assert_eq!(longer(&Value::Count(5), &own(5)), None);
        assert_eq!(
            longer(&Value::Count(0), &own(5)),
            Some("0 is longer than your 5".to_owned())
        );
        assert!(longer(&Value::Count(6), &own(5)).is_some());
    }

    #[test]
    fn a_longer_flag_of_the_user_is_a_limit_too() {
        let minutes = |n: u64| Value::Duration(Duration::from_secs(60 * n));
        let own = UserValue {
            base: minutes(30),
            stronger: vec![minutes(120)],
        };
        assert_eq!(longer(&minutes(100), &own), None);
        assert_eq!(
            longer(&minutes(180), &own),
            Some("3h0m0s is longer than your 30m0s".to_owned())
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = ["A", "B", "C", "D", "E", "F\u{1b}", "G"]
            .map(Into::into)
            .into();
        assert_eq!(
            not_covered(&names, &[&["A".to_owned()]]),
            Some("`B`, `C`, `D`, `E`, `F\\u{1b}`, 1 more are not in your own list".to_owned())
        );
    }
}

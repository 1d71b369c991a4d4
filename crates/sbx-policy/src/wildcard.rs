//! Name patterns with wildcards: some labels in front that are matched by globs, and a fixed suffix behind them.
//! The suffix is always there and never empty, which is what lets the index look a pattern up by it.

use std::fmt;

use crate::host::{self, DomainName};
use crate::pattern::PatternError;

const ANY_DEPTH: &str = "**";
const ONE_LABEL: &str = "*";
const MAX_LABEL: usize = 63;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Wildcard {
    suffix: DomainName,
    /// One glob per label between the leading `**` and the suffix, left to right.
    globs: Vec<Box<str>>,
    /// A leading `**`: one label or more before everything else.
    deep: bool,
}

/// The two shapes that nearly every wildcard has, and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `**.suffix`
    Below,
    /// `*.suffix`
    Child,
    Globs,
}

impl Wildcard {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let bad = |why| PatternError::Wildcard {
            text: text.to_owned(),
            why,
        };
        let ascii = host::to_ascii(text)?;
        let labels: Vec<&str> = ascii
            .strip_suffix('.')
            .unwrap_or(&ascii)
            .split('.')
            .collect();
        let (deep, labels) = match labels.split_first() {
            Some((&ANY_DEPTH, rest)) => (true, rest),
            Some(_) | None => (false, labels.as_slice()),
        };
        let wild = labels.iter().rposition(|label| is_glob(label));
        let (globs, suffix) = labels.split_at(wild.map_or(0, |position| position + 1));
        if suffix.is_empty() {
            return Err(bad("the last label must be written out"));
        }
        for glob in globs {
            check_glob(glob).map_err(bad)?;
        }
        Ok(Self {
            suffix: DomainName::parse(&suffix.join("."))?,
            globs: globs.iter().map(|glob| Box::from(*glob)).collect(),
            deep,
        })
    }

    pub(crate) fn suffix(&self) -> &DomainName {
        &self.suffix
    }

    pub(crate) fn shape(&self) -> Shape {
        match (self.deep, self.globs.as_slice()) {
            (true, []) => Shape::Below,
            (false, [only]) if &**only == ONE_LABEL => Shape::Child,
            (true | false, _) => Shape::Globs,
        }
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        name.strip_suffix(self.suffix.as_str())
            .and_then(|head| head.strip_suffix('.'))
            .is_some_and(|head| self.matches_head(head))
    }

    /// Whether the labels in front of the suffix match.
    pub(crate) fn matches_head(&self, head: &str) -> bool {
        let mut labels = head.rsplit('.');
        let globs_match = self
            .globs
            .iter()
            .rev()
            .all(|glob| labels.next().is_some_and(|label| glob_matches(glob, label)));
        globs_match && labels.next().is_some() == self.deep
    }

    /// How much of a name the pattern fixes; more is more specific.
    pub(crate) fn fixed_length(&self) -> usize {
        let in_globs = self.globs.iter().flat_map(|glob| glob.bytes());
        self.suffix.as_str().len() + in_globs.filter(|b| !b"*?".contains(b)).count()
    }

    pub(crate) fn is_deep(&self) -> bool {
        self.deep
    }
}

impl fmt::Display for Wildcard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.deep {
            write!(f, "{ANY_DEPTH}.")?;
        }
        for glob in &self.globs {
            write!(f, "{glob}.")?;
        }
        self.suffix.fmt(f)
    }
}

fn is_glob(label: &str) -> bool {
    label.contains(['*', '?'])
}

fn check_glob(label: &str) -> Result<(), &'static str> {
    if label.is_empty() {
        return Err("it has an empty label");
    }
    if label.len() > MAX_LABEL {
        return Err("a label has at most 63 characters");
    }
    if label.contains(ANY_DEPTH) {
        return Err("`**` can only be the whole first label");
    }
    if label.starts_with("xn--") && is_glob(label) {
        return Err("a wildcard inside an internationalised label has no meaning");
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_*?".contains(c);
    if !label.chars().all(plain) {
        return Err("only letters, digits, `-`, `_`, `*` and `?` can stand in a label");
    }
    Ok(())
}

/// `*` is any run of characters, `?` is one. Greedy with one point of return, so the cost is at most the product
/// of the two lengths, which are 63 at most.
fn glob_matches(glob: &str, label: &str) -> bool {
    let (mut glob, mut label) = (glob.as_bytes(), label.as_bytes());
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        match (glob.split_first(), label.split_first()) {
            (Some((b'*', rest)), _) => {
                retry = Some((rest, label));
                glob = rest;
            }
            (Some((g, glob_rest)), Some((l, label_rest))) if *g == b'?' || g == l => {
                glob = glob_rest;
                label = label_rest;
            }
            (None, None) => return true,
            (Some(_) | None, _) => {
                let Some((after_star, from)) = retry else {
                    return false;
                };
                let Some((_, shorter)) = from.split_first() else {
                    return false;
                };
                retry = Some((after_star, shorter));
                glob = after_star;
                label = shorter;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_within_one_label() {
        let table = [
            ("*", "", true),
            ("*", "abc", true),
            ("a*", "a", true),
            ("a*c", "abc", true),
            ("a*c", "ab", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYbZ", false),
            ("?", "a", true),
            ("?", "", false),
            ("?", "ab", false),
            ("crl?", "crl3", true),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ];
        for (glob, label, expected) in table {
            assert_eq!(glob_matches(glob, label), expected, "{glob} {label}");
        }
    }
}

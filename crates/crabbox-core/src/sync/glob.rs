//! Globs over paths: `*`, `?` and classes stay within a component, `**` as a component is any number of them.
//!
//! The classes are those of Go's `path.Match`, which the original used: `[a-z]`, `[^a-z]`, a backslash takes the next
//! character as it is, and an unfinished class or a trailing backslash is an error. `**` as a component is ours: there
//! it is one `*`, and a rule that people know from `.gitignore` would silently let through what it is meant to keep.

use std::fmt;

/// A glob for one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    /// What every match begins with: nearly every name is told apart by it.
    prefix: Vec<u8>,
    tokens: Vec<Piece<Token>>,
}

/// A piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece<P> {
    /// Any number of whatever there is.
    Any,
    /// One of what it takes.
    One(P),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Char(char),
    Any,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// A glob for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathGlob {
    prefix: Vec<u8>,
    segments: Vec<Piece<Glob>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadGlob(&'static str);

impl fmt::Display for BadGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Whether the text means only itself.
pub(super) fn is_literal(pattern: &[u8]) -> bool {
    literal_prefix(pattern).len() == pattern.len()
}

fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let special = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    special.and_then(|at| pattern.get(..at)).unwrap_or(pattern)
}

impl Glob {
    pub(super) fn parse(pattern: &[u8]) -> Result<Self, BadGlob> {
        let mut chars = decoded(pattern).into_iter();
        let mut tokens = Vec::new();
        while let Some(char) = chars.next() {
            let token = match char {
                '*' => {
                    if tokens.last() != Some(&Piece::Any) {
                        tokens.push(Piece::Any);
                    }
                    continue;
                }
                '?' => Token::Any,
                '[' => class(&mut chars)?,
                '\\' => Token::Char(chars.next().ok_or(BadGlob("it ends with a backslash"))?),
                char => Token::Char(char),
            };
            tokens.push(Piece::One(token));
        }
        Ok(Self {
            prefix: literal_prefix(pattern).to_vec(),
            tokens,
        })
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        name.starts_with(&self.prefix) && matches(&self.tokens, &decoded(name), Token::takes)
    }
}

impl PathGlob {
    pub(super) fn parse(pattern: &[u8]) -> Result<Self, BadGlob> {
        let segment = |part: &[u8]| {
            Ok(match part {
                b"**" => Piece::Any,
                part => Piece::One(Glob::parse(part)?),
            })
        };
        let segments = pattern.split(|&byte| byte == b'/').map(segment);
        let mut segments = segments.collect::<Result<Vec<_>, _>>()?;
        // At the end it stands for one component at least: `a/**` is what is in `a`.
        if segments.last() == Some(&Piece::Any) {
            segments.push(Piece::One(Glob::parse(b"*")?));
        }
        Ok(Self {
            prefix: literal_prefix(pattern).to_vec(),
            segments,
        })
    }

    /// Whether the whole path matches.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        if !path.starts_with(&self.prefix) {
            return false;
        }
        let parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        matches(&self.segments, &parts, |glob, part| glob.matches(part))
    }
}

impl From<Glob> for PathGlob {
    fn from(glob: Glob) -> Self {
        Self {
            prefix: glob.prefix.clone(),
            segments: vec![Piece::One(glob)],
        }
    }
}

fn class(chars: &mut impl Iterator<Item = char>) -> Result<Token, BadGlob> {
    const OPEN: BadGlob = BadGlob("unclosed `[`");
    let mut negated = false;
    let mut ranges = Vec::new();
    let mut next = chars.next().ok_or(OPEN)?;
    if next == '^' {
        negated = true;
        next = chars.next().ok_or(OPEN)?;
    }
    while next != ']' || ranges.is_empty() {
        let low = class_char(next, chars)?;
        let mut high = low;
        next = chars.next().ok_or(OPEN)?;
        if next == '-' {
            high = class_char(chars.next().ok_or(OPEN)?, chars)?;
            next = chars.next().ok_or(OPEN)?;
        }
        ranges.push((low, high));
    }
    Ok(Token::Class { negated, ranges })
}

fn class_char(char: char, chars: &mut impl Iterator<Item = char>) -> Result<char, BadGlob> {
    match char {
        '\\' => chars.next().ok_or(BadGlob("unclosed `[`")),
        ']' | '-' => Err(BadGlob(
            "`]` and `-` need a backslash before them in a class",
        )),
        char => Ok(char),
    }
}

/// Whether the pattern is the whole text. Goes back only to the last [`Piece::Any`]: what an earlier one could take as
/// well, the last can.
fn matches<P, T>(pattern: &[Piece<P>], text: &[T], takes: impl Fn(&P, &T) -> bool) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    let mut retry: Option<(&[Piece<P>], &[T])> = None;
    loop {
        match (pattern.split_first(), text.split_first()) {
            (Some((Piece::Any, rest)), _) => {
                retry = Some((rest, text));
                pattern = rest;
                continue;
            }
            (Some((Piece::One(piece), rest)), Some((one, behind))) if takes(piece, one) => {
                (pattern, text) = (rest, behind);
                continue;
            }
            (None, None) => return true,
            (Some(_) | None, _) => {}
        }
        let Some((after, from)) = retry else {
            return false;
        };
        let Some((_, shorter)) = from.split_first() else {
            return false;
        };
        retry = Some((after, shorter));
        (pattern, text) = (after, shorter);
    }
}

impl Token {
    fn takes(&self, char: &char) -> bool {
        match self {
            Self::Char(own) => own == char,
            Self::Any => true,
            Self::Class { negated, ranges } => {
                let within = ranges
                    .iter()
                    .any(|(low, high)| (low..=high).contains(&char));
                within != *negated
            }
        }
    }
}

/// Characters; a byte that belongs to none is one of its own.
fn decoded(bytes: &[u8]) -> Vec<char> {
    let mut chars = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        chars.extend(chunk.valid().chars());
        chars.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    chars
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(pattern: &str, text: &str) -> bool {
        Glob::parse(pattern.as_bytes())
            .unwrap()
            .matches(text.as_bytes())
    }

    fn path(pattern: &str, text: &str) -> bool {
        PathGlob::parse(pattern.as_bytes())
            .unwrap()
            .matches(text.as_bytes())
    }

    #[test]
    fn names() {
        let cases = [
            ("abc", "abc", true),
            ("*", "", true),
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*", "b", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("._*", "._x", true),
            ("a?c", "aéc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "éx", true),
            (r"a\*b", "a*b", true),
            (r"a\*b", "axb", false),
            (r"[\]a]", "]", true),
            ("[!a]", "!", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(name(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn malformed() {
        for pattern in [
            "[", "[a", "[]", "[]a]", "[^", "[^]", "[a-", "[a-]", "[-]", "a\\", r"[a\",
        ] {
            assert!(Glob::parse(pattern.as_bytes()).is_err(), "{pattern}");
        }
    }

    #[test]
    fn paths() {
        let cases = [
            ("apps/*/.build", "apps/x/.build", true),
            ("apps/*/.build", "apps/x/y/.build", false),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("**/b", "b", true),
            ("**/b", "a/x/b", true),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/x/y", false),
            ("a/**", "a", false),
            ("a/**", "a/x/y", true),
            ("**/x/**/y", "a/x/y/x/z/y", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(path(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn an_invalid_byte_matches_as_one_character() {
        let glob = Glob::parse(b"a?b").unwrap();
        assert!(glob.matches(b"a\xffb"));
        assert!(!glob.matches(b"a\xff\xfeb"));
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!name(&pattern, &"a".repeat(4000)));
    }

    /// The meaning, spelled out without regard to time.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            ['?', rest @ ..] => !text.is_empty() && naive(rest, &text[1..]),
            ['\\', char, rest @ ..] => text.first() == Some(char) && naive(rest, &text[1..]),
            ['[', '^', low, '-', high, ']', rest @ ..] => {
                text.first().is_some_and(|c| !(low..=high).contains(&c)) && naive(rest, &text[1..])
            }
            ['[', low, '-', high, ']', rest @ ..] => {
                text.first().is_some_and(|c| (low..=high).contains(&c)) && naive(rest, &text[1..])
            }
            [char, rest @ ..] => text.first() == Some(char) && naive(rest, &text[1..]),
        }
    }

    fn naive_path(pattern: &[&str], text: &[&str]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ["**"] => !text.is_empty(),
            ["**", rest @ ..] => (0..=text.len()).any(|skip| naive_path(rest, &text[skip..])),
            [glob, rest @ ..] => text.split_first().is_some_and(|(part, behind)| {
                let chars = |text: &str| text.chars().collect::<Vec<_>>();
                naive(&chars(glob), &chars(part)) && naive_path(rest, behind)
            }),
        }
    }

    fn pattern() -> impl Strategy<Value = String> {
        let token = prop_oneof![
            Just("a".to_owned()),
            Just("b".to_owned()),
            Just("é".to_owned()),
            Just("*".to_owned()),
            Just("?".to_owned()),
            Just("[a-b]".to_owned()),
            Just("[^b-b]".to_owned()),
            Just(r"\*".to_owned()),
        ];
        prop::collection::vec(token, 1..8).prop_map(|tokens| tokens.concat())
    }

    proptest! {
        #[test]
        fn as_the_naive_matcher_says(pattern in pattern(), text in "[abé*]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(name(&pattern, &text), naive(&chars(&pattern), &chars(&text)));
        }

        #[test]
        fn paths_as_the_naive_matcher_says(
            segments in prop::collection::vec(prop_oneof![Just("**".to_owned()), pattern()], 1..5),
            parts in prop::collection::vec("[ab]{1,3}", 1..6),
        ) {
            let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            prop_assert_eq!(path(&segments.join("/"), &parts.join("/")), naive_path(&segments, &parts));
        }

        #[test]
        fn any_bytes_do(pattern in prop::collection::vec(any::<u8>(), 0..20), text in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(glob) = PathGlob::parse(&pattern) {
                glob.matches(&text);
            }
        }
    }
}

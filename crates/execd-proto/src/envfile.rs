//! The file that `EXECD_ENVS` names: variables that clients persist for later commands.
//!
//! Entries are `NAME=value`. A value in single quotes is literal and may span lines; one in double quotes has the escapes
//! `\\`, `\"`, `\n`, `\r` and `\t`; any other value ends with its line. Lines that start with `#` are comments. The last
//! entry of a name wins.

use std::collections::BTreeMap;

pub fn parse(text: &str) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let line_end = rest.find('\n').map_or(rest.len(), |end| end + 1);
        let (line, after_line) = rest.split_at(line_end);
        let Some((name, _)) = line.split_once('=').filter(|(name, _)| is_name(name)) else {
            rest = after_line;
            continue;
        };
        let value = rest.get(name.len() + 1..).unwrap_or_default();
        let (value, after) = parse_value(value);
        variables.insert(name.to_owned(), value);
        rest = after;
    }
    variables
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

/// The value, and the text after its line.
fn parse_value(text: &str) -> (String, &str) {
    let quoted = match text.chars().next() {
        Some('\'') => single_quoted(text.get(1..).unwrap_or_default()),
        Some('"') => double_quoted(text.get(1..).unwrap_or_default()),
        Some(_) | None => None,
    };
    let (value, rest) = quoted.unwrap_or_else(|| {
        let (value, _) = split_line(text);
        let trimmed = value.trim_end_matches('\r');
        (
            trimmed.to_owned(),
            text.get(value.len()..).unwrap_or_default(),
        )
    });
    (value, split_line(rest).1)
}

fn single_quoted(text: &str) -> Option<(String, &str)> {
    let (value, rest) = text.split_once('\'')?;
    Some((value.to_owned(), rest))
}

fn double_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..).unwrap_or_default())),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

fn split_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_of_values() {
        let text = "# comment\nA=1\nB='two\nlines'\nC=\"it's\\n\\\"3\\\"\"\nA=4\nnot a pair\nD=\n";
        let variables: Vec<(String, String)> = parse(text).into_iter().collect();
        let expected = [
            ("A", "4"),
            ("B", "two\nlines"),
            ("C", "it's\n\"3\""),
            ("D", ""),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, expected);
    }

    #[test]
    fn an_open_quote_ends_with_its_line() {
        let variables = parse("A='open\nB=1\n");
        assert_eq!(variables.get("A").unwrap(), "'open");
        assert_eq!(variables.get("B").unwrap(), "1");
    }

    proptest! {
        #[test]
        fn single_quotes_are_lossless(value in "[^']*") {
            let variables = parse(&format!("A='{value}'\nB=1\n"));
            prop_assert_eq!(variables.get("A"), Some(&value));
            prop_assert_eq!(variables.get("B").map(String::as_str), Some("1"));
        }

        #[test]
        fn hostile_text_does_not_panic(text in ".*") {
            let _ = parse(&text);
        }
    }
}

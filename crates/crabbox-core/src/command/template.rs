//! A command that is written in one text, as presets and jobs have it: its words, and the values that go into it.

use std::collections::BTreeMap;

use super::{OPERATORS, assignment, is_operator, quote};
use crate::{Code, Failure};

/// The command of a preset with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expanded {
    /// Executed as it is: no word of it means anything to a shell.
    Words(Vec<String>),
    Script(String),
}

/// A word, and where it is quoted from: then it is neither an operator nor a variable assignment.
#[derive(Debug, Default, PartialEq, Eq)]
struct Word {
    text: String,
    quoted_at: Option<usize>,
}

impl Word {
    fn quote_begins(&mut self) {
        let here = self.text.len();
        self.quoted_at.get_or_insert(here);
    }

    fn is_literal(&self) -> bool {
        self.quoted_at.is_some()
    }

    /// Name and value, where the name stands there as it is.
    fn assignment(&self) -> Option<(&str, &str)> {
        let (name, value) = assignment(&self.text)?;
        let is_plain = self.quoted_at.is_none_or(|at| at > name.len());
        is_plain.then_some((name, value))
    }
}

impl Expanded {
    /// Fills in `{{name}}`. A value is never split into words, and never an operator; in a script it is text like the rest.
    pub fn new(
        command: &str,
        shell: bool,
        values: &BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
        if shell {
            return Ok(Self::Script(fill(command, values)?));
        }
        let mut words = parse(command)?;
        for word in &mut words {
            // The value may be spelled like an operator.
            if let Some(place) = word.text.find("{{") {
                let quoted = word.quoted_at.map_or(place, |at| at.min(place));
                word.quoted_at = Some(quoted);
            }
            word.text = fill(&word.text, values)?;
        }
        Ok(Self::of(&words))
    }

    fn of(words: &[Word]) -> Self {
        let is_operator =
            |at: usize, word: &Word| !word.is_literal() && is_operator(&word.text, at, words.len());
        let joins = (1..).zip(words).any(|(at, word)| is_operator(at, word));
        let assigns = words.len() > 1
            && words
                .first()
                .is_some_and(|word| word.assignment().is_some());
        if !joins && !assigns {
            return Self::Words(words.iter().map(|word| word.text.clone()).collect());
        }
        let mut leading = true;
        let mut parts = Vec::with_capacity(words.len());
        for (at, word) in (1..).zip(words) {
            if is_operator(at, word) {
                leading = true;
                parts.push(word.text.clone());
            } else if let (true, Some((name, value))) = (leading, word.assignment()) {
                parts.push(format!("{name}={}", quote(value)));
            } else {
                leading = false;
                parts.push(quote(&word.text));
            }
        }
        Self::Script(parts.join(" "))
    }

    /// The words, for people.
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Words(words) => words.clone(),
            Self::Script(script) => vec![script.clone()],
        }
    }

    /// What is executed; `shell` takes a script as its next word.
    pub fn argv(&self, shell: &[&str]) -> Vec<String> {
        match self {
            Self::Words(words) => words.clone(),
            Self::Script(script) => {
                let shell = shell.iter().map(|word| (*word).to_owned());
                shell.chain([script.clone()]).collect()
            }
        }
    }
}

/// What `crabbox run` is given so that it runs this text, which is split with the quotes and escapes of a POSIX shell: the
/// words, and the flag that they need where one of them is quoted and spelled like an operator.
pub fn run_words(text: &str) -> Result<(Option<&'static str>, Vec<String>), Failure> {
    let words = parse(text)?;
    let is_quoted_operator =
        |word: &Word| word.is_literal() && OPERATORS.contains(&word.text.as_str());
    if !words.iter().any(is_quoted_operator) {
        return Ok((None, words.into_iter().map(|word| word.text).collect()));
    }
    Ok(match Expanded::of(&words) {
        Expanded::Words(words) => (Some("--no-shell"), words),
        Expanded::Script(script) => (Some("--shell"), vec![script]),
    })
}

fn parse(text: &str) -> Result<Vec<Word>, Failure> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = rest.get(c.len_utf8()..).unwrap_or_default();
        if c.is_whitespace() {
            words.extend(word.take());
            rest = after;
            continue;
        }
        let word = word.get_or_insert_default();
        // The place of a value is one piece, also with blanks in it.
        if let Some(end) = rest.strip_prefix("{{").and_then(|inner| inner.find("}}")) {
            let (place, after) = rest.split_at_checked(end + 4).unwrap_or((rest, ""));
            word.text.push_str(place);
            rest = after;
            continue;
        }
        rest = match c {
            '\'' => {
                let (quoted, after) = after.split_once('\'').ok_or_else(|| open_quote(text))?;
                word.quote_begins();
                word.text.push_str(quoted);
                after
            }
            '"' => {
                word.quote_begins();
                double_quoted(after, &mut word.text).ok_or_else(|| open_quote(text))?
            }
            '\\' => {
                let next = after.chars().next().ok_or_else(|| open_quote(text))?;
                word.quote_begins();
                word.text.push(next);
                after.get(next.len_utf8()..).unwrap_or_default()
            }
            c => {
                word.text.push(c);
                after
            }
        };
    }
    words.extend(word);
    Ok(words)
}

/// What follows the closing quote; `None` without one.
fn double_quoted<'t>(text: &'t str, into: &mut String) -> Option<&'t str> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return text.get(at + 1..),
            '\\' => match chars.next()?.1 {
                c @ ('"' | '\\' | '$' | '`') => into.push(c),
                c => into.extend(['\\', c]),
            },
            c => into.push(c),
        }
    }
    None
}

fn open_quote(text: &str) -> Failure {
    let message = format!(
        "unterminated quote or escape in command `{}`",
        crate::printable(text)
    );
    Failure::new(Code::Config, message)
}

/// Every `{{name}}` with its value.
fn fill(text: &str, values: &BTreeMap<String, String>) -> Result<String, Failure> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else {
            break;
        };
        let name = name.trim();
        let value = values.get(name).ok_or_else(|| {
            let message = format!("no value for `{{{{{name}}}}}`");
            Failure::usage(message).hint(format!("--preset-var {name}=VALUE"))
        })?;
        filled.push_str(before);
        filled.push_str(value);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        for (text, expected) in [
            ("", &[][..]),
            ("  cargo   test\n", &["cargo", "test"]),
            (
                r#"sh -c 'a "b"' "c 'd' \" \n" e\ f"#,
                &["sh", "-c", "a \"b\"", "c 'd' \" \\n", "e f"],
            ),
            ("a''b \"\"", &["ab", ""]),
            ("x{{ a b }}y z", &["x{{ a b }}y", "z"]),
        ] {
            assert_eq!(run_words(text).unwrap(), (None, words(expected)), "{text}");
        }
        for wrong in ["'a", "\"a", "a\\", "\"a\\"] {
            assert_eq!(run_words(wrong).unwrap_err().code, Code::Config, "{wrong}");
        }
    }

    #[test]
    fn a_value_is_quoted_as_one_word() {
        let values = BTreeMap::from([("x".to_owned(), "a b; &&".to_owned())]);
        let expanded = |command, shell| Expanded::new(command, shell, &values).unwrap();
        assert_eq!(
            expanded("run {{x}} '&&' --to={{ x }}", false),
            Expanded::Words(words(&["run", "a b; &&", "&&", "--to=a b; &&"]))
        );
        assert_eq!(
            expanded("a {{x}} && b ';' c", false),
            Expanded::Script("'a' 'a b; &&' && 'b' ';' 'c'".to_owned())
        );
        assert_eq!(
            expanded("A={{x}} B=\"1 2\" c 'D=1' && E=1 find ;", false),
            Expanded::Script("A='a b; &&' B='1 2' 'c' 'D=1' && E='1' 'find' ';'".to_owned())
        );
        assert_eq!(
            expanded("'A=1' b > c ;", false),
            Expanded::Words(words(&["A=1", "b", ">", "c", ";"]))
        );
        let script = expanded("echo {{x}}", true);
        assert_eq!(script, Expanded::Script("echo a b; &&".to_owned()));
        assert_eq!(
            script.argv(&["sh", "-lc"]),
            words(&["sh", "-lc", "echo a b; &&"])
        );
        let failure = Expanded::new("echo {{y}}", false, &values).unwrap_err();
        assert_eq!(failure.message, "no value for `{{y}}`");
        assert_eq!(failure.hints, ["--preset-var y=VALUE"]);
    }

    #[test]
    fn a_quoted_operator_stays_an_argument_of_a_run() {
        let run = |text| run_words(text).unwrap();
        assert_eq!(run("a && b"), (None, words(&["a", "&&", "b"])));
        assert_eq!(
            run("grep '&&' b"),
            (Some("--no-shell"), words(&["grep", "&&", "b"]))
        );
        assert_eq!(
            run("grep '|' b | wc"),
            (Some("--shell"), words(&["'grep' '|' 'b' | 'wc'"]))
        );
    }
}

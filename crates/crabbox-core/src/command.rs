//! From the words after `--` to what runs in the sandbox: the same words, or one script for a login shell.
//!
//! What the provider's shell is and how leniently it takes assignments comes in as [`Rules`].

mod template;

use crate::Failure;

pub use template::{Expanded, run_words};

/// The provider's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules<'a> {
    /// The program and options that take a script as the next word.
    pub shell: &'a [&'a str],
    pub assignments: Assignments,
    /// Whether a path means the same file in the sandbox as here.
    pub host_paths: bool,
}

/// Which first word asks for a shell as `NAME=value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignments {
    /// The name is a shell identifier.
    Strict,
    /// Anything with a `=` that is not an option.
    Loose,
}

/// Whether the user asked for a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    /// `--shell`: the words are a script.
    Asked,
    /// `--no-shell`: the words are a command, whatever they look like.
    Refused,
    /// Only when the words cannot mean anything else.
    Auto,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteCommand {
    /// Executed as it is.
    Argv(Vec<String>),
    Script {
        shell: Vec<String>,
        script: String,
        reason: ScriptReason,
    },
}

/// What made words a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptReason {
    /// `--shell`.
    Asked,
    /// One word that no program is called.
    SingleWord,
    /// A leading `NAME=value`.
    Assignment,
    /// A word between others.
    Operator(String),
}

/// Between other words these join commands. Redirections do not count: `grep '>' notes.txt` would empty the file.
const OPERATORS: [&str; 4] = ["&&", "||", ";", "|"];
const REDIRECTIONS: [&str; 5] = [">", ">>", "<", "2>", "2>>"];
/// In a word that stands alone these make it a script.
const SCRIPT: [char; 14] = [
    ' ', '\t', '\r', '\n', '&', '|', ';', '<', '>', '*', '$', '`', '(', ')',
];

impl RemoteCommand {
    /// `is_program` says whether a path is a program here; only asked where [`Rules::host_paths`] says that it matters.
    pub fn build(
        words: &[String],
        shell: Shell,
        rules: Rules<'_>,
        is_program: &dyn Fn(&str) -> bool,
    ) -> Result<Self, Failure> {
        if words.is_empty() {
            return Err(Failure::usage("no command to run"));
        }
        let reason = match shell {
            Shell::Asked => Some(ScriptReason::Asked),
            Shell::Refused => None,
            Shell::Auto => script_reason(words, rules, is_program),
        };
        let Some(reason) = reason else {
            return Ok(Self::Argv(words.to_vec()));
        };
        Ok(Self::Script {
            shell: rules.shell.iter().map(|&word| word.to_owned()).collect(),
            script: match reason {
                ScriptReason::Asked | ScriptReason::SingleWord => words.join(" "),
                ScriptReason::Assignment | ScriptReason::Operator(_) => quoted_script(words),
            },
            reason,
        })
    }

    /// What to say of words that were taken for a script although they may have been meant as arguments.
    pub fn notice(&self, words: &[String]) -> Option<String> {
        let Self::Script {
            shell,
            reason: ScriptReason::Operator(operator),
            ..
        } = self
        else {
            return None;
        };
        let shell = shell.join(" ");
        let redirection = words.iter().find(|word| is_redirection(word));
        let redirection = match redirection {
            Some(word) => format!("; `{word}` stays an argument unless --shell is given"),
            None => String::new(),
        };
        Some(format!(
            "note: `{operator}` makes the command a script for `{shell}`; --no-shell passes it as an argument{redirection}"
        ))
    }

    /// What is executed in the sandbox.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Argv(argv) => argv.clone(),
            Self::Script { shell, script, .. } => shell.iter().chain([script]).cloned().collect(),
        }
    }
}

impl Assignments {
    fn is_one(self, word: &str) -> bool {
        match self {
            Self::Strict => assignment(word).is_some(),
            Self::Loose => word.contains('=') && !word.starts_with('-'),
        }
    }
}

/// Name and value, where a shell too would take the word for an assignment.
fn assignment(word: &str) -> Option<(&str, &str)> {
    word.split_once('=').filter(|(name, _)| is_identifier(name))
}

/// Whether a shell can have a variable of this name.
pub fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn script_reason(
    words: &[String],
    rules: Rules<'_>,
    is_program: &dyn Fn(&str) -> bool,
) -> Option<ScriptReason> {
    if let [only] = words {
        let is_script = rules.assignments.is_one(only) || only.contains(SCRIPT);
        let is_path = || rules.host_paths && only.contains('/') && is_program(only);
        return (is_script && !is_path()).then_some(ScriptReason::SingleWord);
    }
    let operator = (1..)
        .zip(words)
        .find(|(at, word)| is_operator(word, *at, words.len()));
    let assigns = words
        .first()
        .is_some_and(|first| rules.assignments.is_one(first));
    match operator {
        Some((_, operator)) => Some(ScriptReason::Operator(operator.clone())),
        None => assigns.then_some(ScriptReason::Assignment),
    }
}

/// `at` counts from one. A `;` at the end is an argument: `find -exec`.
fn is_operator(word: &str, at: usize, count: usize) -> bool {
    OPERATORS.contains(&word) && !(word == ";" && at == count)
}

fn is_redirection(word: &str) -> bool {
    REDIRECTIONS.contains(&word)
}

/// The words as one script, in which only operators and leading assignments mean something to the shell.
fn quoted_script(words: &[String]) -> String {
    let mut leading = true;
    let mut parts = Vec::with_capacity(words.len());
    for (at, word) in (1..).zip(words) {
        if is_operator(word, at, words.len()) {
            leading = true;
            parts.push(word.clone());
        } else if let (true, Some((name, value))) = (leading, assignment(word)) {
            parts.push(format!("{name}={}", quote(value)));
        } else {
            leading = false;
            parts.push(quote(word));
        }
    }
    parts.join(" ")
}

/// One word for a POSIX shell, whatever is in it.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Words for people to read and to paste: quoted only where needed, and with nothing in it that moves the cursor or
/// changes the order in which the line is read.
pub fn display<S: AsRef<str>>(words: &[S]) -> String {
    let shown: Vec<String> = words
        .iter()
        .map(|word| display_word(word.as_ref()))
        .collect();
    shown.join(" ")
}

fn display_word(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    if !word.chars().any(is_unseen) {
        return quote(word);
    }
    let mut shown = String::from("$'");
    for char in word.chars() {
        match char {
            '\'' | '\\' => shown.extend(['\\', char]),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            _ if is_unseen(char) => shown.push_str(&escape(char)),
            _ => shown.push(char),
        }
    }
    shown.push('\'');
    shown
}

/// Always of full length, so that a digit that follows is not taken for a part of it.
fn escape(char: char) -> String {
    let code = u32::from(char);
    match code {
        0..=0x7f => format!("\\x{code:02x}"),
        0x80..=0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

/// Control characters, and those that change direction or have no width.
pub(crate) fn is_unseen(char: char) -> bool {
    char.is_control()
        || matches!(u32::from(char), 0xad | 0x61c | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff | 0xe0000..=0xe007f)
}

#[cfg(test)]
mod tests;

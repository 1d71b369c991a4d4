//! From the words after `--` to what runs in the sandbox: the same words, or one script for a login shell.
//!
//! What the provider's shell is and how leniently it takes assignments comes in as [`Rules`].

use crate::Failure;

/// The provider's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules<'a> {
    /// The program and options that take a script as the next word.
    pub shell: &'a [&'a str],
    pub assignments: Assignments,
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
    },
}

const OPERATORS: [&str; 9] = ["&&", "||", ";", "|", ">", ">>", "<", "2>", "2>>"];
/// After these a new command begins, which may have assignments of its own.
const SEPARATORS: [&str; 4] = ["&&", "||", ";", "|"];
/// In a word that stands alone these make it a script.
const SCRIPT: [char; 14] = [
    ' ', '\t', '\r', '\n', '&', '|', ';', '<', '>', '*', '$', '`', '(', ')',
];

impl RemoteCommand {
    pub fn build(words: &[String], shell: Shell, rules: Rules<'_>) -> Result<Self, Failure> {
        let Some(first) = words.first() else {
            return Err(Failure::usage("no command to run"));
        };
        let script = match (shell, words) {
            (Shell::Asked, _) => words.join(" "),
            (Shell::Auto, [only]) if only.contains(SCRIPT) => only.clone(),
            (Shell::Auto, [only]) if rules.assignments.is_one(only) => only.clone(),
            (Shell::Auto, [_]) => return Ok(Self::Argv(words.to_vec())),
            (Shell::Auto, _) => {
                if !rules.assignments.is_one(first) && !words.iter().any(|word| is_operator(word)) {
                    return Ok(Self::Argv(words.to_vec()));
                }
                quoted_script(words)
            }
        };
        Ok(Self::Script {
            shell: rules.shell.iter().map(|&word| word.to_owned()).collect(),
            script,
        })
    }

    /// What is executed in the sandbox.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Argv(argv) => argv.clone(),
            Self::Script { shell, script } => shell.iter().chain([script]).cloned().collect(),
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

fn is_operator(word: &str) -> bool {
    OPERATORS.contains(&word)
}

/// The words as one script, in which only operators and leading assignments mean something to the shell.
fn quoted_script(words: &[String]) -> String {
    let mut leading = true;
    let mut parts = Vec::with_capacity(words.len());
    for word in words {
        if is_operator(word) {
            leading |= SEPARATORS.contains(&word.as_str());
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

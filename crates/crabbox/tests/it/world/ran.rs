//! What a command left behind: its output, and its calls of the stand-in.

use std::process::Output;

use serde_json::Value;

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn from(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let status = output.status;
        Self {
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            bytes: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The stdout of a command that must succeed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        self.exits(0).out
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        let Self { out, err, .. } = &self;
        assert_eq!(self.code, code, "stdout: {out}\nstderr: {err}");
        self
    }

    /// The cause of a failure: what follows `error: ` on the last line of stderr.
    #[track_caller]
    pub(crate) fn cause(&self) -> &str {
        let cause = self.last().strip_prefix("error: ");
        cause.unwrap_or_else(|| panic!("the last line is no cause: {}", self.err))
    }

    /// The last line of stderr.
    pub(crate) fn last(&self) -> &str {
        self.err.lines().last().unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let Self { out, err, .. } = &self;
        assert!(
            err.contains(text),
            "{text:?} is not in stderr: {err}\nstdout: {out}"
        );
        self
    }

    #[track_caller]
    pub(crate) fn never_says(self, text: &str) -> Self {
        let Self { out, err, .. } = &self;
        assert!(
            !err.contains(text) && !out.contains(text),
            "{text:?} is in {err}{out}"
        );
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// For snapshots, with the JSON of stdout on several lines.
    pub(crate) fn show(&self) -> String {
        let mut text = format!("exit: {}\n", self.code);
        let out = indented(&self.out);
        for (name, said) in [("stdout", &out), ("stderr", &self.err)] {
            if !said.is_empty() {
                text.push_str(&format!("--- {name}\n{said}"));
            }
        }
        text
    }
}

/// JSON as `serde_json` would write it for people, with its keys in their order. Other text stays.
fn indented(text: &str) -> String {
    if serde_json::from_str::<Value>(text).is_err() {
        return text.to_owned();
    }
    let mut out = String::new();
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    let mut chars = text.trim_end().chars().peekable();
    let line = |out: &mut String, depth| out.push_str(&format!("\n{}", "  ".repeat(depth)));
    while let Some(c) = chars.next() {
        if in_text {
            out.push(c);
            in_text = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            '{' | '[' if chars.peek().is_some_and(|next| matches!(next, '}' | ']')) => {
                out.extend([c, chars.next().unwrap()]);
            }
            '{' | '[' => {
                depth += 1;
                out.push(c);
                line(&mut out, depth);
            }
            '}' | ']' => {
                depth -= 1;
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => {
                in_text = c == '"';
                out.push(c);
            }
        }
    }
    out.push('\n');
    out
}

/// One call of the stand-in.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) argv: Vec<String>,
}

impl Call {
    pub(crate) fn verb(&self) -> &str {
        &self.argv[0]
    }

    pub(crate) fn line(&self) -> String {
        self.argv.join(" ")
    }
}

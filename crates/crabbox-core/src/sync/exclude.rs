//! Which paths are sent: ordered rules of which the last that matches wins, and a list of what to send at all.
//!
//! A pattern without `/` matches any component, one with `/` a path from the root; what it matches includes all that
//! is below. Both count as written and as a glob, so `app/[id]` also means the directory of that name. `!` before a
//! pattern sends again what an earlier rule dropped, `\!` is a name that begins with `!`.

mod builtin;
mod cursor;
mod pattern;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::{Code, Failure};
pub use builtin::built_in;
pub(super) use cursor::Cursor;
use pattern::{Index, Pattern};

pub(super) const IGNORE_FILE: &str = ".crabboxignore";
const LONGEST_IGNORE_FILE: u64 = 1 << 20;

/// The rules of one repository, ready to be asked.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    index: Index,
    /// None: everything is included.
    include: Option<Index>,
    last_negation: Option<usize>,
}

#[derive(Debug)]
struct Rule {
    text: String,
    effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Keep,
    Drop,
    /// A directory of this name is usually made by a build, but not when it is in git.
    DropUntracked,
}

/// What the rules say about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision<'r> {
    Keep,
    Drop,
    /// Dropped by this built-in pattern, unless git tracks it as a regular file.
    DropUntracked(&'r str),
}

impl Rules {
    /// Rules from the settings and from the `.crabboxignore` in `root`.
    pub fn load(root: &Path, exclude: &[String], include: &[String]) -> Result<Self, Failure> {
        Self::new(exclude, include, &read_ignore_file(root)?)
    }

    /// Rules from the settings and the text of `.crabboxignore`.
    pub fn new(exclude: &[String], include: &[String], ignore: &[u8]) -> Result<Self, Failure> {
        let mut rules = Self {
            rules: Vec::new(),
            index: Index::default(),
            include: None,
            last_negation: None,
        };
        // Among built-ins the order is free. The ambiguous ones come first, so that what is in `target/node_modules`
        // counts as `node_modules`.
        for text in builtin::AMBIGUOUS {
            rules.push(text.as_bytes(), Effect::DropUntracked, "built-in")?;
        }
        for text in builtin::CERTAIN {
            rules.push(text.as_bytes(), Effect::Drop, "built-in")?;
        }
        for text in exclude {
            rules.push_line(text.as_bytes(), "sync.exclude")?;
        }
        for (number, line) in ignore.split(|&byte| byte == b'\n').enumerate() {
            if !line.trim_ascii_start().starts_with(b"#") {
                rules.push_line(line, &format!("{IGNORE_FILE}:{}", number + 1))?;
            }
        }
        for text in include {
            let pattern = match text.trim() {
                "" => continue,
                // The root itself is everything.
                text => parse(text.as_bytes(), "sync.include")?.or(parse(b"*", "sync.include")?),
            };
            let index = rules.include.get_or_insert_default();
            if let Some(pattern) = pattern {
                index.insert(pattern.anchored_at_root(), 0);
            }
        }
        Ok(rules)
    }

    /// Judges one path. For many, a cursor is faster.
    pub fn decide(&self, path: &super::RelPath) -> Decision<'_> {
        Cursor::new(self).decide(path)
    }

    fn push_line(&mut self, line: &[u8], origin: &str) -> Result<(), Failure> {
        let line = line.trim_ascii();
        match line.strip_prefix(b"!") {
            Some(negated) => self.push(negated, Effect::Keep, origin),
            None => self.push(line, Effect::Drop, origin),
        }
    }

    fn push(&mut self, text: &[u8], effect: Effect, origin: &str) -> Result<(), Failure> {
        let Some(pattern) = parse(text, origin)? else {
            return Ok(());
        };
        let number = self.rules.len();
        if effect == Effect::Keep {
            self.last_negation = Some(number);
        }
        self.index.insert(pattern, number);
        self.rules.push(Rule {
            text: String::from_utf8_lossy(text).into_owned(),
            effect,
        });
        Ok(())
    }

    fn decision(&self, winner: Option<usize>) -> Decision<'_> {
        let rule = winner.and_then(|number| self.rules.get(number));
        match rule.map(|rule| (rule.effect, rule.text.as_str())) {
            None | Some((Effect::Keep, _)) => Decision::Keep,
            Some((Effect::Drop, _)) => Decision::Drop,
            Some((Effect::DropUntracked, text)) => Decision::DropUntracked(text),
        }
    }
}

fn parse(text: &[u8], origin: &str) -> Result<Option<Pattern>, Failure> {
    Pattern::parse(text).map_err(|why| {
        let text = super::path::escaped(text);
        let message = format!("{origin}: invalid pattern `{text}`: {why}");
        Failure::new(Code::Config, message)
            .hint("write `\\` before a special character to match it literally")
    })
}

/// The file comes with the repository: a symlink or a pipe in its place is not followed or waited for.
fn read_ignore_file(root: &Path) -> Result<Vec<u8>, Failure> {
    let file = root.join(IGNORE_FILE);
    let failed = |error: &dyn std::error::Error| {
        Failure::new(Code::Config, format!("read {}", file.display())).because(error)
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = match rustix::fs::open(&file, flags, Mode::empty()) {
        Ok(open) => File::from(open),
        Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
        Err(rustix::io::Errno::LOOP) => return Err(failed(&Reason("it is a symlink"))),
        Err(error) => return Err(failed(&error)),
    };
    if !open.metadata().map_err(|e| failed(&e))?.is_file() {
        return Err(failed(&Reason("not a regular file")));
    }
    let mut text = Vec::new();
    let mut bounded = open.take(LONGEST_IGNORE_FILE + 1);
    bounded.read_to_end(&mut text).map_err(|e| failed(&e))?;
    if bounded.limit() == 0 {
        return Err(failed(&Reason("larger than 1 MiB")));
    }
    Ok(text)
}

#[derive(Debug)]
struct Reason(&'static str);

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Reason {}

#[cfg(test)]
mod tests;

//! Paths of things to send: relative, clean, and never upwards.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A path below the root: components with `/` between them, none of them empty, `.`, `..` or `.git`. Any other byte
/// may be in it, newlines and what is no UTF-8 too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Box<[u8]>);

/// A path that must not be sent or looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsafePath(String);

impl RelPath {
    pub fn parse(bytes: &[u8]) -> Result<Self, UnsafePath> {
        if is_safe(bytes) {
            Ok(Self(bytes.into()))
        } else {
            Err(UnsafePath(escaped(bytes)))
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// For JSON: bytes that are no UTF-8 are replaced, the rest is as it is.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

fn is_safe(bytes: &[u8]) -> bool {
    let component = |part: &[u8]| {
        !matches!(part, b"" | b"." | b"..")
            && !part.contains(&0)
            && !part.eq_ignore_ascii_case(b".git")
    };
    bytes.split(|&byte| byte == b'/').all(component)
}

/// For people: a name cannot break the line or reach the terminal as a command.
impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.0))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl fmt::Display for UnsafePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid path `{}`: not below the root", self.0)
    }
}

impl std::error::Error for UnsafePath {}

pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if char.is_control() {
                shown.extend(char.escape_default());
            } else {
                shown.push(char);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// Up to `most` names, and how many more there are.
pub(super) fn some_of<T: fmt::Display>(names: &[T], most: usize) -> String {
    let shown: Vec<String> = names.iter().take(most).map(T::to_string).collect();
    let shown = shown.join(", ");
    match names.len().checked_sub(most) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} (+{more} more)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clean_paths_below_the_root_are_paths() {
        for good in [
            "a",
            "a/b",
            "-rf",
            ".gitignore",
            "..a",
            "a..",
            "a b\nc",
            ".github/x",
        ] {
            assert!(RelPath::parse(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", ".git", "a/.git/b", ".GIT/c",
            "a\0",
        ] {
            assert!(RelPath::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_are_shown_on_one_line() {
        let path = RelPath::parse(b"a\n\x1b[2J\xff\xc3\xa9").unwrap();
        assert_eq!(path.to_string(), r"a\n\u{1b}[2J\xffé");
    }

    #[test]
    fn a_long_list_is_cut() {
        assert_eq!(some_of(&["a", "b"], 2), "a, b");
        assert_eq!(some_of(&["a", "b", "c"], 2), "a, b (+1 more)");
    }
}

//! `.sbxignore` at the top of a workspace: names that are masked inside. A subset of gitignore's patterns.
//!
//! The file and everything around it can be written from inside, so it is read without following a link, and with bounds.
//! What cannot be understood is an error, never a pattern that matches nothing: it is there to hide something.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use thiserror::Error;

pub(crate) const NAME: &str = ".sbxignore";
const MAX_SIZE: u64 = 64 << 10;
const MAX_PATTERNS: usize = 1000;
/// Of one workspace: each is a mount, and so is each directory around it.
const MAX_MASKS: usize = 256;
/// Names that are looked at.
const MAX_ENTRIES: usize = 500_000;
const MAX_DEPTH: usize = 128;

#[derive(Debug, Error)]
pub enum IgnoreError {
    #[error("`{}` is not a regular file", .0.display())]
    Special(PathBuf),
    #[error("`{}` is too large: {MAX_SIZE} bytes and {MAX_PATTERNS} patterns are allowed", .0.display())]
    Large(PathBuf),
    #[error("line {line} of `{}`: `[`, `]` and `\\` are not supported", .file.display())]
    Unsupported { file: PathBuf, line: usize },
    #[error("`{}` matches more than {MAX_MASKS} files and directories", .0.display())]
    TooMany(PathBuf),
    #[error("`{}` has too many files or levels to be searched for what `{NAME}` masks", .0.display())]
    TooLarge(PathBuf),
    #[error("cannot search `{}` for what `{NAME}` masks", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    negated: bool,
    /// For directories only.
    directories: bool,
    /// For the whole path below the workspace, else for the last name.
    anchored: bool,
    parts: Vec<Vec<char>>,
}

/// What is to be masked in a workspace, by paths below it. Nothing where there is no such file.
fn masked(workspace: &Path) -> Result<Vec<PathBuf>, IgnoreError> {
    let file = workspace.join(NAME);
    let top = open_dir(CWD, workspace).map_err(|error| failed(workspace, error))?;
    let Some(text) = read(&top, &file)? else {
        return Ok(Vec::new());
    };
    let patterns = parse(&text, &file)?;
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let mut search = Search {
        workspace,
        patterns: &patterns,
        entries: 0,
        found: Vec::new(),
    };
    search.look_into(top, &mut Vec::new())?;
    search.found.sort();
    Ok(search.found)
}

/// What is masked in a workspace, by paths below it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Masks {
    pub(super) present: Vec<PathBuf>,
    pub(super) absent: Vec<PathBuf>,
}

/// Those of the file as it is now, and those that are `known` from before.
pub(super) fn masks(workspace: &Path, mut known: BTreeSet<PathBuf>) -> Result<Masks, IgnoreError> {
    known.extend(masked(workspace)?);
    if known.len() > MAX_MASKS {
        return Err(IgnoreError::TooMany(workspace.join(NAME)));
    }
    if known.is_empty() {
        return Ok(Masks::default());
    }
    let top = open_dir(CWD, workspace).map_err(|error| failed(workspace, error))?;
    let mut masks = Masks::default();
    for path in known {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        match rustix::fs::openat2(&top, &path, flags, Mode::empty(), resolve) {
            Ok(_) => masks.present.push(path),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => masks.absent.push(path),
            Err(error) => return Err(failed(&workspace.join(path), error)),
        }
    }
    Ok(masks)
}

fn failed(path: &Path, error: Errno) -> IgnoreError {
    IgnoreError::Io {
        path: path.to_path_buf(),
        source: error.into(),
    }
}

fn open_dir(at: impl std::os::fd::AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

/// Neither a link, nor a FIFO or device, which could block.
fn read(top: &OwnedFd, file: &Path) -> Result<Option<String>, IgnoreError> {
    let opened = rustix::fs::openat2(
        top,
        NAME,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH,
    );
    let opened = match opened {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(IgnoreError::Special(file.to_path_buf())),
        Err(error) => return Err(failed(file, error)),
    };
    let facts = rustix::fs::fstat(&opened).map_err(|error| failed(file, error))?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err(IgnoreError::Special(file.to_path_buf()));
    }
    let mut text = Vec::new();
    let mut limited = std::fs::File::from(opened).take(MAX_SIZE + 1);
    limited
        .read_to_end(&mut text)
        .map_err(|source| IgnoreError::Io {
            path: file.to_path_buf(),
            source,
        })?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_SIZE {
        return Err(IgnoreError::Large(file.to_path_buf()));
    }
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

fn parse(text: &str, file: &Path) -> Result<Vec<Pattern>, IgnoreError> {
    let mut patterns = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.contains(['[', ']', '\\']) {
            return Err(IgnoreError::Unsupported {
                file: file.to_path_buf(),
                line: index + 1,
            });
        }
        let (negated, line) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let directories = line.ends_with('/');
        let line = line.trim_end_matches('/');
        let anchored = line.contains('/');
        let mut parts: Vec<Vec<char>> = line
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .map(|part| part.chars().collect())
            .collect();
        if parts.last().is_some_and(|part| is_any_depth(part)) {
            // Everything in it, but not the directory itself.
            parts.push(vec!['*']);
        }
        if !parts.is_empty() {
            patterns.push(Pattern {
                negated,
                directories,
                anchored,
                parts,
            });
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(IgnoreError::Large(file.to_path_buf()));
        }
    }
    Ok(patterns)
}

fn is_any_depth(part: &[char]) -> bool {
    part == ['*', '*']
}

impl Pattern {
    fn matches(&self, path: &[Vec<char>], is_dir: bool) -> bool {
        if self.directories && !is_dir {
            return false;
        }
        let path = match (self.anchored, path) {
            (false, [.., last]) if self.parts.len() == 1 => std::slice::from_ref(last),
            _ => path,
        };
        wildcard(
            &self.parts,
            path,
            |part| is_any_depth(part),
            |part, name| wildcard(part, name, |c| *c == '*', |c, d| *c == '?' || c == d),
        )
    }
}

/// Whether the pattern, whose stars stand for any number of items, matches all of the items. In linear space and at most
/// quadratic time, whatever the pattern is.
fn wildcard<P, T>(
    pattern: &[P],
    items: &[T],
    is_star: impl Fn(&P) -> bool,
    matches: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut i) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while let Some(item) = items.get(i) {
        match pattern.get(p) {
            Some(part) if is_star(part) => {
                last_star = Some((p, i));
                p += 1;
            }
            Some(part) if matches(part, item) => {
                p += 1;
                i += 1;
            }
            _ => match last_star {
                Some((star, begun)) => {
                    last_star = Some((star, begun + 1));
                    p = star + 1;
                    i = begun + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(is_star)
}

struct Search<'a> {
    workspace: &'a Path,
    patterns: &'a [Pattern],
    entries: usize,
    found: Vec<PathBuf>,
}

impl Search<'_> {
    fn look_into(&mut self, dir: OwnedFd, path: &mut Vec<OsString>) -> Result<(), IgnoreError> {
        let shown = |path: &[OsString]| self.workspace.join(path.iter().collect::<PathBuf>());
        if path.len() > MAX_DEPTH {
            return Err(IgnoreError::TooLarge(self.workspace.to_path_buf()));
        }
        let list = Dir::read_from(&dir).map_err(|error| failed(&shown(path), error))?;
        let mut directories = Vec::new();
        for entry in list {
            let entry = entry.map_err(|error| failed(&shown(path), error))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(IgnoreError::TooLarge(self.workspace.to_path_buf()));
            }
            path.push(OsString::from_vec(name.to_vec()));
            let is_dir = match entry.file_type() {
                FileType::Unknown => open_dir(&dir, Path::new(path_end(path))).is_ok(),
                kind => kind == FileType::Directory,
            };
            // A link is not masked: what it leads to is, if it matches by itself.
            let masked = entry.file_type() != FileType::Symlink && self.is_masked(path, is_dir);
            let name = path.pop().unwrap_or_default();
            if masked {
                let below: PathBuf = path.iter().chain([&name]).collect();
                self.found.push(below);
                if self.found.len() > MAX_MASKS {
                    return Err(IgnoreError::TooMany(self.workspace.join(NAME)));
                }
            } else if is_dir {
                directories.push(name);
            }
        }
        for name in directories {
            match open_dir(&dir, Path::new(&name)) {
                Ok(inner) => {
                    path.push(name);
                    self.look_into(inner, path)?;
                    path.pop();
                }
                // Gone or another thing by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                // A program inside that has the owner's id can open it again, and had perhaps closed it.
                Err(Errno::ACCESS) if is_own(&dir, &name) => {
                    return Err(failed(&shown(path).join(name), Errno::ACCESS));
                }
                // Who may not read it here may not inside.
                Err(Errno::ACCESS) => {}
                Err(error) => return Err(failed(&shown(path).join(name), error)),
            }
        }
        Ok(())
    }

    /// The last pattern that matches decides.
    fn is_masked(&self, path: &[OsString], is_dir: bool) -> bool {
        let names: Vec<Vec<char>> = path
            .iter()
            .map(|name| String::from_utf8_lossy(name.as_bytes()).chars().collect())
            .collect();
        let mut patterns = self.patterns.iter().rev();
        let last = patterns.find(|pattern| pattern.matches(&names, is_dir));
        last.is_some_and(|pattern| !pattern.negated)
    }
}

fn is_own(dir: &OwnedFd, name: &OsString) -> bool {
    let facts = rustix::fs::statat(dir, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
    facts.is_ok_and(|facts| facts.st_uid == rustix::process::geteuid().as_raw())
}

fn path_end(path: &[OsString]) -> &OsString {
    static NOTHING: OsString = OsString::new();
    path.last().unwrap_or(&NOTHING)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, text: &str) {
        let mut file = fs::File::create(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn in_tree(patterns: &str) -> Result<Vec<String>, String> {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        for dir in ["a/b/c", "secrets/deep", "src/secrets"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for file in [
            ".env",
            "a/.env",
            "a/b/x.key",
            "a/b/c/y.key",
            "a/keep.key",
            "src/main.rs",
            "secrets/deep/s",
        ] {
            fs::File::create(root.join(file)).unwrap();
        }
        symlink("a", root.join("link.key")).unwrap();
        write(&root.join(NAME), patterns);
        let found = masked(root).map_err(|error| error.to_string())?;
        Ok(found
            .iter()
            .map(|path| path.display().to_string())
            .collect())
    }

    #[test]
    fn the_patterns_of_gitignore() {
        for (patterns, expected) in [
            ("", vec![]),
            ("# .env\n\n", vec![]),
            (".env", vec![".env", "a/.env"]),
            ("/.env\r\n", vec![".env"]),
            ("*.key\n!keep.key", vec!["a/b/c/y.key", "a/b/x.key"]),
            ("secrets/", vec!["secrets", "src/secrets"]),
            ("/secrets", vec!["secrets"]),
            ("main.rs/", vec![]),
            ("a/**/y.key", vec!["a/b/c/y.key"]),
            ("**/c", vec!["a/b/c"]),
            ("a/*/x.key", vec!["a/b/x.key"]),
            (
                "a/**\n!a/b",
                vec!["a/.env", "a/b/c", "a/b/x.key", "a/keep.key"],
            ),
            ("?env", vec![".env", "a/.env"]),
            ("nothing", vec![]),
        ] {
            assert_eq!(in_tree(patterns).unwrap(), expected, "{patterns:?}");
        }
    }

    #[test]
    fn unknown_patterns_are_errors() {
        assert!(in_tree("x\n*.[ko]").unwrap_err().contains("line 2"));
        assert!(in_tree("a\\ b").is_err());
        assert!(
            in_tree(&"#".repeat(70_000))
                .unwrap_err()
                .contains("too large")
        );
    }

    #[test]
    fn what_was_masked_stays_masked() {
        let temp = tempfile::tempdir().unwrap();
        fs::File::create(temp.path().join(".env")).unwrap();
        let before = BTreeSet::from([".env".into(), "gone/key".into()]);
        let found = masks(temp.path(), before).unwrap();
        assert_eq!(found.present, [Path::new(".env")]);
        assert_eq!(found.absent, [Path::new("gone/key")]);
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern: Vec<char> = "*a".repeat(200).chars().collect();
        let name: Vec<char> = "a".repeat(199).chars().chain(['b']).collect();
        assert!(!wildcard(&pattern, &name, |c| *c == '*', |c, d| c == d));
    }

    #[test]
    fn neither_links_nor_other_things_are_read() {
        let temp = tempfile::tempdir().unwrap();
        write(&temp.path().join("other"), "x");
        symlink("other", temp.path().join(NAME)).unwrap();
        assert!(matches!(masked(temp.path()), Err(IgnoreError::Special(_))));
        fs::remove_file(temp.path().join(NAME)).unwrap();
        fs::create_dir(temp.path().join(NAME)).unwrap();
        assert!(matches!(masked(temp.path()), Err(IgnoreError::Special(_))));
        fs::remove_dir(temp.path().join(NAME)).unwrap();
        assert!(masked(temp.path()).unwrap().is_empty());
        for index in 0..300 {
            fs::File::create(temp.path().join(format!("{index}.key"))).unwrap();
        }
        write(&temp.path().join(NAME), "*.key");
        assert!(matches!(masked(temp.path()), Err(IgnoreError::TooMany(_))));
    }
}

//! The records of `git ls-files -z -t --stage --cached --others`, as they come out of the pipe.
//!
//! `? PATH` is untracked, and `PATH` ends in `/` where it is another repository. `TAG MODE OBJECT STAGE<tab>PATH` is
//! an entry of the index; a path that is in conflict has one for each of its stages.

use std::ffi::CStr;
use std::fmt;

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed<'a> {
    pub path: &'a [u8],
    pub tag: Tag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    Untracked,
    /// In the index with this mode, whether in the work tree or not.
    Tracked(u32),
    /// In the index with this mode, and marked as not to be in the work tree.
    SkipWorktree(u32),
    /// One side of a conflict.
    Unmerged(u32),
}

const GITLINK: u32 = 0o160_000;
const FILE_TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListingError {
    Truncated,
    Record(String),
}

impl Tag {
    /// The mode in the index.
    pub fn mode(self) -> Option<u32> {
        match self {
            Self::Untracked => None,
            Self::Tracked(mode) | Self::SkipWorktree(mode) | Self::Unmerged(mode) => Some(mode),
        }
    }

    pub fn is_gitlink(self) -> bool {
        self.mode() == Some(GITLINK)
    }

    pub fn is_tracked_regular(self) -> bool {
        self.mode().is_some_and(|mode| mode & FILE_TYPE == REGULAR)
    }
}

/// Reads a listing to its end.
pub fn parse_listing(bytes: &[u8]) -> Result<Vec<Listed<'_>>, ListingError> {
    let mut listed = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        // Finds the NUL faster than a plain search.
        let text = CStr::from_bytes_until_nul(rest).map_err(|_| ListingError::Truncated)?;
        let bytes = text.to_bytes();
        listed.push(record(bytes).ok_or_else(|| {
            let start: Vec<u8> = bytes.iter().copied().take(200).collect();
            ListingError::Record(super::path::escaped(&start))
        })?);
        rest = rest.get(bytes.len() + 1..).unwrap_or_default();
    }
    Ok(listed)
}

fn record(bytes: &[u8]) -> Option<Listed<'_>> {
    let (&letter, rest) = bytes.split_first()?;
    let rest = rest.strip_prefix(b" ")?;
    if letter == b'?' {
        return (!rest.is_empty()).then_some(Listed {
            path: rest,
            tag: Tag::Untracked,
        });
    }
    let tab = rest.iter().position(|&byte| byte == b'\t')?;
    let (info, path) = rest.split_at_checked(tab)?;
    let path = path.get(1..).filter(|path| !path.is_empty())?;
    let mut fields = info.split(|&byte| byte == b' ');
    let mode = std::str::from_utf8(fields.next()?).ok()?;
    let mode = u32::from_str_radix(mode, 8).ok()?;
    let (_object, stage) = (fields.next()?, fields.next()?);
    if fields.next().is_some() {
        return None;
    }
    let tag = match (letter, stage) {
        (b'H', b"0") => Tag::Tracked(mode),
        (b'S', b"0") => Tag::SkipWorktree(mode),
        (b'M', b"1" | b"2" | b"3") => Tag::Unmerged(mode),
        _ => return None,
    };
    Some(Listed { path, tag })
}

impl fmt::Display for ListingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("git's listing ends in the middle of a record"),
            Self::Record(record) => write!(f, "git's listing has an unknown record `{record}`"),
        }
    }
}

impl std::error::Error for ListingError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_record() {
        let bytes = b"? new\nname\0? nested/\0H 100644 1234 0\ta\0H 160000 12 0\tsub\0\
            S 100755 12 0\tb\tc\0M 100644 12 1\tx\0M 120000 12 3\tx\0";
        let expected = [
            (&b"new\nname"[..], Tag::Untracked),
            (b"nested/", Tag::Untracked),
            (b"a", Tag::Tracked(0o100_644)),
            (b"sub", Tag::Tracked(GITLINK)),
            (b"b\tc", Tag::SkipWorktree(0o100_755)),
            (b"x", Tag::Unmerged(0o100_644)),
            (b"x", Tag::Unmerged(0o120_000)),
        ];
        let expected: Vec<Listed<'_>> = expected
            .into_iter()
            .map(|(path, tag)| Listed { path, tag })
            .collect();
        assert_eq!(parse_listing(bytes), Ok(expected));
        assert_eq!(parse_listing(b""), Ok(Vec::new()));
    }

    #[test]
    fn damage_is_an_error() {
        assert_eq!(parse_listing(b"? a\0? b"), Err(ListingError::Truncated));
        for record in [
            &b"\0"[..],
            b"?\0",
            b"? \0",
            b"H 100644 12 0 a\0",
            b"H 100644 12 0\t\0",
            b"H 100648 12 0\ta\0",
            b"H 100644 12\ta\0",
            b"H 100644 12 0 0\ta\0",
            b"X 100644 12 0\ta\0",
            b"M 100644 12 0\ta\0",
        ] {
            assert!(
                matches!(parse_listing(record), Err(ListingError::Record(_))),
                "{record:?}"
            );
        }
    }

    fn written(listed: &[(Vec<u8>, Tag)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (path, tag) in listed {
            let head = match tag {
                Tag::Untracked => "? ".to_owned(),
                Tag::Tracked(mode) => format!("H {mode:o} abc 0\t"),
                Tag::SkipWorktree(mode) => format!("S {mode:o} abc 0\t"),
                Tag::Unmerged(mode) => format!("M {mode:o} abc 2\t"),
            };
            bytes.extend_from_slice(head.as_bytes());
            bytes.extend_from_slice(path);
            bytes.push(0);
        }
        bytes
    }

    fn tag() -> impl Strategy<Value = Tag> {
        prop_oneof![
            Just(Tag::Untracked),
            any::<u32>().prop_map(Tag::Tracked),
            any::<u32>().prop_map(Tag::SkipWorktree),
            any::<u32>().prop_map(Tag::Unmerged),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(listed in prop::collection::vec((prop::collection::vec(1..=255_u8, 1..12), tag()), 0..8)) {
            let bytes = written(&listed);
            let read: Vec<(Vec<u8>, Tag)> = parse_listing(&bytes)
                .unwrap()
                .into_iter()
                .map(|l| (l.path.to_vec(), l.tag))
                .collect();
            prop_assert_eq!(read, listed);
        }

        #[test]
        fn any_bytes_do(bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(b' '), Just(b'\t'), Just(b'H'), Just(b'0'), any::<u8>()], 0..60)) {
            let _ = parse_listing(&bytes);
        }
    }
}

//! Names of a stream: relative paths without `..`, and the one that all of them begin with.

use std::path::Path;

use crate::error::CopyError;

/// What the kernel takes for a path and for one part of it.
const MAX_PATH: usize = 4096;
const MAX_PART: usize = 255;

/// The parts of a relative path; none for the root itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(Vec<Vec<u8>>);

impl Name {
    /// A name as it stands in a stream.
    pub fn parse(bytes: &[u8]) -> Result<Self, CopyError> {
        let refused = |reason| Err(CopyError::refused(bytes, reason));
        if bytes.first() == Some(&b'/') {
            return refused("an absolute name");
        }
        if bytes.len() >= MAX_PATH || bytes.contains(&0) {
            return refused("not a file name");
        }
        let parts = bytes.split(|byte| *byte == b'/');
        let parts = parts.filter(|part| !part.is_empty() && *part != b".");
        let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        if parts.iter().any(|part| part == b"..") {
            return refused("a name with `..`");
        }
        if parts.iter().any(|part| part.len() > MAX_PART) {
            return refused("a name that is too long");
        }
        Ok(Self(parts))
    }

    /// The directory and the last part; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        let (last, parents) = self.0.split_last()?;
        Some((Self(parents.to_vec()), last))
    }

    pub fn depth(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn parts(&self) -> &[Vec<u8>] {
        &self.0
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        if self.0.is_empty() {
            return b".".to_vec();
        }
        self.0.join(&b'/')
    }

    /// With another part after it, which is a name that the kernel gave.
    pub(crate) fn with(&self, last: &[u8]) -> Self {
        let mut parts = self.0.clone();
        parts.push(last.to_vec());
        Self(parts)
    }

    /// With other parts before it.
    pub(crate) fn below(&self, before: &[u8]) -> Self {
        let mut parts = vec![before.to_vec()];
        parts.extend(self.0.iter().cloned());
        Self(parts)
    }
}

/// What the names of a stream begin with: the name of what was copied, or `.` for the contents of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    Contents,
    Named(Vec<u8>),
}

impl Base {
    /// Of a path that is copied, as its user wrote it. `None` where its last part is `..`, which names nothing.
    pub fn of(path: &Path) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let bytes = path.as_os_str().as_bytes();
        let last = bytes
            .rsplit(|byte| *byte == b'/')
            .find(|part| !part.is_empty());
        match last {
            None | Some(b".") => Some(Self::Contents),
            Some(b"..") => None,
            Some(name) => Some(Self::Named(name.to_vec())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Contents => b".",
            Self::Named(name) => name,
        }
    }

    /// Where a name of the stream belongs when the copy is called `renamed`, or keeps its name.
    pub fn place(&self, name: &Name, renamed: Option<&[u8]>) -> Result<Name, CopyError> {
        let rest = match (self, name.parts()) {
            (Self::Contents, _) => name.clone(),
            (Self::Named(base), [first, rest @ ..]) if first == base => Name(rest.to_vec()),
            (Self::Named(_), _) => {
                let reason = "it is not part of what was asked for";
                return Err(CopyError::refused(&name.to_bytes(), reason));
            }
        };
        Ok(match (renamed, self) {
            (Some(renamed), _) => rest.below(renamed),
            (None, Self::Named(base)) => rest.below(base),
            (None, Self::Contents) => rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_down_only() {
        let parsed = |name: &str| Name::parse(name.as_bytes()).map(|name| name.to_bytes());
        for (name, parts) in [
            ("a", "a"),
            ("a//b/", "a/b"),
            ("./a/./b", "a/b"),
            (".", "."),
            ("", "."),
        ] {
            assert_eq!(parsed(name).unwrap(), parts.as_bytes(), "{name}");
        }
        let (long, deep) = ("x".repeat(256), "a/".repeat(2048));
        for name in [
            "/", "/a", "..", "a/..", "a/../b", "../a", "a\0b", &long, &deep,
        ] {
            assert!(parsed(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_copy_keeps_its_name_or_gets_another() {
        let base = |path: &str| Base::of(Path::new(path));
        assert_eq!(base("/a/b/"), Some(Base::Named(b"b".to_vec())));
        assert_eq!(base("b/."), Some(Base::Contents));
        assert_eq!(base("/"), Some(Base::Contents));
        assert_eq!(base("a/.."), None);
        let place = |path: &str, name: &str, renamed: Option<&str>| {
            let name = Name::parse(name.as_bytes()).unwrap();
            let placed = base(path).unwrap().place(&name, renamed.map(str::as_bytes));
            placed
                .map(|name| String::from_utf8(name.to_bytes()).unwrap())
                .ok()
        };
        assert_eq!(place("b", "b/c", None).as_deref(), Some("b/c"));
        assert_eq!(place("b", "b/c", Some("x")).as_deref(), Some("x/c"));
        assert_eq!(place("b", "b", Some("x")).as_deref(), Some("x"));
        assert_eq!(place("b/.", "c", None).as_deref(), Some("c"));
        assert_eq!(place("b/.", "./c", Some("x")).as_deref(), Some("x/c"));
        for name in ["c", ".bashrc", "bb/c", "."] {
            assert_eq!(place("b", name, Some("x")), None, "{name}");
        }
    }
}

//! Patterns, and the rule with the highest number that matches at one place.

use std::collections::BTreeMap;

use crate::sync::glob::{self, BadGlob, Glob, PathGlob};

/// One pattern, without its `!`.
#[derive(Debug)]
pub(super) struct Pattern {
    text: Vec<u8>,
    /// A path from the root, and not a name at any depth.
    anchored: bool,
    glob: Option<Compiled>,
}

#[derive(Debug)]
enum Compiled {
    Name(Glob),
    Path(PathGlob),
}

/// Patterns by number. Most are plain text and found by look-up.
#[derive(Debug, Default)]
pub(super) struct Index {
    names: BTreeMap<Vec<u8>, usize>,
    paths: BTreeMap<Vec<u8>, usize>,
    name_globs: Vec<(usize, Glob)>,
    path_globs: Vec<(usize, PathGlob)>,
}

impl Pattern {
    /// None where nothing is left to match.
    pub(super) fn parse(text: &[u8]) -> Result<Option<Self>, BadGlob> {
        let text = match text.trim_ascii() {
            [b'\\', b'!', ..] => text.trim_ascii().get(1..).unwrap_or_default(),
            text => text,
        };
        let mut body = text;
        while let Some(shorter) = body.strip_suffix(b"/") {
            body = shorter;
        }
        let anchored = body.contains(&b'/');
        while let Some(shorter) = body.strip_prefix(b"./").or(body.strip_prefix(b"/")) {
            body = shorter;
        }
        if body.is_empty() || body == b"." {
            return Ok(None);
        }
        let glob = match (glob::is_literal(body), anchored) {
            (true, _) => None,
            (false, true) => Some(Compiled::Path(PathGlob::parse(body)?)),
            (false, false) => Some(Compiled::Name(Glob::parse(body)?)),
        };
        Ok(Some(Self {
            text: body.to_vec(),
            anchored,
            glob,
        }))
    }

    /// The same pattern as a path from the root, whatever it looks like.
    pub(super) fn anchored_at_root(self) -> Self {
        let glob = self.glob.map(|glob| match glob {
            Compiled::Name(glob) => Compiled::Path(PathGlob::from(glob)),
            Compiled::Path(glob) => Compiled::Path(glob),
        });
        Self {
            glob,
            anchored: true,
            ..self
        }
    }
}

impl Index {
    pub(super) fn insert(&mut self, pattern: Pattern, number: usize) {
        let literal = if pattern.anchored {
            &mut self.paths
        } else {
            &mut self.names
        };
        literal.insert(pattern.text, number);
        match pattern.glob {
            Some(Compiled::Name(glob)) => self.name_globs.push((number, glob)),
            Some(Compiled::Path(glob)) => self.path_globs.push((number, glob)),
            None => {}
        }
    }

    /// The highest number of a pattern that matches exactly here. `name` is the last component of `path`.
    pub(super) fn highest(&self, path: &[u8], name: &[u8]) -> Option<usize> {
        let names = self.name_globs.iter().filter(|(_, g)| g.matches(name));
        let paths = self.path_globs.iter().filter(|(_, g)| g.matches(path));
        let literal = self.names.get(name).max(self.paths.get(path)).copied();
        let name_glob = names.map(|(number, _)| *number).max();
        let path_glob = paths.map(|(number, _)| *number).max();
        literal.max(name_glob).max(path_glob)
    }
}

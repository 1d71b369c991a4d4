//! The files of a directory that git does not know, by looking. Asked for by name only: nothing says here what is
//! generated, ignored or secret, beyond the rules.

use std::path::Path;

use super::exclude::{Cursor, Rules};
use super::manifest::{Entry, Found, Manifest, Skipped, Why, cannot_list, kind_of};
use super::tree::Tree;
use super::{Decision, RelPath};
use crate::Failure;

/// Lists `root`. Symlinks are entries and are not followed. A directory that cannot be read is an error, because the
/// tree would be partial.
pub(super) fn walk(root: &Path, rules: &Rules) -> Result<Manifest, Failure> {
    let failed = |at: &[u8], error: &dyn std::error::Error| {
        let at = super::path::escaped(at);
        let what = match at.as_str() {
            "" => "cannot be read".to_owned(),
            at => format!("cannot be read at {at}"),
        };
        cannot_list(root, what).because(error)
    };
    let mut tree = Tree::open(root).map_err(|error| failed(b"", &error))?;
    let mut cursor = Cursor::new(rules);
    let mut entries = Vec::new();
    let mut skipped = Vec::new();
    let mut dirs = vec![Vec::new()];
    while let Some(dir) = dirs.pop() {
        let mut names = tree.names(&dir).map_err(|error| failed(&dir, &error))?;
        names.sort_unstable();
        for name in names {
            let mut path = dir.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            // The only name here that is not a safe path: `.git`.
            let Ok(path) = RelPath::parse(&path) else {
                continue;
            };
            let stat = tree.stat(&path);
            let Some(stat) = stat.map_err(|error| failed(path.as_bytes(), &error))? else {
                continue;
            };
            match kind_of(&stat) {
                Found::Directory if cursor.is_dead_end(&path) => {}
                Found::Directory => dirs.push(path.as_bytes().to_vec()),
                Found::Sendable(_) | Found::Special if cursor.decide(&path) != Decision::Keep => {}
                Found::Sendable(kind) => entries.push(Entry::new(path, kind, &stat, false)),
                Found::Special => skipped.push(Skipped {
                    path,
                    why: Why::Special,
                }),
            }
        }
    }
    skipped.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Manifest::of_walk(entries, skipped))
}

//! A piece of git's listing, matched against the rules and looked up in the tree.

use std::collections::BTreeSet;
use std::path::Path;

use super::build::not_understood;
use super::{Entry, Found, Kind, Protected, Skipped, Why, cannot_list, kind_of};
use crate::Failure;
use crate::sync::exclude::Cursor;
use crate::sync::listing::{Listed, Tag, parse_listing};
use crate::sync::tree::Tree;
use crate::sync::{Decision, RelPath, Rules};

/// Everything in the order of the listing. A path in conflict is there once for each of its sides.
#[derive(Default)]
pub(super) struct Share {
    pub(super) entries: Vec<Entry>,
    pub(super) deleted: Vec<RelPath>,
    pub(super) protected: Vec<Protected>,
    pub(super) skipped: Vec<Skipped>,
    /// Tracked, but marked as not to be in the work tree, and not there.
    pub(super) hidden: Vec<RelPath>,
    /// The sides of conflicts, and whether each is a submodule.
    sides: Vec<(RelPath, bool)>,
}

impl Share {
    pub(super) fn of(root: &Path, rules: &Rules, piece: &[u8]) -> Result<Self, Failure> {
        let listed = parse_listing(piece).map_err(|error| not_understood(&error))?;
        let mut share = Self::default();
        let mut cursor = Cursor::new(rules);
        let tree = Tree::open(root);
        let mut tree = tree.map_err(|e| cannot_list(root, "cannot be read").because(&e))?;
        for listed in listed {
            share.take(root, listed, &mut cursor, &mut tree)?;
        }
        Ok(share)
    }

    pub(super) fn append(&mut self, mut next: Self) {
        self.entries.append(&mut next.entries);
        self.deleted.append(&mut next.deleted);
        self.protected.append(&mut next.protected);
        self.skipped.append(&mut next.skipped);
        self.hidden.append(&mut next.hidden);
        self.sides.append(&mut next.sides);
    }

    /// Paths that are a file on one side and a submodule on another: what lies there is neither.
    pub(super) fn mixed_conflicts(&self) -> Vec<&RelPath> {
        let of_kind = |gitlink: bool| -> BTreeSet<&RelPath> {
            let sides = self.sides.iter().filter(|side| side.1 == gitlink);
            sides.map(|(path, _)| path).collect()
        };
        of_kind(true)
            .intersection(&of_kind(false))
            .copied()
            .collect()
    }

    fn take(
        &mut self,
        root: &Path,
        listed: Listed<'_>,
        cursor: &mut Cursor<'_>,
        tree: &mut Tree,
    ) -> Result<(), Failure> {
        let Listed { path, tag } = listed;
        let (path, nested) = match (tag, path.strip_suffix(b"/")) {
            (Tag::Untracked, Some(path)) => (path, true),
            (_, _) => (path, false),
        };
        let path = RelPath::parse(path).map_err(|error| {
            cannot_list(root, "has an index that is not safe to use").because(&error)
        })?;
        let conflict = matches!(tag, Tag::Unmerged(_));
        let spared_from = match cursor.decide(&path) {
            Decision::Keep => None,
            // In a conflict the other side may be a file.
            Decision::DropUntracked(by) if conflict || tag.is_tracked_regular() => Some(by),
            Decision::Drop | Decision::DropUntracked(_) => return Ok(()),
        };
        if conflict {
            self.sides.push((path.clone(), tag.is_gitlink()));
        }
        if nested || tag.is_gitlink() {
            let why = if nested {
                Why::NestedRepository
            } else {
                Why::Submodule
            };
            self.skipped.push(Skipped { path, why });
            return Ok(());
        }
        let stat = tree.stat(&path).map_err(|error| {
            let what = format!("cannot be read at {path}");
            cannot_list(root, what).because(&error)
        })?;
        let tracked = tag != Tag::Untracked;
        match stat.as_ref().map(|stat| (kind_of(stat), stat)) {
            Some((Found::Sendable(kind), stat)) => {
                self.keep(Entry::new(path, kind, stat, tracked), spared_from);
            }
            Some((Found::Special, _)) => {
                let why = Why::Special;
                self.skipped.push(Skipped { path, why });
            }
            // A directory in the place of a tracked file has its own files listed.
            None | Some((Found::Directory, _)) => match tag {
                Tag::Tracked(_) | Tag::Unmerged(_) => self.deleted.push(path),
                Tag::SkipWorktree(_) => self.hidden.push(path),
                // Gone since git looked.
                Tag::Untracked => {}
            },
        }
        Ok(())
    }

    fn keep(&mut self, entry: Entry, spared_from: Option<&str>) {
        match (spared_from, entry.kind) {
            (None, Kind::File | Kind::Symlink) => {}
            (Some(pattern), Kind::File) => self.protected.push(Protected {
                path: entry.path.clone(),
                pattern: pattern.to_owned(),
            }),
            (Some(_), Kind::Symlink) => return,
        }
        self.entries.push(entry);
    }
}

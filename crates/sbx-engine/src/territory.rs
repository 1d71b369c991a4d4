//! What programs in sandboxes can write: the writable workspaces of all of them. Whatever a path meets there may
//! be exchanged from inside at any time, so that nothing which decides what a sandbox sees may lead through it.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const MOST_LINKS: u32 = 40;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Territory {
    roots: Vec<PathBuf>,
    /// Device and inode of each: another mount of it is the same directory.
    identities: BTreeSet<(u64, u64)>,
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// To this canonical path, and never through a workspace.
    Outside(PathBuf),
    /// Into a workspace. The path from there on, in which nothing was followed.
    Inside(PathBuf),
}

impl Territory {
    /// No sandbox at all.
    pub const fn nowhere() -> Self {
        Self {
            roots: Vec::new(),
            identities: BTreeSet::new(),
        }
    }

    /// `workspaces` are canonical paths of directories.
    pub fn new(workspaces: impl IntoIterator<Item = PathBuf>) -> Self {
        let roots: Vec<PathBuf> = workspaces.into_iter().collect();
        let identities = roots
            .iter()
            .filter_map(|root| fs::metadata(root).ok())
            .map(|meta| (meta.dev(), meta.ino()))
            .collect();
        Self { roots, identities }
    }

    /// Follows an absolute path one name at a time, links included, and stops at the first workspace. `None` when
    /// it leads nowhere.
    pub fn follow(&self, path: &Path) -> Option<Way> {
        let mut rest: VecDeque<OsString> = parts(path);
        let mut place = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                place.pop();
                continue;
            }
            let next = place.join(part);
            if self.roots.iter().any(|root| next.starts_with(root)) {
                return Some(Way::Inside(
                    rest.iter().fold(next, |at, part| at.join(part)),
                ));
            }
            let meta = fs::symlink_metadata(&next).ok()?;
            if self.identities.contains(&(meta.dev(), meta.ino())) {
                return Some(Way::Inside(
                    rest.iter().fold(next, |at, part| at.join(part)),
                ));
            }
            if !meta.file_type().is_symlink() {
                place = next;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return None;
            }
            let to = fs::read_link(&next).ok()?;
            if to.is_absolute() {
                place = PathBuf::from("/");
            }
            for part in parts(&to).into_iter().rev() {
                rest.push_front(part);
            }
        }
        Some(Way::Outside(place))
    }

    /// One step of it: whether what a name in a directory outside is, itself, is no workspace.
    pub fn is_outside(&self, next: &Path, meta: &Metadata) -> bool {
        let mut roots = self.roots.iter();
        !roots.any(|root| next.starts_with(root))
            && !self.identities.contains(&(meta.dev(), meta.ino()))
    }

    /// The canonical path, if nothing on the way to it can be changed from inside a sandbox.
    pub fn outside(&self, path: &Path) -> Option<PathBuf> {
        match self.follow(path)? {
            Way::Outside(canonical) => Some(canonical),
            Way::Inside(_) => None,
        }
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_way_through_a_workspace_is_followed() {
        let temp = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(temp.path()).unwrap();
        for dir in ["ws/.venv/bin", "tools/bin", ".ssh"] {
            fs::create_dir_all(home.join(dir)).unwrap();
        }
        symlink(home.join(".ssh"), home.join("ws/planted")).unwrap();
        symlink("ws/planted", home.join("through")).unwrap();
        symlink("tools/../tools/bin", home.join("fine")).unwrap();
        symlink("loop", home.join("loop")).unwrap();
        let territory = Territory::new([home.join("ws")]);
        let inside = |path: &str| Some(Way::Inside(home.join(path)));
        let outside = |path: &str| Some(Way::Outside(home.join(path)));
        for (path, expected) in [
            ("tools/bin", outside("tools/bin")),
            ("fine", outside("tools/bin")),
            ("wsx", None),
            ("loop", None),
            ("ws", inside("ws")),
            ("ws/.venv/bin", inside("ws/.venv/bin")),
            ("ws/gone", inside("ws/gone")),
            ("ws/planted", inside("ws/planted")),
            ("through", inside("ws/planted")),
            ("through/deeper", inside("ws/planted/deeper")),
        ] {
            assert_eq!(territory.follow(&home.join(path)), expected, "{path}");
        }
        assert_eq!(territory.outside(&home.join("through")), None);
        for (name, expected) in [("tools", true), ("ws", false), ("fine", true)] {
            let path = home.join(name);
            let meta = fs::symlink_metadata(&path).unwrap();
            assert_eq!(territory.is_outside(&path, &meta), expected, "{name}");
        }
        // By another name it is the same directory.
        let meta = fs::metadata(home.join("ws")).unwrap();
        assert!(!territory.is_outside(&home.join("other"), &meta));
        assert_eq!(
            Territory::default().outside(&home.join("through")),
            Some(home.join(".ssh"))
        );
    }
}

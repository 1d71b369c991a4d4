//! What programs in sandboxes can write: the writable workspaces of all of them. Whatever a path meets there may
//! be exchanged from inside at any time, so that nothing which decides what a sandbox sees may lead through it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use sbx_sys::mountinfo::Entry;

use crate::workspace::aliases;

/// As many links as the kernel follows.
const MOST_LINKS: u32 = 40;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UntrustedPaths {
    roots: Vec<PathBuf>,
    /// Device and inode of each: another mount of it is the same directory.
    identities: BTreeMap<(u64, u64), PathBuf>,
    /// Other names that mounts give one, or a part of it, and which one that is.
    names: BTreeMap<PathBuf, PathBuf>,
}

/// One of the workspaces. Where device and inode are known it is not asked for them: one on a server that is out of
/// reach must not keep other sandboxes waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntrustedRoot {
    pub path: PathBuf,
    pub node: Option<(u64, u64)>,
}

impl From<PathBuf> for UntrustedRoot {
    fn from(path: PathBuf) -> Self {
        Self { path, node: None }
    }
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// To this canonical path, and never through a workspace.
    Trusted(PathBuf),
    /// Into a workspace. The path from there on, in which nothing was followed.
    Untrusted(PathBuf),
}

/// Where a path leads in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    pub real: PathBuf,
    /// One that leads out of its workspace.
    pub escape: Option<UntrustedLink>,
    /// The first one at all, also if it stays inside.
    pub crossed: Option<UntrustedLink>,
}

/// A link in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntrustedLink {
    /// The workspace.
    pub root: PathBuf,
    pub link: PathBuf,
}

impl UntrustedPaths {
    /// No sandbox at all.
    pub const fn none() -> Self {
        Self {
            roots: Vec::new(),
            identities: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    /// `workspaces` are canonical paths of directories.
    pub fn new(workspaces: impl IntoIterator<Item = impl Into<UntrustedRoot>>) -> Self {
        Self::with_mounts(workspaces, &aliases::mounts())
    }

    fn with_mounts(
        workspaces: impl IntoIterator<Item = impl Into<UntrustedRoot>>,
        mounts: &[Entry],
    ) -> Self {
        let mut untrusted = Self::none();
        let mut known = BTreeSet::new();
        for workspace in workspaces {
            let UntrustedRoot { path, node } = workspace.into();
            let asked = || {
                fs::metadata(&path)
                    .map(|meta| (meta.dev(), meta.ino()))
                    .ok()
            };
            if let Some(node) = node.or_else(asked) {
                untrusted.identities.insert(node, path.clone());
            }
            // Many sandboxes may have the same one.
            if !known.insert(path.clone()) {
                continue;
            }
            // What is mounted in it, too: the sandbox has that as well.
            for name in aliases::names_of_all(mounts, &path) {
                untrusted.names.entry(name).or_insert_with(|| path.clone());
            }
            untrusted.roots.push(path);
        }
        untrusted
    }

    pub(crate) fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Follows an absolute path one name at a time, links included, and stops at the first workspace. `None` when
    /// it leads nowhere.
    pub fn resolve(&self, path: &Path) -> Option<Resolved> {
        let led = walk(path, |next, meta, rest| {
            if self.is_known(next) || meta.is_some_and(|meta| self.root_by_identity(meta).is_some())
            {
                let way = rest.iter().fold(next.to_owned(), |at, part| at.join(part));
                return ControlFlow::Break(way);
            }
            ControlFlow::Continue(())
        })?;
        Some(match led {
            ControlFlow::Break(way) => Resolved::Untrusted(way),
            ControlFlow::Continue(place) => Resolved::Trusted(place),
        })
    }

    /// Follows an absolute path to its end, through workspaces as well, and says whether it was a link in one of them
    /// that led out of it. `None` when it leads nowhere.
    pub fn follow(&self, path: &Path) -> Option<Followed> {
        // Where a workspace was entered: its own path, or that of another mount of it.
        let mut entered: Vec<(PathBuf, &Path)> = Vec::new();
        let mut links: Vec<(PathBuf, UntrustedLink)> = Vec::new();
        let led: ControlFlow<(), PathBuf> = walk(path, |next, meta, _| {
            let by_path = self.names.get(next);
            let by_identity = || meta.and_then(|meta| self.root_by_identity(meta));
            if let Some(root) = by_path.map(PathBuf::as_path).or_else(by_identity) {
                entered.push((next.to_owned(), root));
            }
            if meta.is_some_and(Metadata::is_symlink) {
                let inside = entered.iter().filter(|(place, _)| next.starts_with(place));
                links.extend(inside.map(|(place, root)| {
                    let escape = UntrustedLink {
                        root: root.to_path_buf(),
                        link: next.to_owned(),
                    };
                    (place.clone(), escape)
                }));
            }
            ControlFlow::Continue(())
        })?;
        let ControlFlow::Continue(real) = led else {
            return None;
        };
        let crossed = links.first().map(|(_, escape)| escape.clone());
        let out = links
            .into_iter()
            .find(|(place, _)| !real.starts_with(place));
        Some(Followed {
            escape: out.map(|(_, escape)| escape),
            crossed,
            real,
        })
    }

    /// By its path alone.
    fn is_known(&self, path: &Path) -> bool {
        path.ancestors().any(|dir| self.names.contains_key(dir))
    }

    fn root_by_identity(&self, meta: &Metadata) -> Option<&Path> {
        let root = self.identities.get(&(meta.dev(), meta.ino()));
        root.map(PathBuf::as_path)
    }

    /// One step of it: whether what a name in a directory outside leads to is not itself a workspace.
    pub fn is_trusted(&self, next: &Path, meta: &Metadata) -> bool {
        !self.is_known(next) && self.root_by_identity(meta).is_none()
    }

    /// The canonical path, if nothing on the way to it can be changed from inside a sandbox.
    pub fn trusted(&self, path: &Path) -> Option<PathBuf> {
        match self.resolve(path)? {
            Resolved::Trusted(canonical) => Some(canonical),
            Resolved::Untrusted(_) => None,
        }
    }
}

/// Goes along an absolute path one name at a time, links included, and shows each name: its path, what is there, and
/// what is still to come. `None` when it leads nowhere.
fn walk<B>(
    path: &Path,
    mut visit: impl FnMut(&Path, Option<&Metadata>, &VecDeque<OsString>) -> ControlFlow<B>,
) -> Option<ControlFlow<B, PathBuf>> {
    let mut rest: VecDeque<OsString> = parts(path);
    let mut place = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            place.pop();
            continue;
        }
        let next = place.join(part);
        let meta = fs::symlink_metadata(&next).ok();
        if let ControlFlow::Break(found) = visit(&next, meta.as_ref(), &rest) {
            return Some(ControlFlow::Break(found));
        }
        if !meta?.file_type().is_symlink() {
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
    Some(ControlFlow::Continue(place))
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
        let untrusted = UntrustedPaths::new([home.join("ws")]);
        let inside = |path: &str| Some(Resolved::Untrusted(home.join(path)));
        let outside = |path: &str| Some(Resolved::Trusted(home.join(path)));
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
            assert_eq!(untrusted.resolve(&home.join(path)), expected, "{path}");
        }
        assert_eq!(untrusted.trusted(&home.join("through")), None);
        for (name, expected) in [("tools", true), ("ws", false), ("fine", true)] {
            let path = home.join(name);
            let meta = fs::symlink_metadata(&path).unwrap();
            assert_eq!(untrusted.is_trusted(&path, &meta), expected, "{name}");
        }
        // By another name it is the same directory.
        let meta = fs::metadata(home.join("ws")).unwrap();
        assert!(!untrusted.is_trusted(&home.join("other"), &meta));
        assert_eq!(
            UntrustedPaths::default().trusted(&home.join("through")),
            Some(home.join(".ssh"))
        );
    }

    #[test]
    fn a_workspace_of_many_sandboxes_is_one_by_all_its_identities() {
        let root = |node| UntrustedRoot {
            path: "/w".into(),
            node: Some(node),
        };
        let untrusted =
            UntrustedPaths::with_mounts([root((1, 2)), root((1, 3)), root((1, 2))], &[]);
        assert_eq!(untrusted.roots(), [PathBuf::from("/w")]);
        let nodes: Vec<_> = untrusted.identities.keys().copied().collect();
        assert_eq!(nodes, [(1, 2), (1, 3)]);
    }

    #[test]
    fn a_mount_of_a_part_of_a_workspace_is_in_it() {
        let temp = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(temp.path()).unwrap();
        for dir in ["ws", "bound/bin", "fine"] {
            fs::create_dir_all(home.join(dir)).unwrap();
        }
        symlink("../fine", home.join("bound/link")).unwrap();
        let line = |id: u32, root: &Path, point: &Path| {
            let (root, point) = (root.display(), point.display());
            format!("{id} 1 254:0 {root} {point} rw - ext4 /dev/vda rw\n")
        };
        let text = [
            line(1, Path::new("/"), Path::new("/")),
            line(2, &home.join("ws/tools"), &home.join("bound")),
            line(3, &home.join("ws-2"), &home.join("fine")),
            line(4, &home.join("shown"), &home.join("ws/mounted")),
        ];
        let mounts = sbx_sys::mountinfo::parse(text.concat().as_bytes());
        let untrusted = UntrustedPaths::with_mounts([home.join("ws")], &mounts);
        let bound = home.join("bound/bin");
        assert_eq!(
            untrusted.resolve(&bound),
            Some(Resolved::Untrusted(bound.clone()))
        );
        assert!(!untrusted.is_trusted(&bound, &fs::metadata(&bound).unwrap()));
        // And what a mount shows in the workspace is in it under its own name.
        let shown = home.join("shown");
        fs::create_dir(&shown).unwrap();
        assert_eq!(
            untrusted.resolve(&shown),
            Some(Resolved::Untrusted(shown.clone()))
        );
        let fine = home.join("fine");
        assert_eq!(untrusted.trusted(&fine), Some(fine.clone()));
        let led = untrusted.follow(&home.join("bound/link")).unwrap();
        assert_eq!(
            (led.real, led.escape.unwrap().root),
            (fine, home.join("ws"))
        );
    }
}

//! Where mounts go: at exactly the planned paths.
//!
//! The sandbox's own layers are written by whoever was root inside before, so no link in them may decide where
//! something is mounted, and with what under it. A target is therefore walked to one name at a time, from the root
//! of the mount that it lies in, following nothing. What is in the way in an own layer gives way to a directory;
//! in a tree of the host nothing is ever changed. In the end every mount must be found at its path.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use sbx_proto::inside::AGENT;
use sbx_proto::plan::Mode;
use sbx_sys::credentials;

use crate::error::{SetupError, SetupResult, While};

/// Whose files a mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// A file system that was made for this sandbox.
    Ours,
    /// The host's, or the kernel's.
    Foreign,
}

#[derive(Debug)]
struct Mounted {
    target: PathBuf,
    root: OwnedFd,
    whose: Whose,
}

/// The mounts of the new tree that nothing covers.
#[derive(Debug)]
pub(super) struct Places {
    mode: Mode,
    mounts: Vec<Mounted>,
    own: Own,
}

/// File systems that were made for this sandbox, by the numbers that mountinfo has for them. Each is held: a mount of it
/// can be taken away from inside, and the number would be given to the next file system that anybody mounts.
pub(crate) type Own = BTreeMap<String, OwnedFd>;

impl Places {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            mounts: Vec::new(),
            own: Own::new(),
        }
    }

    /// Notes a mount, by a descriptor of its root. It hides whatever was mounted there or below.
    pub(super) fn add(&mut self, target: &Path, root: OwnedFd, whose: Whose) -> SetupResult<()> {
        if whose == Whose::Ours {
            let facts = rustix::fs::fstat(&root).doing(|| at("look at", target))?;
            let (major, minor) = (
                rustix::fs::major(facts.st_dev),
                rustix::fs::minor(facts.st_dev),
            );
            let held = fcntl_dupfd_cloexec(&root, 0).doing(|| at("hold", target))?;
            self.own.insert(format!("{major}:{minor}"), held);
        }
        self.mounts.retain(|old| !old.target.starts_with(target));
        self.mounts.push(Mounted {
            target: target.to_owned(),
            root,
            whose,
        });
        Ok(())
    }

    pub(super) fn into_own(self) -> Own {
        self.own
    }

    /// The root of the mount at exactly this path.
    pub(super) fn root_of(&self, target: &Path) -> SetupResult<BorrowedFd<'_>> {
        self.mounted(target)
            .ok_or_else(|| SetupError::new(at("find the mount of", target), "there is none"))
    }

    pub(super) fn mounted(&self, target: &Path) -> Option<BorrowedFd<'_>> {
        let found = self.mounts.iter().find(|mount| mount.target == target);
        found.map(|mount| mount.root.as_fd())
    }

    /// A directory to mount on.
    pub(super) fn directory(&self, target: &Path) -> SetupResult<OwnedFd> {
        let (base, rest) = self.base(target)?;
        let doing = || at("make the directory", target);
        let mut place = fcntl_dupfd_cloexec(&base.root, 0).doing(doing)?;
        for name in rest {
            place = self.enter(&place, &name, base.whose).doing(doing)?;
        }
        Ok(place)
    }

    /// A file to mount on. What is there may be a FIFO: it is covered, and never opened.
    pub(super) fn file(&self, target: &Path) -> SetupResult<OwnedFd> {
        let doing = || at("make the file", target);
        let name = target
            .file_name()
            .ok_or_else(|| SetupError::new(doing(), "it has no name"))?;
        let parent = target.parent().unwrap_or(Path::new("/"));
        let (base, _) = self.base(target)?;
        let parent = self.directory(parent)?;
        let found = match self.look(&parent, Path::new(name)) {
            Ok((_, FileType::Directory)) => Err(Errno::ISDIR),
            Ok((place, kind)) if kind != FileType::Symlink => return Ok(place),
            Err(Errno::NOENT) if base.whose == Whose::Ours => Ok(()),
            Ok(_) if base.whose == Whose::Ours => {
                rustix::fs::unlinkat(&parent, name, AtFlags::empty())
            }
            Ok(_) => Err(Errno::LOOP),
            Err(error) => Err(error),
        };
        found.doing(doing)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = FileMode::from_bits_truncate(0o644);
        rustix::fs::openat(&parent, name, flags, mode).doing(doing)?;
        let (place, _) = self.look(&parent, Path::new(name)).doing(doing)?;
        Ok(place)
    }

    /// What is to be covered, if the tree that it lies in has it. A link is not covered: it leads to nothing that
    /// would not be judged by its own path.
    pub(super) fn existing(&self, target: &Path) -> SetupResult<Option<OwnedFd>> {
        let doing = || at("mask", target);
        let (base, rest) = self.base(target)?;
        if base.whose == Whose::Ours {
            return Err(SetupError::new(doing(), "what it lies in is not mounted"));
        }
        let mut place = fcntl_dupfd_cloexec(&base.root, 0).doing(doing)?;
        let last = rest.len().saturating_sub(1);
        for (index, name) in rest.iter().enumerate() {
            let kind;
            (place, kind) = match self.look(&place, name) {
                Ok(found) => found,
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(error).doing(doing),
            };
            match kind {
                FileType::Symlink if index == last => return Ok(None),
                FileType::Symlink => return Err(Errno::LOOP).doing(doing),
                _ => {}
            }
        }
        Ok(Some(place))
    }

    /// Every mount is what is found at its path, in the finished tree that is now `/`. Their ids, and where they are.
    pub(super) fn verify(&self) -> SetupResult<BTreeSet<(u64, PathBuf)>> {
        let mut all = BTreeSet::new();
        for mount in &self.mounts {
            let doing = || at("find the mount of", &mount.target);
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let open = || {
                rustix::fs::openat2(
                    rustix::fs::CWD,
                    &mount.target,
                    flags,
                    FileMode::empty(),
                    ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
                )
            };
            let found = self.or_as_caller(open).doing(doing)?;
            let id = mount_id(mount.root.as_fd()).doing(doing)?;
            if mount_id(found.as_fd()).doing(doing)? != id {
                return Err(SetupError::new(doing(), "something else is there"));
            }
            all.insert((id, mount.target.clone()));
        }
        Ok(all)
    }

    /// The innermost mount that a path lies in, and the names from its root to there.
    fn base(&self, target: &Path) -> SetupResult<(&Mounted, Vec<PathBuf>)> {
        let base = self
            .mounts
            .iter()
            .filter(|mount| target.starts_with(&mount.target))
            .max_by_key(|mount| mount.target.components().count())
            .ok_or_else(|| SetupError::new("build the root", "the plan does not begin with `/`"))?;
        let rest = target.strip_prefix(&base.target).unwrap_or(target);
        let names = rest.components().map(|part| match part {
            Component::Normal(name) => Ok(PathBuf::from(name)),
            _ => Err(SetupError::new(
                at("mount", target),
                "it is not a plain path",
            )),
        });
        Ok((base, names.collect::<SetupResult<_>>()?))
    }

    /// One directory further down.
    fn enter(&self, dir: &OwnedFd, name: &Path, whose: Whose) -> Result<OwnedFd, Errno> {
        match (self.look(dir, name), whose) {
            (Ok((place, FileType::Directory)), _) => return Ok(place),
            (Ok(_), Whose::Ours) => rustix::fs::unlinkat(dir, name, AtFlags::empty())?,
            (Err(Errno::NOENT), Whose::Ours) => {}
            (Ok((_, FileType::Symlink)), Whose::Foreign) => return Err(Errno::LOOP),
            (Ok(_), Whose::Foreign) => return Err(Errno::NOTDIR),
            (Err(error), _) => return Err(error),
        }
        rustix::fs::mkdirat(dir, name, FileMode::from_bits_truncate(0o755))?;
        match self.look(dir, name)? {
            (place, FileType::Directory) => Ok(place),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn look(&self, dir: &OwnedFd, name: &Path) -> Result<(OwnedFd, FileType), Errno> {
        self.or_as_caller(|| look(dir, name))
    }

    /// What root inside may not look at is looked at as the caller, whose id the agent has with subordinate ids: a
    /// directory of the caller's may belong to a group that is nobody's inside.
    fn or_as_caller<T>(&self, find: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match find() {
            Err(Errno::ACCESS) if self.mode == Mode::Subordinate => {
                credentials::with_fsuid(AGENT, find)
            }
            other => other,
        }
    }
}

fn at(what: &str, target: &Path) -> String {
    format!("{what} `{}`", target.display())
}

/// What a name in a directory is, itself and not what it leads to.
fn look(dir: &OwnedFd, name: &Path) -> Result<(OwnedFd, FileType), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(dir, name, flags, FileMode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    Ok((found, kind))
}

fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let facts = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    let known = StatxFlags::from_bits_retain(facts.stx_mask).contains(StatxFlags::MNT_ID);
    known.then_some(facts.stx_mnt_id).ok_or(Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, FileMode::empty()).unwrap()
    }

    /// A root of ours that is laid out in `own`, and a tree of the host at `/w`.
    fn places(own: &Path, host: &Path) -> Places {
        let mut places = Places::new(Mode::Single);
        places.add(Path::new("/"), open(own), Whose::Ours).unwrap();
        places
            .add(Path::new("/w"), open(host), Whose::Foreign)
            .unwrap();
        places
    }

    #[test]
    fn links_of_an_own_layer_give_way() {
        let (own, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(own.path().join("elsewhere")).unwrap();
        symlink("elsewhere", own.path().join("home")).unwrap();
        symlink("elsewhere", own.path().join("file")).unwrap();
        let places = places(own.path(), host.path());
        places.directory(Path::new("/home/u/p")).unwrap();
        places.file(Path::new("/file")).unwrap();
        for (name, is_dir) in [("home/u/p", true), ("home", true), ("file", false)] {
            let meta = fs::symlink_metadata(own.path().join(name)).unwrap();
            assert!(!meta.is_symlink() && meta.is_dir() == is_dir, "{name}");
        }
        assert_eq!(
            fs::read_dir(own.path().join("elsewhere")).unwrap().count(),
            0
        );
    }

    #[test]
    fn nothing_of_the_host_is_changed_or_followed() {
        let (own, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // What is below the mount in the own layer does not count.
        fs::create_dir_all(own.path().join("w/dir")).unwrap();
        symlink("/", host.path().join("link")).unwrap();
        fs::File::create(host.path().join("file")).unwrap();
        let places = places(own.path(), host.path());
        for path in ["/w/link", "/w/link/x", "/w/file", "/w/dir", "/w/file/x"] {
            assert!(places.directory(Path::new(path)).is_err(), "{path}");
        }
        for path in ["/w/link", "/w/new"] {
            assert!(places.file(Path::new(path)).is_err(), "{path}");
        }
        places.file(Path::new("/w/file")).unwrap();
        assert_eq!(fs::read_dir(host.path()).unwrap().count(), 2);
        let masked = |path: &str| {
            places
                .existing(Path::new(path))
                .map(|place| place.is_some())
        };
        assert!(masked("/w/file").unwrap());
        assert!(!masked("/w/gone").unwrap() && !masked("/w/link").unwrap());
        assert!(masked("/w/link/x").is_err(), "a link on the way");
        assert!(masked("/own/file").is_err(), "a mask of an own layer");
        assert!(places.directory(Path::new("/w/../x")).is_err());
    }
}

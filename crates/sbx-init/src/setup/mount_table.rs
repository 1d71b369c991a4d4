//! The mounts of the new tree, and the mount points for the next ones: exactly the planned paths.
//!
//! Programs that were root inside before have written the sandbox's layers, so no symbolic link in them may decide where
//! something is mounted. A target is therefore walked to one name at a time (`O_PATH | O_NOFOLLOW`), from the root of the
//! mount that contains it. In a layer of the sandbox, anything but a directory on the way is replaced by a directory; in
//! a tree of the host nothing is ever changed. At the end, [`MountTable::verify`] checks by mount id that every mount is
//! what its path leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use sbx_proto::inside::AGENT;
use sbx_proto::plan::Mode;
use sbx_sys::credentials;

use crate::error::{ErrorContext, SetupError, SetupResult};

/// Where the files of a mount come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A file system that was made for this sandbox.
    Sandbox,
    /// The host's, or one of the kernel's.
    Host,
}

#[derive(Debug)]
struct Mounted {
    target: PathBuf,
    root: OwnedFd,
    origin: Origin,
}

/// The mounts of the new tree that no later mount covers.
#[derive(Debug)]
pub(super) struct MountTable {
    mode: Mode,
    mounts: Vec<Mounted>,
    own: OwnFileSystems,
}

/// File systems that were made for this sandbox, by `major:minor` as in mountinfo. A descriptor keeps each alive: programs
/// inside can unmount it, and the kernel would give the number to the next file system that is mounted anywhere.
pub(crate) type OwnFileSystems = BTreeMap<String, OwnedFd>;

impl MountTable {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            mounts: Vec::new(),
            own: OwnFileSystems::new(),
        }
    }

    /// Records a mount by a descriptor of its root. It covers earlier mounts at and below its target.
    pub(super) fn add(&mut self, target: &Path, root: OwnedFd, origin: Origin) -> SetupResult<()> {
        if origin == Origin::Sandbox {
            let facts = rustix::fs::fstat(&root).doing(|| at("stat", target))?;
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
            origin,
        });
        Ok(())
    }

    pub(super) fn into_own(self) -> OwnFileSystems {
        self.own
    }

    /// The root of the mount at exactly this path.
    pub(super) fn root_of(&self, target: &Path) -> SetupResult<BorrowedFd<'_>> {
        self.mounted(target)
            .ok_or_else(|| SetupError::new(at("find the mount of", target), "not mounted"))
    }

    pub(super) fn mounted(&self, target: &Path) -> Option<BorrowedFd<'_>> {
        let found = self.mounts.iter().find(|mount| mount.target == target);
        found.map(|mount| mount.root.as_fd())
    }

    /// A directory as mount point, made if missing.
    pub(super) fn directory(&self, target: &Path) -> SetupResult<OwnedFd> {
        let (base, rest) = self.base(target)?;
        let doing = || at("make the directory", target);
        let mut place = fcntl_dupfd_cloexec(&base.root, 0).doing(doing)?;
        for name in rest {
            place = self.enter(&place, &name, base.origin).doing(doing)?;
        }
        Ok(place)
    }

    /// A file as mount point. It may be a FIFO: `O_PATH` does not open it.
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
            Err(Errno::NOENT) if base.origin == Origin::Sandbox => Ok(()),
            Ok(_) if base.origin == Origin::Sandbox => {
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

    /// An existing file or directory of the host, to be masked. A symbolic link is not masked: what it leads to is, under its
    /// own path.
    pub(super) fn existing(&self, target: &Path) -> SetupResult<Option<OwnedFd>> {
        let doing = || at("mask", target);
        let (base, rest) = self.base(target)?;
        if base.origin == Origin::Sandbox {
            return Err(SetupError::new(
                doing(),
                "its parent is not mounted from the host",
            ));
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

    /// Checks that every mount is what its path leads to, in the finished tree that is now `/`. Returns mount ids and paths.
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
                return Err(SetupError::new(doing(), "another mount is there"));
            }
            all.insert((id, mount.target.clone()));
        }
        Ok(all)
    }

    /// The innermost mount that contains a path, and the names from its root to the path.
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
            _ => Err(SetupError::new(at("mount", target), "invalid path")),
        });
        Ok((base, names.collect::<SetupResult<_>>()?))
    }

    /// Enters one directory, made if missing.
    fn enter(&self, dir: &OwnedFd, name: &Path, origin: Origin) -> Result<OwnedFd, Errno> {
        match (self.look(dir, name), origin) {
            (Ok((place, FileType::Directory)), _) => return Ok(place),
            (Ok(_), Origin::Sandbox) => rustix::fs::unlinkat(dir, name, AtFlags::empty())?,
            (Err(Errno::NOENT), Origin::Sandbox) => {}
            (Ok((_, FileType::Symlink)), Origin::Host) => return Err(Errno::LOOP),
            (Ok(_), Origin::Host) => return Err(Errno::NOTDIR),
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

    /// Retries as the caller what root inside may not access. With subordinate ids the agent has the caller's uid, and a
    /// directory of the caller may belong to a group that is not mapped inside, where root's capabilities do not apply.
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

/// Opens a name in a directory without following it, and returns its type.
pub(super) fn look(dir: &OwnedFd, name: &Path) -> Result<(OwnedFd, FileType), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(dir, name, flags, FileMode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    Ok((found, kind))
}

pub(super) fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
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

    /// The sandbox's root in `own`, and a tree of the host at `/w`.
    fn table(own: &Path, host: &Path) -> MountTable {
        let mut table = MountTable::new(Mode::Single);
        table
            .add(Path::new("/"), open(own), Origin::Sandbox)
            .unwrap();
        table
            .add(Path::new("/w"), open(host), Origin::Host)
            .unwrap();
        table
    }

    #[test]
    fn links_in_the_sandboxs_layer_are_replaced() {
        let (own, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(own.path().join("elsewhere")).unwrap();
        symlink("elsewhere", own.path().join("home")).unwrap();
        symlink("elsewhere", own.path().join("file")).unwrap();
        let table = table(own.path(), host.path());
        table.directory(Path::new("/home/u/p")).unwrap();
        table.file(Path::new("/file")).unwrap();
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
        // Covered by the mount at `/w`.
        fs::create_dir_all(own.path().join("w/dir")).unwrap();
        symlink("/", host.path().join("link")).unwrap();
        fs::File::create(host.path().join("file")).unwrap();
        let table = table(own.path(), host.path());
        for path in ["/w/link", "/w/link/x", "/w/file", "/w/dir", "/w/file/x"] {
            assert!(table.directory(Path::new(path)).is_err(), "{path}");
        }
        for path in ["/w/link", "/w/new"] {
            assert!(table.file(Path::new(path)).is_err(), "{path}");
        }
        table.file(Path::new("/w/file")).unwrap();
        assert_eq!(fs::read_dir(host.path()).unwrap().count(), 2);
        let masked = |path: &str| table.existing(Path::new(path)).map(|place| place.is_some());
        assert!(masked("/w/file").unwrap());
        assert!(!masked("/w/gone").unwrap() && !masked("/w/link").unwrap());
        assert!(masked("/w/link/x").is_err(), "a link on the way");
        assert!(masked("/own/file").is_err(), "a mask of an own layer");
        assert!(table.directory(Path::new("/w/../x")).is_err());
    }
}

//! Paths of the host that a user names, some of which lie where programs in sandboxes can write.
//!
//! There, a link that such a program has made leads no further than its own workspace: the rest of the path is resolved below
//! that workspace (`openat2`, `RESOLVE_BENEATH`). Links elsewhere are the user's own and are followed.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use sbx_api::Sandbox;

/// Directories that programs in sandboxes can write.
#[derive(Debug, Default)]
pub(crate) struct WritableRoots(Vec<PathBuf>);

impl WritableRoots {
    /// Of all sandboxes: what one has planted another may be copied through.
    pub(crate) fn of(sandboxes: &[Sandbox]) -> Self {
        let workspaces = sandboxes.iter().flat_map(|sandbox| &sandbox.workspaces);
        let writable = workspaces.filter(|workspace| !workspace.readonly);
        Self(
            writable
                .map(|workspace| PathBuf::from(&workspace.path))
                .collect(),
        )
    }

    /// The outermost that the path is in.
    fn enclosing_root(&self, path: &Path) -> Option<&Path> {
        let around = self.0.iter().filter(|root| path.starts_with(root));
        around
            .min_by_key(|root| root.as_os_str().len())
            .map(PathBuf::as_path)
    }

    /// Opens a path. EXDEV: a link in a workspace leads out of it.
    pub(crate) fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        let mut words = absolute(path)?.into_iter().peekable();
        let place = OFlags::PATH | OFlags::CLOEXEC;
        let mut here = openat(CWD, "/", place | OFlags::DIRECTORY, Mode::empty())?;
        while let Some(word) = words.next() {
            let real = real_path(&here)?;
            if let Some(root) = self.enclosing_root(&real) {
                let inside = real.strip_prefix(root).unwrap_or(Path::new(""));
                let mut rest = inside.join(&word);
                rest.extend(words);
                return open_below(root, &rest, flags);
            }
            let flags = if words.peek().is_none() { flags } else { place };
            here = openat(&here, &word, flags, Mode::empty())?;
        }
        // It was opened by its own flags, unless it is the root directory.
        Ok(here)
    }
}

/// From the root directory on. What leads up at its beginning is taken from the current directory, which has no links.
fn absolute(path: &Path) -> Result<Vec<OsString>, Errno> {
    let mut here = match path.is_absolute() {
        true => PathBuf::from("/"),
        false => std::env::current_dir()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?,
    };
    let mut parts = path.components().peekable();
    while let Some(Component::ParentDir | Component::CurDir | Component::RootDir) = parts.peek() {
        if parts.next() == Some(Component::ParentDir) {
            here.pop();
        }
    }
    let before = here.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        _ => None,
    });
    let words = before.chain(parts.map(|part| part.as_os_str().to_owned()));
    Ok(words.collect())
}

fn real_path(place: &OwnedFd) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    std::fs::read_link(link).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn open_below(root: &Path, rest: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let root = openat(
        CWD,
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let rest = if rest.as_os_str().is_empty() {
        OsStr::new(".")
    } else {
        rest.as_os_str()
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(&root, rest, flags, Mode::empty(), resolve) {
            // Something was renamed meanwhile, and the kernel is not sure.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn planted_links_lead_nowhere() {
        let temp = tempfile::tempdir().unwrap();
        let temp = temp.path().canonicalize().unwrap();
        for dir in ["ws/d", "mine/deep"] {
            fs::create_dir_all(temp.join(dir)).unwrap();
        }
        fs::File::create(temp.join("mine/file")).unwrap();
        symlink(temp.join("mine"), temp.join("ws/out")).unwrap();
        symlink("../../mine", temp.join("ws/d/up")).unwrap();
        symlink("d", temp.join("ws/in")).unwrap();
        symlink(temp.join("ws/d"), temp.join("mine/to-ws")).unwrap();
        symlink(temp.join("mine"), temp.join("own")).unwrap();
        let roots = WritableRoots(vec![temp.join("ws")]);
        let open = |path: &str| {
            let opened = roots.open(&temp.join(path), OFlags::PATH)?;
            real_path(&opened)
        };
        assert_eq!(open("own/file"), Ok(temp.join("mine/file")));
        assert_eq!(open("ws/in"), Ok(temp.join("ws/d")));
        assert_eq!(open("mine/to-ws"), Ok(temp.join("ws/d")));
        assert_eq!(open("ws"), Ok(temp.join("ws")));
        for path in [
            "ws/out",
            "ws/out/file",
            "ws/d/up/file",
            "mine/to-ws/up",
            "ws/../mine/file",
        ] {
            assert_eq!(open(path), Err(Errno::XDEV), "{path}");
        }
        assert_eq!(open("ws/none"), Err(Errno::NOENT));
    }
}

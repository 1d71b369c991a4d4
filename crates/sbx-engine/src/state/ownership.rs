//! Whose a directory is: ours by its marker, another product's, or another user's.
//!
//! Reading never creates anything. A directory that does not carry our marker belongs to another product and is left
//! alone, unless nothing is in it but settings that the user wrote before the first command.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, Mode, OFlags};

use super::atomic_write::{make_private_dirs, private};
use super::error::io_error;
use super::{LOCK, LOG, SANDBOXES, SETTINGS, StateDir, StateError, TEMPLATES, TRASH, ancestors};

pub(super) const MARKER: &str = ".sbx-owner";

pub(super) const MARKER_TEXT: &[u8] = b"state directory of sbx, format 1\n";
const MARKER_TEXT_OF_ANY_FORMAT: &[u8] = b"state directory of sbx, format ";

impl StateDir {
    /// Whether the directory is the caller's and another product has files in it.
    pub fn is_foreign(&self) -> bool {
        let own = fs::metadata(&self.root)
            .is_ok_and(|meta| meta.is_dir() && self.check_owner(meta.uid()).is_ok());
        own && !self.is_claimed() && self.is_unused().is_ok_and(|unused| !unused)
    }

    /// That what belongs to `owner` is the caller's.
    pub fn check_owner(&self, owner: u32) -> Result<(), StateError> {
        let user = rustix::process::geteuid().as_raw();
        if owner == user {
            return Ok(());
        }
        Err(StateError::OtherUser {
            path: self.root.clone(),
            owner,
            user,
        })
    }

    /// That the directory, if there is one, is the caller's.
    pub fn check_own(&self) -> Result<(), StateError> {
        match fs::metadata(&self.root) {
            Ok(meta) if meta.is_dir() => self.check_owner(meta.uid())?,
            Ok(_) | Err(_) => {}
        }
        self.check_place()
    }

    /// That no other user can put another directory in its place.
    fn check_place(&self) -> Result<(), StateError> {
        match ancestors::renamable(&self.root) {
            None => Ok(()),
            Some(above) => Err(StateError::Renamable {
                path: self.root.clone(),
                above,
            }),
        }
    }

    /// Makes the directory ours, or proves that it is.
    pub fn claim(&self) -> Result<(), StateError> {
        let root = &self.root;
        let failed = |source| io_error(root, source);
        self.check_own()?;
        make_private_dirs(root).map_err(failed)?;
        let meta = fs::metadata(root).map_err(failed)?;
        self.check_owner(meta.uid())?;
        if !self.is_claimed() {
            let occupied = !self.is_unused().map_err(failed)?;
            // Looked at again: what is in it may be the marker of a client that claims it at the same time.
            if occupied && !self.is_claimed() {
                return Err(StateError::Foreign { path: root.clone() });
            }
            // Written in place: a temporary file left by a crash would look like another product's.
            let marker = private().create_new(true).open(root.join(MARKER));
            match marker.and_then(|mut file| file.write_all(MARKER_TEXT)) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(e)),
            }
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        keep_to_own_group(root);
        for dir in [self.sandboxes(), self.templates(), self.trash()] {
            make_private_dirs(&dir).map_err(|source| io_error(&dir, source))?;
            keep_to_own_group(&dir);
        }
        keep_apart(&self.sandboxes());
        Ok(())
    }

    /// The same directory, which exists, by its real name: what is shown to sandboxes is opened through no symbolic link,
    /// and a home may lie behind one.
    pub fn real(&self) -> Result<Self, StateError> {
        let root = fs::canonicalize(&self.root).map_err(|source| io_error(&self.root, source))?;
        Ok(Self { root })
    }

    /// Whether the directory exists and is ours; reading commands look no further when it is not.
    pub fn is_claimed(&self) -> bool {
        marker(&self.root).exists()
    }

    /// Whether a directory that exists has nothing in it but, perhaps, settings, a file of the directory's owner, and
    /// what a command makes that comes while another one removes everything.
    pub fn is_unused(&self) -> io::Result<bool> {
        let owner = fs::metadata(&self.root)?.uid();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            let unused = match entry.file_name().to_str() {
                Some(SETTINGS) => meta.is_file(),
                Some(LOCK | LOG) => meta.is_file() && meta.len() == 0,
                Some(SANDBOXES | TEMPLATES | TRASH) => {
                    meta.is_dir() && fs::read_dir(entry.path())?.next().is_none()
                }
                _ => false,
            };
            if !unused || meta.uid() != owner {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A directory can hand its group down to those that are made in it, and root of a user namespace has no power over a
/// directory whose group is not in it. The bits for the group are off, so that it grants nothing whichever one it is.
fn keep_to_own_group(dir: &Path) {
    let group = rustix::process::getegid().as_raw();
    let changed = match fs::metadata(dir) {
        Ok(meta) if meta.gid() == group => Ok(()),
        Ok(_) => std::os::unix::fs::chown(dir, None, Some(group)),
        Err(error) => Err(error),
    };
    if let Err(error) = changed {
        tracing::debug!(%error, dir = %dir.display(), "it keeps a group of others");
    }
}

/// Tells the file system that what lies in the directory has nothing to do with each other. ext4 then gives every
/// sandbox a part of the disk for itself. Else a new one is put where others were removed just now, and without a
/// journal ext4 looks at each of their inodes before it makes a file. Other file systems do not know that.
fn keep_apart(dir: &Path) {
    let tell = || {
        let dir = File::open(dir)?;
        let flags = rustix::fs::ioctl_getflags(&dir)?;
        if !flags.contains(IFlags::TOPDIR) {
            rustix::fs::ioctl_setflags(&dir, flags | IFlags::TOPDIR)?;
        }
        io::Result::Ok(())
    };
    if let Err(error) = tell() {
        tracing::debug!(%error, dir = %dir.display(), "sandboxes are not kept apart on the disk");
    }
}

/// The file that says whose a directory is.
pub fn marker(dir: &Path) -> PathBuf {
    dir.join(MARKER)
}

/// Whether that very directory is a state directory, of any user. A file of the marker's name alone says nothing:
/// programs in a sandbox can make one.
pub fn is_state(dir: &Path) -> bool {
    let keeps = |meta: fs::Metadata| meta.is_dir();
    has_marker_text(dir) && fs::symlink_metadata(dir.join(SANDBOXES)).is_ok_and(keeps)
}

/// Of any format. What is in its place is neither followed nor waited for.
fn has_marker_text(dir: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(marker(dir), flags, Mode::empty()) else {
        return false;
    };
    let file = File::from(opened);
    let mut text = Vec::new();
    let wanted = MARKER_TEXT_OF_ANY_FORMAT;
    let limit = u64::try_from(wanted.len()).unwrap_or(u64::MAX);
    file.metadata().is_ok_and(|meta| meta.is_file())
        && file.take(limit).read_to_end(&mut text).is_ok()
        && text == wanted
}

//! Copies the upper layers of a sandbox's overlays, which become layers of a saved template.
//!
//! Programs inside have made them, whatever they liked: nothing is reached by a path, no link is followed, and what is
//! neither a file, a directory, a link nor a pipe is not copied. Overlay's own marks stay what they mean: a whiteout (a
//! device 0/0) hides a name, an opaque directory (`user.overlay.opaque`) all that is below it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::Errno;
use sbx_proto::OsBytes;
use sbx_proto::plan::CopyLayers;
use thiserror::Error;

use super::open_beneath;

/// Directories within each other, of which two descriptors each are open.
const DEEPEST: usize = 1000;
/// Below the copy while it is made: another name of each file that has several.
const LINKS: &CStr = c".links";
/// The layer of `/`, in which everything is that has no overlay of its own.
const ROOT: &str = "root";
const UPPER: &CStr = c"upper";
const OPAQUE: &str = "user.overlay.opaque";
/// Without it, and with nothing below, overlay would list the whiteouts of a directory as files.
const ORIGIN: &str = "user.overlay.origin";
const CAPABILITY: &str = "security.capability";
const OVERLAYS_OWN: &str = "user.overlay.";
const MAX_BUNDLE: u64 = 16 << 20;
/// What the kernel takes for a list of extended attributes, and for the value of one (`XATTR_SIZE_MAX`).
const MAX_EXTENDED: usize = 64 << 10;
const BUFFER: usize = 1 << 20;

#[derive(Debug, Error)]
pub(crate) enum CopyLayersError {
    #[error("cannot copy `{}`", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot copy `{}`: more than {DEEPEST} directories within each other", .path.display())]
    TooDeep { path: PathBuf },
}

/// With the ids that all of it belongs to.
pub(crate) fn copy_layers(task: &CopyLayers) -> Result<(), CopyLayersError> {
    let top = |path: &OsBytes| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path.as_path(), flags, Mode::empty());
        opened.map_err(|errno| failed(path.as_path(), errno))
    };
    let (from, to) = (top(&task.from)?, top(&task.to)?);
    let at_top = |errno| failed(Path::new("/"), errno);
    rustix::fs::mkdirat(&to, LINKS, Mode::RWXU).map_err(at_top)?;
    let mut links = Links {
        dir: readable(&to, LINKS).map_err(at_top)?,
        known: BTreeMap::new(),
    };
    let names = layers(&from, &task.skip).map_err(at_top)?;
    let omit: Vec<_> = task.omit.iter().map(|path| place(path, &names)).collect();
    for name in &names {
        let of_this = omit.iter().filter(|(layer, _)| layer == name);
        let omit = of_this.map(|(_, rest)| rest.clone()).collect();
        copy_layer(&from, &to, name, omit, &mut links)?;
    }
    links.remove(&to).map_err(at_top)?;
    for bundle in &task.bundles {
        let (layer, rest) = place(bundle, &names);
        let cut = cut(&to, &Path::new(&layer).join(rest), &task.certificate);
        cut.map_err(|source| CopyLayersError::Io {
            path: bundle.to_path_buf(),
            source,
        })?;
    }
    Ok(())
}

fn failed(path: &Path, errno: Errno) -> CopyLayersError {
    CopyLayersError::Io {
        path: path.to_path_buf(),
        source: errno.into(),
    }
}

/// The overlays that have an upper layer.
fn layers(from: &OwnedFd, skip: &str) -> rustix::io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let Ok(text) = name.to_str() else { continue };
        // An image has `lost+found` beside them.
        let ours = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        if !text.as_bytes().iter().all(ours) || text.starts_with(skip) {
            continue;
        }
        let upper =
            open_beneath::open_dir(from, name).and_then(|dir| open_beneath::open_dir(dir, UPPER));
        match upper {
            Ok(_) => drop(names.insert(text.to_owned())),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(names)
}

/// In which layer a path inside is, and where.
fn place(path: &OsBytes, layers: &BTreeSet<String>) -> (String, PathBuf) {
    let below = path.as_path().strip_prefix("/").unwrap_or(path.as_path());
    let mut parts = below.components();
    let first = parts.next().and_then(|it| it.as_os_str().to_str());
    match first {
        Some(first) if layers.contains(first) => (first.to_owned(), parts.as_path().to_owned()),
        Some(_) | None => (ROOT.to_owned(), below.to_owned()),
    }
}

fn readable(parent: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let dir = open_beneath::open_dir(parent, name)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, c".", flags, Mode::empty())
}

fn copy_layer(
    from: &OwnedFd,
    to: &OwnedFd,
    name: &str,
    omit: BTreeSet<PathBuf>,
    links: &mut Links,
) -> Result<(), CopyLayersError> {
    let at_top = |errno| failed(Path::new("/"), errno);
    let c_name = CString::new(name).map_err(|_| at_top(Errno::INVAL))?;
    let upper = open_beneath::open_dir(from, &c_name)
        .and_then(|dir| readable(dir, UPPER))
        .map_err(at_top)?;
    rustix::fs::mkdirat(to, &c_name, Mode::RWXU).map_err(at_top)?;
    let copy = readable(to, &c_name).map_err(at_top)?;
    let mut copier = Copier {
        omit,
        links,
        here: PathBuf::from("/"),
        open: Vec::new(),
    };
    copier.enter(upper, copy).map_err(at_top)?;
    copier.run()
}

/// A directory that is being copied.
struct Frame {
    from: Dir,
    to: OwnedFd,
    stat: Stat,
    /// It has whiteouts.
    hides: bool,
}

struct Copier<'a> {
    /// Paths below the layer that are left out.
    omit: BTreeSet<PathBuf>,
    links: &'a mut Links,
    /// For messages, and for `omit`.
    here: PathBuf,
    open: Vec<Frame>,
}

impl Copier<'_> {
    fn enter(&mut self, from: OwnedFd, to: OwnedFd) -> rustix::io::Result<()> {
        let stat = rustix::fs::fstat(&from)?;
        self.open.push(Frame {
            from: Dir::new(from)?,
            to,
            stat,
            hides: false,
        });
        Ok(())
    }

    fn run(&mut self) -> Result<(), CopyLayersError> {
        while let Some(frame) = self.open.last_mut() {
            let entry = match frame.from.next() {
                None => {
                    self.leave()?;
                    continue;
                }
                Some(entry) => entry.map_err(|errno| failed(&self.here, errno))?,
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let depth = self.open.len();
            self.here.push(OsStr::from_bytes(name.to_bytes()));
            if self.omits() {
                self.here.pop();
                continue;
            }
            if depth >= DEEPEST {
                let path = self.here.clone();
                return Err(CopyLayersError::TooDeep { path });
            }
            self.entry(name)
                .map_err(|errno| failed(&self.here, errno))?;
            // Otherwise it is a directory, in which we are now.
            if self.open.len() == depth {
                self.here.pop();
            }
        }
        Ok(())
    }

    fn omits(&self) -> bool {
        let below = self.here.strip_prefix("/").unwrap_or(&self.here);
        self.omit.contains(below)
    }

    fn entry(&mut self, name: &CStr) -> rustix::io::Result<()> {
        let Some(frame) = self.open.last_mut() else {
            return Ok(());
        };
        let (from, to) = (frame.from.fd()?, frame.to.as_fd());
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let from = readable(from, name)?;
                rustix::fs::mkdirat(to, name, Mode::RWXU)?;
                let to = readable(to, name)?;
                self.enter(from, to)
            }
            FileType::RegularFile => file(from, to, name, self.links),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
                by_name(to, name, &stat)
            }
            FileType::Fifo => {
                rustix::fs::mknodat(to, name, FileType::Fifo, Mode::empty(), 0)?;
                rustix::fs::chmodat(to, name, mode(&stat), AtFlags::empty())?;
                by_name(to, name, &stat)
            }
            // A whiteout. A socket or another device is replaced by one: what it was put in the place of must not come
            // back.
            _ => {
                frame.hides = true;
                rustix::fs::mknodat(to, name, FileType::CharacterDevice, Mode::empty(), 0)
            }
        }
    }

    fn leave(&mut self) -> Result<(), CopyLayersError> {
        let Some(frame) = self.open.pop() else {
            return Ok(());
        };
        let is_top = self.open.is_empty();
        let done = frame.from.fd().and_then(|from| {
            attributes(from, frame.to.as_fd(), &frame.stat, is_top)?;
            if frame.hides && !is_top {
                rustix::fs::fsetxattr(&frame.to, ORIGIN, b"", XattrFlags::empty())?;
            }
            rustix::fs::futimens(&frame.to, &times(&frame.stat))
        });
        done.map_err(|errno| failed(&self.here, errno))?;
        self.here.pop();
        Ok(())
    }
}

/// Files with several names, by device and inode.
struct Links {
    dir: OwnedFd,
    known: BTreeMap<(u64, u64), CString>,
}

impl Links {
    /// Gives a file that was copied already this name too; false if it was not, or has too many.
    fn link(&self, stat: &Stat, to: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
        let Some(first) = self.known.get(&(stat.st_dev, stat.st_ino)) else {
            return Ok(false);
        };
        match rustix::fs::linkat(&self.dir, first, to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::MLINK) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Remembers what was copied just now.
    fn note(&mut self, stat: &Stat, to: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
        let key = (stat.st_dev, stat.st_ino);
        if self.known.contains_key(&key) {
            return Ok(());
        }
        let other = self.known.len().to_string();
        let other = CString::new(other).map_err(|_| Errno::INVAL)?;
        rustix::fs::linkat(to, name, &self.dir, &other, AtFlags::empty())?;
        self.known.insert(key, other);
        Ok(())
    }

    fn remove(self, to: &OwnedFd) -> rustix::io::Result<()> {
        for other in self.known.values() {
            rustix::fs::unlinkat(&self.dir, other, AtFlags::empty())?;
        }
        rustix::fs::unlinkat(to, LINKS, AtFlags::REMOVEDIR)
    }
}

fn file(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &CStr,
    links: &mut Links,
) -> rustix::io::Result<()> {
    // Should it be a pipe by now, to open it must not wait.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = rustix::fs::openat(from, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&source)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let shared = stat.st_nlink > 1;
    if shared && links.link(&stat, to, name)? {
        return Ok(());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
    let (source, copy) = (File::from(source), File::from(copy));
    contents(&source, &copy, u64::try_from(stat.st_size).unwrap_or(0))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    attributes(source.as_fd(), copy.as_fd(), &stat, false)?;
    rustix::fs::futimens(&copy, &times(&stat))?;
    match shared {
        true => links.note(&stat, to, name),
        false => Ok(()),
    }
}

/// Holes stay holes: what a program inside made large for nothing does not fill the disk.
fn contents(from: &File, to: &File, size: u64) -> io::Result<()> {
    if size == 0 || rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    to.set_len(size)?;
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start)).unwrap_or(size);
        let end = end.clamp(start, size);
        if end == start {
            break;
        }
        range(from, to, start, end)?;
        at = end;
    }
    Ok(())
}

fn range(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 30);
        let (mut there, mut here) = (at, at);
        match rustix::fs::copy_file_range(from, Some(&mut there), to, Some(&mut here), length) {
            Ok(0) => return Ok(()),
            Ok(count) => at += count as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return by_buffer(from, to, at, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn by_buffer(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    while at < end {
        let room = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
        let count = from.read_at(buffer.get_mut(..room).unwrap_or_default(), at)?;
        if count == 0 {
            break;
        }
        to.write_all_at(buffer.get(..count).unwrap_or_default(), at)?;
        at += count as u64;
    }
    Ok(())
}

/// Owner, mode and extended attributes, in an order in which none takes another away.
fn attributes(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    stat: &Stat,
    is_top: bool,
) -> rustix::io::Result<()> {
    let made = rustix::fs::fstat(to)?;
    if (made.st_uid, made.st_gid) != (stat.st_uid, stat.st_gid) {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::fchown(to, Some(uid), Some(gid))?;
    }
    rustix::fs::fchmod(to, mode(stat))?;
    for name in extended(from)? {
        let name = name.as_c_str();
        let text = name.to_str().unwrap_or_default();
        if !is_kept(text, is_top) {
            continue;
        }
        let mut value = vec![0; MAX_EXTENDED];
        let count = match rustix::fs::fgetxattr(from, name, value.as_mut_slice()) {
            Ok(count) => count,
            Err(Errno::NODATA) => continue,
            Err(errno) => return Err(errno),
        };
        let value = value.get(..count).unwrap_or_default();
        match rustix::fs::fsetxattr(to, name, value, XattrFlags::empty()) {
            // A file capability of a user namespace that does not exist any more means nothing.
            Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) if text == CAPABILITY => {}
            done => done?,
        }
    }
    Ok(())
}

fn is_kept(name: &str, is_top: bool) -> bool {
    match name {
        OPAQUE => !is_top,
        CAPABILITY | "system.posix_acl_access" | "system.posix_acl_default" => true,
        other => other.starts_with("user.") && !other.starts_with(OVERLAYS_OWN),
    }
}

fn extended(file: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    // Most files have none.
    let mut names = vec![0; 256];
    let mut listed = rustix::fs::flistxattr(file, names.as_mut_slice());
    if listed == Err(Errno::RANGE) {
        names.resize(MAX_EXTENDED, 0);
        listed = rustix::fs::flistxattr(file, names.as_mut_slice());
    }
    let count = match listed {
        Ok(count) => count,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno),
    };
    let names = names
        .get(..count)
        .unwrap_or_default()
        .split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}

fn by_name(to: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> rustix::io::Result<()> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    let made = rustix::fs::statat(to, name, nofollow)?;
    if (made.st_uid, made.st_gid) != (stat.st_uid, stat.st_gid) {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::chownat(to, name, Some(uid), Some(gid), nofollow)?;
    }
    rustix::fs::utimensat(to, name, &times(stat), nofollow)
}

fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

fn times(stat: &Stat) -> Timestamps {
    let nanoseconds = |value| i64::try_from(value).unwrap_or(0);
    Timestamps {
        last_access: Timespec {
            tv_sec: stat.st_atime,
            tv_nsec: nanoseconds(stat.st_atime_nsec),
        },
        last_modification: Timespec {
            tv_sec: stat.st_mtime,
            tv_nsec: nanoseconds(stat.st_mtime_nsec),
        },
    }
}

/// Takes a certificate out of a bundle, if both are there.
fn cut(to: &OwnedFd, path: &Path, certificate: &str) -> io::Result<()> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::openat2(to, path, flags, Mode::empty(), resolve) else {
        // Anything else there is not a bundle.
        return Ok(());
    };
    let stat = rustix::fs::fstat(&opened)?;
    let small = u64::try_from(stat.st_size).is_ok_and(|size| size <= MAX_BUNDLE);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !small {
        return Ok(());
    }
    let mut file = File::from(opened);
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let Some(rest) = without(&text, certificate.trim().as_bytes()) else {
        return Ok(());
    };
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(&rest)?;
    Ok(rustix::fs::futimens(&file, &times(&stat))?)
}

/// The text without its first `wanted`, and the end of that line. Comments of a bundle need not be UTF-8.
fn without(text: &[u8], wanted: &[u8]) -> Option<Vec<u8>> {
    if wanted.is_empty() {
        return None;
    }
    let at = text.windows(wanted.len()).position(|it| it == wanted)?;
    let (before, after) = (text.get(..at)?, text.get(at + wanted.len()..)?);
    Some([before, after.strip_prefix(b"\n").unwrap_or(after)].concat())
}

#[cfg(test)]
mod tests;

//! Reads a tree and writes it to a stream. The tree may change while it is read, also by intent: nothing is opened but by a
//! descriptor of its directory, and no link is followed unless that was asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, readlinkat, seek, statat,
};
use rustix::io::Errno;

use crate::below;
use crate::error::CopyError;
use crate::name::{Base, Name};
use crate::pipe::Output;
use crate::writer::{Attributes, Segment, Writer};

/// A file with more pieces is sent whole.
const MAX_SEGMENTS: usize = 1 << 16;
/// Directories within each other, each of which is open.
const MAX_DEPTH: usize = 1024;

/// Links in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Copied as links.
    Keep,
    /// Followed within the tree; those that lead out of it are an error.
    FollowBelow,
    /// Followed wherever they lead.
    Follow,
}

/// What is going on, for who watches.
pub trait Watch {
    fn file(&mut self, bytes: u64);
    /// Something that cannot be copied and is left out.
    fn skipped(&mut self, name: &str, reason: &str);
}

/// Writes the tree or file behind `source`, of which the names begin with `base`. `source` was opened with O_PATH; that of
/// a link (without O_NOFOLLOW it would not be one) is copied as a link.
pub fn pack<W: Output>(
    source: &OwnedFd,
    base: &Base,
    links: Links,
    out: W,
    watch: &mut dyn Watch,
) -> Result<W, CopyError> {
    let mut packer = Packer {
        root: source.as_fd(),
        links,
        writer: Writer::new(out),
        seen: BTreeMap::new(),
        above: Vec::new(),
        watch,
    };
    let name = base.as_bytes();
    packer.place(source.as_fd(), name, &Name::default())?;
    packer.writer.finish()
}

struct Packer<'a, W> {
    root: BorrowedFd<'a>,
    links: Links,
    writer: Writer<W>,
    /// Files with several names, by device and inode: the first one.
    seen: BTreeMap<(u64, u64), Vec<u8>>,
    /// Directories that are being read.
    above: Vec<(u64, u64)>,
    watch: &'a mut dyn Watch,
}

impl<W: Output> Packer<'_, W> {
    /// What a descriptor (O_PATH) stands for. `below` is its name in the tree.
    fn place(&mut self, place: BorrowedFd<'_>, name: &[u8], below: &Name) -> Result<(), CopyError> {
        let stat = fstat(place).map_err(|errno| CopyError::file("look at", name, errno))?;
        let opened = |flags| {
            below::reopen(place, flags).map_err(|errno| CopyError::file("open", name, errno))
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(opened(OFlags::DIRECTORY)?, name, below),
            FileType::RegularFile => self.file(opened(OFlags::NONBLOCK)?, name),
            FileType::Symlink => self.link(place, b"", name, &stat),
            other => self.skip(name, other),
        }
    }

    fn child(
        &mut self,
        dir: BorrowedFd<'_>,
        last: &[u8],
        name: &[u8],
        below: &Name,
    ) -> Result<(), CopyError> {
        let failed = |what| move |errno| CopyError::file(what, name, errno);
        let stat = statat(dir, last, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("look at"))?;
        let open = |flags: OFlags| {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
            openat(dir, last, flags, Mode::empty()).map_err(failed("open"))
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(open(OFlags::DIRECTORY)?, name, below),
            // Should it be a pipe by now, to open it must not wait.
            FileType::RegularFile => self.file(open(OFlags::NONBLOCK)?, name),
            FileType::Symlink => match self.links {
                Links::Keep => self.link(dir, last, name, &stat),
                Links::FollowBelow => {
                    let found = below::open_following(self.root, below);
                    let found = found.map_err(|errno| match errno {
                        Errno::XDEV => CopyError::refused(name, "it leads out of what is copied"),
                        errno => CopyError::file("follow", name, errno),
                    })?;
                    self.place(found.as_fd(), name, below)
                }
                Links::Follow => {
                    let flags = OFlags::PATH | OFlags::CLOEXEC;
                    let found =
                        openat(dir, last, flags, Mode::empty()).map_err(failed("follow"))?;
                    self.place(found.as_fd(), name, below)
                }
            },
            other => self.skip(name, other),
        }
    }

    fn skip(&mut self, name: &[u8], kind: FileType) -> Result<(), CopyError> {
        let reason = match kind {
            FileType::Socket => "a socket",
            FileType::Fifo => "a pipe",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "neither a file nor a directory",
        };
        self.watch.skipped(&crate::error::shown(name), reason);
        Ok(())
    }

    fn directory(&mut self, dir: OwnedFd, name: &[u8], below: &Name) -> Result<(), CopyError> {
        let failed = |what| move |errno| CopyError::file(what, name, errno);
        let stat = fstat(&dir).map_err(failed("look at"))?;
        let identity = (stat.st_dev, stat.st_ino);
        if self.above.contains(&identity) {
            return Err(CopyError::refused(
                name,
                "its links lead around in a circle",
            ));
        }
        if self.above.len() >= MAX_DEPTH {
            return Err(CopyError::refused(
                name,
                "too many directories within each other",
            ));
        }
        self.writer.directory(name, attributes(&stat))?;
        self.above.push(identity);
        for entry in Dir::read_from(&dir).map_err(failed("read"))? {
            let entry = entry.map_err(failed("read"))?;
            let last = entry.file_name().to_bytes();
            if last == b"." || last == b".." {
                continue;
            }
            let whole = [name, b"/", last].concat();
            self.child(dir.as_fd(), last, &whole, &below.with(last))?;
        }
        self.above.pop();
        Ok(())
    }

    fn file(&mut self, file: OwnedFd, name: &[u8]) -> Result<(), CopyError> {
        let failed = |what| move |errno| CopyError::file(what, name, errno);
        let stat = fstat(&file).map_err(failed("look at"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return self.skip(name, kind);
        }
        let attributes = attributes(&stat);
        if stat.st_nlink > 1 {
            let identity = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.seen.get(&identity) {
                let first = first.clone();
                return self.writer.hard_link(name, &first, attributes);
            }
            self.seen.insert(identity, name.to_vec());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let file = File::from(file);
        let has_holes = u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512)
            < size;
        let segments = if has_holes {
            segments(&file, size)
        } else {
            None
        };
        let whole = match &segments {
            Some(segments) => self
                .writer
                .sparse(name, &file, size, segments, attributes)?,
            None => self.writer.file(name, &file, size, attributes)?,
        };
        self.watch
            .file(segments.map_or(size, |all| all.iter().map(|(_, length)| length).sum()));
        if whole {
            Ok(())
        } else {
            Err(CopyError::Changed(crate::error::shown(name)))
        }
    }

    fn link(
        &mut self,
        dir: BorrowedFd<'_>,
        last: &[u8],
        name: &[u8],
        stat: &Stat,
    ) -> Result<(), CopyError> {
        let target = readlinkat(dir, last, Vec::new());
        let target = target.map_err(|errno| CopyError::file("read", name, errno))?;
        self.writer
            .symlink(name, target.as_bytes(), attributes(stat))?;
        self.watch.file(0);
        Ok(())
    }
}

fn attributes(stat: &Stat) -> Attributes {
    Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: stat.st_mtime,
    }
}

/// The parts of a file that are not holes (SEEK_DATA); `None` where the file system does not say, or there is too much of it.
fn segments(file: &File, size: u64) -> Option<Vec<Segment>> {
    let mut segments = Vec::new();
    let mut end = 0;
    while end < size {
        let start = match seek(file, SeekFrom::Data(end)) {
            Ok(start) => start,
            // Nothing but a hole follows.
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        end = seek(file, SeekFrom::Hole(start)).ok()?.min(size);
        if start >= size {
            break;
        }
        segments.push((start, end.checked_sub(start)?));
        if segments.len() > MAX_SEGMENTS {
            return None;
        }
    }
    Some(segments)
}

//! Reads a stream and writes a tree below a directory, whatever the stream says and whatever changes in the directory meanwhile.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown,
    futimens, linkat, mkdirat, openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::below::{self, Directories};
use crate::error::{CopyError, shown};
use crate::name::{Base, Name};
use crate::pack::Watch;
use crate::pipe::Input;
use crate::reader::{Entry, Kind, Reader};
use crate::writer::Attributes;

/// How often something that was put in the way meanwhile is removed again.
const TRIES: usize = 3;
/// Names of links that were left out: a stream of nothing else has no end, and takes no room on the disk.
const MAX_NAMED: usize = 1000;

/// The owner and the permissions that unpacked files get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// On the host: they belong to the caller, have no special bits, and their permissions are those that the umask allows.
    /// Links lead nowhere else.
    Caller { umask: u32 },
    /// Inside: they keep their owners where that is possible, and their permissions.
    Keep,
}

/// Where the files of a stream go.
#[derive(Debug)]
pub struct Destination {
    pub dir: OwnedFd,
    /// What all names begin with; `None` for a stream of any names.
    pub base: Option<Base>,
    /// What the base is called here, if it has another name.
    pub renamed: Option<Vec<u8>>,
}

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Directory,
    File,
    /// A stream of any names.
    Archive,
}

/// Where a copy goes: into a directory that is there, or to a new name in the directory before it. `open` opens a directory
/// (O_PATH).
pub fn destination(
    path: &Path,
    source: Source,
    base: Base,
    open: &dyn Fn(&Path) -> Result<OwnedFd, Errno>,
) -> Result<Destination, CopyError> {
    let bytes = path.as_os_str().as_bytes();
    let failed = |path: &Path, errno| CopyError::file("open", path.as_os_str().as_bytes(), errno);
    let missing = match open(path) {
        Ok(dir) => {
            let base = (source != Source::Archive).then_some(base);
            let renamed = None;
            return Ok(Destination { dir, base, renamed });
        }
        Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => errno,
        Err(errno) => return Err(failed(path, errno)),
    };
    let must_be_there = source == Source::File && bytes.ends_with(b"/");
    let Some(name) = path
        .file_name()
        .filter(|_| source != Source::Archive && !must_be_there)
    else {
        return Err(failed(path, missing));
    };
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    Ok(Destination {
        dir: open(parent).map_err(|errno| failed(parent, errno))?,
        base: Some(base),
        renamed: Some(name.as_bytes().to_vec()),
    })
}

/// Links that lead elsewhere, which are left out.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub count: u64,
    /// The first of them.
    pub names: Vec<String>,
}

/// Writes everything that is left of the stream, beginning with `first`. Returns what was left out.
pub fn unpack<R: Input>(
    first: Option<Entry>,
    reader: &mut Reader<R>,
    place: Destination,
    ownership: Ownership,
    watch: &mut dyn Watch,
) -> Result<LeftOut, CopyError> {
    let mut unpacker = Unpacker {
        dirs: Directories::new(place.dir),
        base: place.base,
        renamed: place.renamed,
        ownership,
        made: Vec::new(),
        left_out: LeftOut::default(),
        watch,
    };
    let mut next = first;
    while let Some(entry) = next {
        unpacker.entry(entry, reader)?;
        next = reader.next_entry()?;
    }
    unpacker.finish()
}

struct Unpacker<'a> {
    dirs: Directories,
    base: Option<Base>,
    renamed: Option<Vec<u8>>,
    ownership: Ownership,
    /// Directories that get their attributes at the end: until then files are made in them.
    made: Vec<(Name, Attributes)>,
    left_out: LeftOut,
    watch: &'a mut dyn Watch,
}

impl Unpacker<'_> {
    fn entry<R: Input>(&mut self, entry: Entry, reader: &mut Reader<R>) -> Result<(), CopyError> {
        let name = self.placed(&entry.name)?;
        let attributes = entry.attributes;
        match entry.kind {
            Kind::Directory => self.directory(&name, attributes),
            Kind::File { size } => self.file(&name, size, attributes, reader),
            Kind::Symlink(target) => self.symlink(&name, &entry.name, &target, attributes),
            Kind::HardLink(target) => {
                let target = self.placed(&target)?;
                self.hard_link(&name, &target)
            }
            Kind::Special => {
                let name = shown(&name.to_bytes());
                self.watch.skipped(&name, "a device or pipe");
                Ok(())
            }
        }
    }

    fn placed(&self, name: &Name) -> Result<Name, CopyError> {
        match &self.base {
            Some(base) => base.place(name, self.renamed.as_deref()),
            None => Ok(name.clone()),
        }
    }

    fn directory(&mut self, name: &Name, attributes: Attributes) -> Result<(), CopyError> {
        let Some((parent, last)) = name.split() else {
            // The root itself was there before.
            return Ok(());
        };
        let dir = self.dirs.get(&parent)?;
        match mkdirat(dir, last, Mode::from_raw_mode(0o700)) {
            Ok(()) => self.made.push((name.clone(), attributes)),
            // One that was there keeps its attributes.
            Err(Errno::EXIST) if self.dirs.get(name).is_ok() => {}
            Err(Errno::EXIST) => {
                let reason = "something that is not a directory is in its place";
                return Err(CopyError::refused(&name.to_bytes(), reason));
            }
            Err(errno) => return Err(CopyError::file("make", &name.to_bytes(), errno)),
        }
        Ok(())
    }

    fn file<R: Input>(
        &mut self,
        name: &Name,
        size: u64,
        attributes: Attributes,
        reader: &mut Reader<R>,
    ) -> Result<(), CopyError> {
        let failed = |what| move |errno: Errno| CopyError::file(what, &name.to_bytes(), errno);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = self.make(name, |dir, last| {
            openat(dir, last, flags, Mode::from_raw_mode(0o600))
        })?;
        let file = File::from(file);
        let moved = reader.body(&file, size).map_err(|error| match error {
            CopyError::Stream(source) => CopyError::file("write", &name.to_bytes(), source),
            other => other,
        })?;
        self.owner(|uid, gid| fchown(&file, Some(uid), Some(gid)), attributes);
        self.mode(|mode| fchmod(&file, mode), attributes)
            .map_err(failed("set the permissions of"))?;
        futimens(&file, &times(attributes)).map_err(failed("set the time of"))?;
        self.watch.file(moved);
        Ok(())
    }

    fn symlink(
        &mut self,
        name: &Name,
        in_stream: &Name,
        target: &[u8],
        attributes: Attributes,
    ) -> Result<(), CopyError> {
        if matches!(self.ownership, Ownership::Caller { .. })
            && !stays_below(in_stream, self.base.as_ref(), target)
        {
            self.left_out.count += 1;
            if self.left_out.names.len() < MAX_NAMED {
                self.left_out.names.push(shown(&name.to_bytes()));
            }
            return Ok(());
        }
        self.make(name, |dir, last| symlinkat(target, dir, last))?;
        if let Some((parent, last)) = name.split() {
            let last = last.to_vec();
            let ownership = self.ownership;
            let dir = self.dirs.get(&parent)?;
            let nofollow = AtFlags::SYMLINK_NOFOLLOW;
            if ownership == Ownership::Keep {
                let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
                // An owner that does not exist here is not an error; see [`Self::owner`].
                let _ = chownat(dir, last.as_slice(), Some(uid), Some(gid), nofollow);
            }
            // Nothing depends on when a link was made.
            let _ = utimensat(dir, last.as_slice(), &times(attributes), nofollow);
        }
        self.watch.file(0);
        Ok(())
    }

    fn hard_link(&mut self, name: &Name, target: &Name) -> Result<(), CopyError> {
        let failed = |errno| CopyError::file("link", &name.to_bytes(), errno);
        let refused = |reason| CopyError::refused(&name.to_bytes(), reason);
        let Some((target_parent, target_last)) = target.split() else {
            return Err(refused("a link to a directory"));
        };
        let root = self.dirs.root();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let from = below::open(root, &target_parent, flags).map_err(failed)?;
        let stat = statat(&from, target_last, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(refused("a link to something that is not a file"));
        }
        self.make(name, |dir, last| {
            linkat(&from, target_last, dir, last, AtFlags::empty())
        })?;
        self.watch.file(0);
        Ok(())
    }

    /// Makes something where perhaps a file or link is, which goes.
    fn make<T>(
        &mut self,
        name: &Name,
        make: impl Fn(std::os::fd::BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, CopyError> {
        let Some((parent, last)) = name.split() else {
            return Err(CopyError::refused(b".", "a directory is in its place"));
        };
        let dir = self.dirs.get(&parent)?;
        for _ in 0..TRIES {
            match make(dir, last) {
                Ok(made) => return Ok(made),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(CopyError::file("make", &name.to_bytes(), errno)),
            }
            match unlinkat(dir, last, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => {
                    return Err(CopyError::refused(
                        &name.to_bytes(),
                        "a directory is in its place",
                    ));
                }
                Err(errno) => return Err(CopyError::file("replace", &name.to_bytes(), errno)),
            }
        }
        Err(CopyError::refused(
            &name.to_bytes(),
            "something else is put in its place again and again",
        ))
    }

    /// The last directories first: one that may not be entered any more comes after those in it.
    fn finish(mut self) -> Result<LeftOut, CopyError> {
        for (name, attributes) in std::mem::take(&mut self.made).into_iter().rev() {
            let failed = |errno: Errno| CopyError::file("finish", &name.to_bytes(), errno);
            let dir = below::open(self.dirs.root(), &name, OFlags::DIRECTORY).map_err(failed)?;
            self.owner(|uid, gid| fchown(&dir, Some(uid), Some(gid)), attributes);
            self.mode(|mode| fchmod(&dir, mode), attributes)
                .map_err(failed)?;
            futimens(&dir, &times(attributes)).map_err(failed)?;
        }
        Ok(self.left_out)
    }

    /// An owner that does not exist here, or that this user may not give files to, is not an error.
    fn owner(&self, chown: impl Fn(Uid, Gid) -> Result<(), Errno>, attributes: Attributes) {
        if self.ownership == Ownership::Keep {
            let _ = chown(Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        }
    }

    fn mode(
        &self,
        chmod: impl Fn(Mode) -> Result<(), Errno>,
        attributes: Attributes,
    ) -> Result<(), Errno> {
        let of = |bits| Mode::from_raw_mode(attributes.mode & bits);
        match self.ownership {
            Ownership::Caller { umask } => chmod(of(0o777 & !umask)),
            // In a workspace no file may gain such bits from inside.
            Ownership::Keep => match chmod(of(0o7777)) {
                Err(Errno::PERM) => chmod(of(0o777)),
                done => done,
            },
        }
    }
}

/// Whether a link leads nowhere but below the base. `..` may only come first: after another name, which may be a link, it
/// leads to a place that the text does not tell.
fn stays_below(name: &Name, base: Option<&Base>, target: &[u8]) -> bool {
    if target.first() == Some(&b'/') || target.is_empty() {
        return false;
    }
    let parts = target
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<&[u8]> = parts.collect();
    let up = parts.iter().take_while(|part| **part == b"..").count();
    let first_only = !parts.iter().skip(up).any(|part| *part == b"..");
    // The directories between what was copied and the link.
    let depth = match base {
        Some(Base::Named(_)) => name.depth().checked_sub(2),
        Some(Base::Contents) | None => name.depth().checked_sub(1),
    };
    first_only && depth.is_some_and(|depth| up <= depth)
}

fn times(attributes: Attributes) -> Timestamps {
    let time = Timespec {
        tv_sec: attributes.mtime,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

#[cfg(test)]
mod tests;

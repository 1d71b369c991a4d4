//! A manifest's files as a tar archive: streamed, in the manifest's order, in constant memory.
//!
//! Files may change while they are read. One that grows or shrinks keeps the length that it had when it was opened,
//! one that is gone is left out, both with a warning; one that has become something else than the manifest says is an
//! error, and is not followed or waited for.

mod format;

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, Write};
use std::path::Path;

use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use super::manifest::{Entry, Kind, Manifest, permissions};
use super::tree::Tree;
use crate::process::Cancel;
use crate::{Code, Failure};
use format::{Member, Tar};

const BUFFER: usize = 128 << 10;
/// Trees are packed more often than they are kept: most of the size for a third of the time.
const LEVEL: u32 = 3;
const MOST_WARNINGS: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
}

/// What was packed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveStats {
    pub files: u64,
    pub symlinks: u64,
    /// In the files.
    pub bytes: u64,
    /// Of the archive.
    pub written: u64,
    /// Files that changed or went away meanwhile.
    pub changed: u64,
    /// About the first of those, a line each.
    pub warnings: Vec<String>,
}

/// An archive in a temporary file of mode 0600, which is removed with this value.
#[derive(Debug)]
pub struct Archive {
    file: NamedTempFile,
    pub stats: ArchiveStats,
}

impl Archive {
    /// Packs into a temporary file in `dir`.
    pub fn pack(
        manifest: &Manifest,
        root: &Path,
        dir: &Path,
        compression: Compression,
        cancel: &Cancel,
    ) -> Result<Self, Failure> {
        let suffix = match compression {
            Compression::None => ".tar",
            Compression::Gzip => ".tgz",
        };
        let failed = |error: io::Error| {
            let message = format!("write the sync archive in {}", dir.display());
            Failure::new(Code::Sync, message).because(&error)
        };
        // Made with mode 0600.
        let mut file = tempfile::Builder::new()
            .prefix("crabbox-sync-")
            .suffix(suffix)
            .tempfile_in(dir)
            .map_err(failed)?;
        let cancelable = Cancelable {
            writer: file.as_file_mut(),
            cancel,
        };
        let stats = Self::write(manifest, root, cancelable, compression)?;
        file.as_file_mut().rewind().map_err(failed)?;
        Ok(Self { file, stats })
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file, at its start.
    pub fn open(&self) -> io::Result<File> {
        self.file.reopen()
    }

    /// The archive with one more file at its end, which is empty and of this name: a receiver that has it has all of the
    /// others. Only of an archive that is not compressed.
    pub fn open_with_last(&self, name: &str) -> io::Result<impl io::Read + use<>> {
        let mut end = Vec::new();
        let mut tar = Tar::new(&mut end);
        let member = Member {
            path: name.as_bytes(),
            mode: 0o644,
            modified: 0,
        };
        tar.file(&member, 0)?;
        tar.end()?;
        let without_end = self.stats.written.saturating_sub(format::END);
        Ok(self.open()?.take(without_end).chain(io::Cursor::new(end)))
    }

    /// Packs into any writer.
    pub fn write(
        manifest: &Manifest,
        root: &Path,
        writer: impl Write,
        compression: Compression,
    ) -> Result<ArchiveStats, Failure> {
        let mut counted = Counted { writer, written: 0 };
        let mut stats = match compression {
            Compression::None => {
                let mut buffered = BufWriter::with_capacity(BUFFER, &mut counted);
                let stats = write_tar(manifest, root, &mut buffered)?;
                buffered.flush().map_err(unwritten)?;
                stats
            }
            Compression::Gzip => {
                let level = flate2::Compression::new(LEVEL);
                let mut encoder = GzEncoder::new(&mut counted, level);
                let stats = write_tar(manifest, root, &mut encoder)?;
                encoder.finish().map_err(unwritten)?;
                stats
            }
        };
        counted.flush().map_err(unwritten)?;
        stats.written = counted.written;
        Ok(stats)
    }
}

fn write_tar(manifest: &Manifest, root: &Path, out: impl Write) -> Result<ArchiveStats, Failure> {
    let mut tree = Tree::open(root).map_err(|error| {
        let message = format!("read {} for the sync archive", root.display());
        Failure::new(Code::Sync, message).because(&error)
    })?;
    let mut packer = Packer {
        tar: Tar::new(out),
        buffer: vec![0; BUFFER],
        stats: ArchiveStats::default(),
    };
    for entry in &manifest.entries {
        match entry.kind {
            Kind::File => packer.file(entry, &mut tree)?,
            Kind::Symlink => packer.symlink(entry, &mut tree)?,
        }
    }
    packer.tar.end().map_err(unwritten)?;
    Ok(packer.stats)
}

struct Packer<W> {
    tar: Tar<W>,
    buffer: Vec<u8>,
    stats: ArchiveStats,
}

impl<W: Write> Packer<W> {
    fn file(&mut self, entry: &Entry, tree: &mut Tree) -> Result<(), Failure> {
        let file = tree.file(&entry.path).map_err(|e| unread(entry, &e))?;
        let Some(mut file) = file else {
            self.warn(entry, "is gone and was left out");
            return Ok(());
        };
        let now = rustix::fs::fstat(&file).map_err(|e| unread(entry, &e))?;
        if rustix::fs::FileType::from_raw_mode(now.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(unread(entry, &io::Error::other(NOT_A_FILE)));
        }
        let size = u64::try_from(now.st_size).unwrap_or(0);
        let member = Member {
            path: entry.path.as_bytes(),
            mode: permissions(now.st_mode),
            modified: now.st_mtime,
        };
        self.tar.file(&member, size).map_err(unwritten)?;
        let read = self.contents(entry, &mut file, size)?;
        if read < size {
            self.tar.zeros(size - read).map_err(unwritten)?;
            self.warn(entry, "shrank while it was read and was filled with zeros");
        } else if file.read(&mut [0]).map_err(|e| unread(entry, &e))? > 0 {
            self.warn(entry, "grew while it was read and was cut");
        }
        self.tar.pad(size).map_err(unwritten)?;
        self.stats.files += 1;
        self.stats.bytes = self.stats.bytes.saturating_add(size);
        Ok(())
    }

    /// Copies up to `size` bytes, and says how many there were.
    fn contents(&mut self, entry: &Entry, file: &mut File, size: u64) -> Result<u64, Failure> {
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            let space = self.buffer.get_mut(..most).unwrap_or_default();
            let read = match file.read(space) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unread(entry, &error)),
            };
            let bytes = space.get(..read).unwrap_or_default();
            self.tar.data(bytes).map_err(unwritten)?;
            left = left.saturating_sub(read as u64);
        }
        Ok(size - left)
    }

    fn symlink(&mut self, entry: &Entry, tree: &mut Tree) -> Result<(), Failure> {
        let target = tree.link(&entry.path).map_err(|e| unread(entry, &e))?;
        let Some(target) = target else {
            self.warn(entry, "is gone and was left out");
            return Ok(());
        };
        let member = Member {
            path: entry.path.as_bytes(),
            mode: 0o777,
            modified: entry.modified.0,
        };
        self.tar.symlink(&member, &target).map_err(unwritten)?;
        self.stats.symlinks += 1;
        Ok(())
    }

    fn warn(&mut self, entry: &Entry, what: &str) {
        self.stats.changed += 1;
        if self.stats.warnings.len() < MOST_WARNINGS {
            let line = format!("warning: {} {what}", entry.path);
            self.stats.warnings.push(line);
        }
    }
}

const NOT_A_FILE: &str = "it is no longer a regular file";

fn unread(entry: &Entry, error: &dyn std::error::Error) -> Failure {
    let message = format!("read {} for the sync archive", entry.path);
    Failure::new(Code::Sync, message).because(error)
}

fn unwritten(error: io::Error) -> Failure {
    Failure::new(Code::Sync, "write the sync archive").because(&error)
}

/// A large tree takes minutes to pack: between two writes is the place to stop.
struct Cancelable<'a, W> {
    writer: W,
    cancel: &'a Cancel,
}

impl<W: Write> Write for Cancelable<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.cancel.reason() {
            Some(reason) => Err(io::Error::other(reason.to_string())),
            None => self.writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

struct Counted<W> {
    writer: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes)?;
        self.written = self.written.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

//! A file that is appended to, and the older ones that it was before.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file of this size is rotated.
pub(super) const FULL: u64 = 8 << 20;
/// `NAME.jsonl`, `NAME.jsonl.1`, ...
pub(super) const KEPT: u32 = 5;

#[derive(Debug)]
pub(super) struct Ring {
    path: PathBuf,
    open: Option<(File, u64)>,
    /// Lines that could not be written.
    pub(super) unwritten: Vec<u8>,
}

impl Ring {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            open: None,
            unwritten: Vec::new(),
        }
    }

    /// Whether everything is in a file that is there.
    pub(super) fn is_ready(&self) -> bool {
        self.unwritten.is_empty() && self.open.as_ref().is_some_and(is_there)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let (mut file, size) = match self.open.take() {
            Some(open) if !is_there(&open) => self.open()?,
            Some((_, FULL..)) => {
                self.rotate()?;
                self.open()?
            }
            Some(open) => open,
            None => self.open()?,
        };
        // Appended in one piece; a part of a line is taken back before it is tried again.
        if let Err(error) = file.write_all(&self.unwritten) {
            file.set_len(size)?;
            return Err(error);
        }
        let size = size + self.unwritten.len() as u64;
        self.unwritten = Vec::new();
        self.open = Some((file, size));
        Ok(())
    }

    fn open(&self) -> io::Result<(File, u64)> {
        // Not further up: in a state directory that was removed nothing begins anew.
        let missing = self.path.ancestors().skip(1).take(2);
        for dir in missing.collect::<Vec<_>>().into_iter().rev() {
            match fs::DirBuilder::new().mode(0o700).create(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        let size = file.metadata()?.len();
        Ok((file, size))
    }

    fn rotate(&self) -> io::Result<()> {
        for pair in generations(&self.path).windows(2) {
            let [older, newer] = pair else { continue };
            match fs::rename(newer, older) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The file and those that it was, oldest first.
pub(super) fn generations(path: &Path) -> Vec<PathBuf> {
    let older = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let mut files: Vec<_> = (1..KEPT).rev().map(older).collect();
    files.push(path.to_owned());
    files
}

/// It may have been removed: then its lines would be lost.
fn is_there((file, _): &(File, u64)) -> bool {
    file.metadata().is_ok_and(|file| file.nlink() > 0)
}

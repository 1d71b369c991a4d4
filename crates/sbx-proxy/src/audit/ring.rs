//! A file that is appended to, the older ones that it was before, and one with what those had that are gone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Line;
use super::merge::merge;

/// A file of this size is rotated.
pub(super) const FULL: u64 = 8 << 20;
/// `NAME.jsonl`, `NAME.jsonl.1`, ...; the merged one has the number behind them.
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
        self.merge_oldest()?;
        // What was merged stays where it is.
        for pair in generations(&self.path).split_off(1).windows(2) {
            let [older, newer] = pair else { continue };
            match fs::rename(newer, older) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Takes what the oldest file has into the merged one. After a crash between the two it is there twice, not lost.
    fn merge_oldest(&self) -> io::Result<()> {
        let files = generations(&self.path);
        let [merged, oldest, ..] = files.as_slice() else {
            return Ok(());
        };
        let Some(gone) = read_lines(oldest)? else {
            return Ok(());
        };
        let mut lines = read_lines(merged)?.unwrap_or_default();
        lines.extend(gone);
        let mut text = Vec::new();
        for line in merge(lines) {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        let mut new = merged.as_os_str().to_owned();
        new.push(".new");
        let options = || {
            File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .to_owned()
        };
        options().open(&new)?.write_all(&text)?;
        fs::rename(&new, merged)?;
        fs::remove_file(oldest)
    }
}

/// The lines of a file, without damaged ones; `None` where there is no file.
fn read_lines(path: &Path) -> io::Result<Option<Vec<Line>>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let lines = text.split(|byte| *byte == b'\n');
    let read = lines.filter_map(|line| serde_json::from_slice(line).ok());
    Ok(Some(read.collect()))
}

/// The file and those that it was, oldest first; before them the merged one.
pub(super) fn generations(path: &Path) -> Vec<PathBuf> {
    let older = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let mut files: Vec<_> = (1..=KEPT).rev().map(older).collect();
    files.push(path.to_owned());
    files
}

/// It may have been removed: then its lines would be lost.
fn is_there((file, _): &(File, u64)) -> bool {
    file.metadata().is_ok_and(|file| file.nlink() > 0)
}

//! The file behind the daemon's log. It has a limit, because what goes on in sandboxes adds to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// What it may hold before it begins anew. As much again is kept of what was before.
const LIMIT: u64 = 8 << 20;

#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    path: PathBuf,
    older: PathBuf,
    limit: u64,
}

impl LogFile {
    pub(crate) fn open(path: PathBuf, older: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Self {
            file,
            path,
            older,
            limit: LIMIT,
        })
    }

    /// For code that appends to it directly.
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    pub(crate) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        // Asked, not counted: setup helpers have it as their stderr.
        let meta = self.file.metadata()?;
        if meta.len() >= self.limit {
            // Of a directory that is another daemon's by now nothing is touched.
            let ours = fs::symlink_metadata(&self.path)
                .is_ok_and(|it| (it.dev(), it.ino()) == (meta.dev(), meta.ino()));
            if ours {
                self.put_aside()?;
            }
            // In place, for processes that have it open.
            self.file.set_len(0)?;
        }
        self.file.write_all(line)
    }

    fn put_aside(&mut self) -> io::Result<()> {
        match fs::remove_file(&self.older) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut older = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.older)?;
        self.file.seek(SeekFrom::Start(0))?;
        io::copy(&mut self.file, &mut older).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &std::path::Path) -> LogFile {
        let mut log = LogFile::open(dir.join("log"), dir.join("older")).unwrap();
        log.limit = 10;
        log
    }

    #[test]
    fn it_begins_anew_and_keeps_what_was_before() {
        let temp = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(temp.path().join(name)).unwrap();
        let mut log = log(temp.path());
        log.append(b"one two\n").unwrap();
        log.append(b"three\n").unwrap();
        assert_eq!(read("log"), "one two\nthree\n");
        log.append(b"four\n").unwrap();
        assert_eq!(
            (read("log"), read("older")),
            ("four\n".into(), "one two\nthree\n".into())
        );
        log.handle().unwrap().write_all(b"by another\n").unwrap();
        log.append(b"five\n").unwrap();
        assert_eq!(
            (read("log"), read("older")),
            ("five\n".into(), "four\nby another\n".into())
        );
        let mode = |name: &str| fs::metadata(temp.path().join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("log"), mode("older")), (0o600, 0o600));
    }

    #[test]
    fn nothing_is_made_where_another_file_lies_by_now() {
        let temp = tempfile::tempdir().unwrap();
        let mut log = log(temp.path());
        log.append(b"more than the limit\n").unwrap();
        fs::remove_file(temp.path().join("log")).unwrap();
        let mut other = File::create(temp.path().join("log")).unwrap();
        other.write_all(b"another's").unwrap();
        log.append(b"line\n").unwrap();
        assert!(!temp.path().join("older").exists());
        assert_eq!(fs::read(temp.path().join("log")).unwrap(), b"another's");
    }
}

//! `--status-file`: who ended a command, told apart for programs that start us.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{PROC_SUPER_MAGIC, statfs};
use serde_json::json;

use crate::failure::Failure;

/// Who decided the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By<'a> {
    Command,
    /// With what it says on stderr, which is the command's as well.
    Engine(&'a str),
}

/// A file that appears with its whole content when the command has ended; what was there under its name is replaced.
///
/// What the caller has open already (`/dev/fd/3`) and devices are written to instead.
#[derive(Debug)]
pub(crate) struct StatusFile {
    path: PathBuf,
    file: File,
    /// What is renamed to the path.
    temporary: Option<Temporary>,
}

/// Removed if it still is there at the end.
#[derive(Debug)]
struct Temporary(PathBuf);

impl StatusFile {
    /// Fails before anything runs when the place cannot be written to.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        Self::open(path).map_err(|error| failed(path, &error))
    }

    fn open(path: &Path) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.write(true);
        let (file, temporary) = if is_written_through(path)? {
            (how.truncate(true).open(path)?, None)
        } else {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let mut temporary = std::ffi::OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}.tmp", std::process::id()));
            let temporary = path.with_file_name(temporary);
            let file = how.create_new(true).open(&temporary)?;
            (file, Some(Temporary(temporary)))
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            temporary,
        })
    }

    pub(crate) fn write(self, by: By<'_>, code: u8) -> Result<(), Failure> {
        let status = match by {
            By::Command => json!({"by": "command", "code": code}),
            By::Engine(message) => json!({"by": "engine", "code": code, "message": message}),
        };
        let line = format!("{status}\n");
        let written = (&self.file).write_all(line.as_bytes());
        let appeared = written.and_then(|()| match self.temporary {
            Some(temporary) => temporary.become_file(&self.path),
            None => Ok(()),
        });
        appeared.map_err(|error| failed(&self.path, &error))
    }
}

/// Any other link is replaced as a file is: in a workspace it may come from a sandbox, and lead anywhere.
fn is_written_through(path: &Path) -> io::Result<bool> {
    let kind = match path.symlink_metadata() {
        Ok(meta) => meta.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if kind.is_symlink() {
        return Ok(path.parent().is_some_and(leads_to_descriptors));
    }
    if kind.is_file() || kind.is_char_device() {
        return Ok(kind.is_char_device());
    }
    Err(io::Error::other("it is neither a file nor a device"))
}

/// `/proc/PID/fd` by whatever name, and `/dev` with its `stdout`.
fn leads_to_descriptors(dir: &Path) -> bool {
    dir == Path::new("/dev") || statfs(dir).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC)
}

impl Temporary {
    fn become_file(mut self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.0, path)?;
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            drop(std::fs::remove_file(&self.0));
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "cannot write status file `{}`: {error}",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_appears_whole_and_nothing_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let status = StatusFile::prepare(&path).unwrap();
        assert!(!path.exists());
        status.write(By::Command, 7).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"by\":\"command\",\"code\":7}\n");
        drop(StatusFile::prepare(&path).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(StatusFile::prepare(&dir.path().join("missing/status")).is_err());
    }

    #[test]
    fn a_planted_link_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, path) = (dir.path().join("precious"), dir.path().join("status"));
        let mut file = File::create(&precious).unwrap();
        file.write_all(b"mine").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let status = StatusFile::prepare(&path).unwrap();
        status.write(By::Command, 0).unwrap();
        assert_eq!(std::fs::read(&precious).unwrap(), b"mine");
        assert!(!path.is_symlink() && path.is_file());
    }

    #[test]
    fn a_device_stays_one_and_a_directory_is_refused() {
        let status = StatusFile::prepare(Path::new("/dev/null")).unwrap();
        assert!(status.temporary.is_none());
        status.write(By::Command, 0).unwrap();
        let null = Path::new("/dev/null").symlink_metadata().unwrap();
        assert!(null.file_type().is_char_device());
        assert!(StatusFile::prepare(tempfile::tempdir().unwrap().path()).is_err());
    }

    #[test]
    fn what_the_caller_has_open_is_written_to() {
        use std::os::fd::AsRawFd;

        let mut file = tempfile::tempfile().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let status = StatusFile::prepare(&path).unwrap();
        status.write(By::Engine("no \"room\""), 125).unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert_eq!(
            text,
            r#"{"by":"engine","code":125,"message":"no \"room\""}"#.to_owned() + "\n"
        );
    }
}

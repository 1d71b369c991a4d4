//! `--status-file`: who ended a command, told apart for programs that start us.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, PROC_SUPER_MAGIC, statfs};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
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
/// It may lie in a workspace, so that programs inside can do what they like with names beside it: the file has none
/// while they run, its directory is held open, and what has appeared in the end is compared with what was written.
///
/// What the caller has open already (`/dev/fd/3`) and devices are written to instead.
#[derive(Debug)]
pub(crate) struct StatusFile {
    path: PathBuf,
    file: File,
    /// The directory and name under which it appears; `None` where it is written to directly.
    destination: Option<Destination>,
}

#[derive(Debug)]
struct Destination {
    dir: OwnedFd,
    name: OsString,
    /// What is renamed to it, where the file system has no files without a name.
    temporary: Option<OsString>,
}

impl StatusFile {
    /// Fails before anything runs when the file cannot be created.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        Self::open(path).map_err(|error| failed(path, &error))
    }

    fn open(path: &Path) -> io::Result<Self> {
        if is_written_through(path)? {
            let mut how = OpenOptions::new();
            return Ok(Self {
                path: path.to_owned(),
                file: how.write(true).truncate(true).open(path)?,
                destination: None,
            });
        }
        let (file, destination) = Destination::open(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            destination: Some(destination),
        })
    }

    /// `denied`: whether the sandbox was denied anything meanwhile, where that is known.
    pub(crate) fn write(self, by: By<'_>, code: u8, denied: Option<bool>) -> Result<(), Failure> {
        let mut status = match by {
            By::Command => json!({"by": "command", "code": code}),
            By::Engine(message) => json!({"by": "engine", "code": code, "message": message}),
        };
        if let (Some(denied), Some(fields)) = (denied, status.as_object_mut()) {
            fields.insert("denied".to_owned(), denied.into());
        }
        let line = format!("{status}\n");
        let written = (&self.file).write_all(line.as_bytes());
        let appeared = written.and_then(|()| match self.destination {
            Some(destination) => destination.show(&self.file),
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

impl Destination {
    fn open(path: &Path) -> io::Result<(File, Self)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut destination = Self {
            dir: rustix::fs::open(dir, flags, Mode::empty())?,
            name: name.to_owned(),
            temporary: None,
        };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let file = match rustix::fs::openat(&destination.dir, ".", flags | OFlags::TMPFILE, mode) {
            // What file systems without them say, and kernels.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let temporary = destination.temporary_name()?;
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                let file = rustix::fs::openat(&destination.dir, &temporary, flags, mode)?;
                destination.temporary = Some(temporary);
                file
            }
            other => other?,
        };
        Ok((file.into(), destination))
    }

    /// A name that no other process can predict.
    fn temporary_name(&self) -> io::Result<OsString> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(format!(".{:016x}.tmp", u64::from_ne_bytes(random)));
        Ok(name)
    }

    fn show(mut self, file: &File) -> io::Result<()> {
        let temporary = match &self.temporary {
            Some(temporary) => temporary.clone(),
            None => {
                let temporary = self.temporary_name()?;
                let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(CWD, nameless, &self.dir, &temporary, follow)?;
                self.temporary = Some(temporary.clone());
                temporary
            }
        };
        rustix::fs::renameat(&self.dir, &temporary, &self.dir, &self.name)?;
        self.temporary = None;
        let shown = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        let written = rustix::fs::fstat(file)?;
        if (shown.st_dev, shown.st_ino) == (written.st_dev, written.st_ino) {
            Ok(())
        } else {
            Err(io::Error::other(
                "another process replaced it with another file",
            ))
        }
    }
}

/// Removes a temporary name that was not renamed to the final one.
impl Drop for Destination {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlinkat(&self.dir, temporary, AtFlags::empty());
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
        status.write(By::Command, 7, Some(false)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"by\":\"command\",\"code\":7,\"denied\":false}\n");
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
        status.write(By::Command, 0, None).unwrap();
        assert_eq!(std::fs::read(&precious).unwrap(), b"mine");
        assert!(!path.is_symlink() && path.is_file());
    }

    #[test]
    fn a_file_in_its_place_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let mut status = StatusFile::prepare(&path).unwrap();
        let destination = status.destination.as_mut().unwrap();
        // As where O_TMPFILE is not supported: another process has found the temporary name.
        let forged = OsString::from(".forged");
        drop(File::create(dir.path().join(&forged)).unwrap());
        destination.temporary = Some(forged);
        let error = status.write(By::Command, 0, None).unwrap_err();
        assert!(error.message.contains("another file"), "{}", error.message);
    }

    #[test]
    fn a_device_stays_one_and_a_directory_is_refused() {
        let status = StatusFile::prepare(Path::new("/dev/null")).unwrap();
        assert!(status.destination.is_none());
        status.write(By::Command, 0, None).unwrap();
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
        status.write(By::Engine("no \"room\""), 125, None).unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert_eq!(
            text,
            r#"{"by":"engine","code":125,"message":"no \"room\""}"#.to_owned() + "\n"
        );
    }
}

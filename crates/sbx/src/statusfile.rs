//! `--status-file`: who ended a command, told apart for programs that start us.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::failure::Failure;

/// Who decided the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Command,
    Engine,
}

/// A file that appears with its whole content when the command has ended.
#[derive(Debug)]
pub(crate) struct StatusFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl StatusFile {
    /// Fails before anything runs when the place cannot be written to.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!(
                "cannot write status file `{}`: {error}",
                path.display()
            ))
        };
        let name = path
            .file_name()
            .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(temporary);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            temporary,
            file,
        })
    }

    pub(crate) fn write(mut self, by: By, code: u8) -> Result<(), Failure> {
        let by = match by {
            By::Command => "command",
            By::Engine => "engine",
        };
        let line = format!("{}\n", json!({"by": by, "code": code}));
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| std::fs::rename(&self.temporary, &self.path))
            .map_err(|error| {
                Failure::failed(format!(
                    "cannot write status file `{}`: {error}",
                    self.path.display()
                ))
            })
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        // Gone already when it was renamed.
        drop(std::fs::remove_file(&self.temporary));
    }
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
}

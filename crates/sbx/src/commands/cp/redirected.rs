//! This process's own streams as pipes, while the other end of a copy runs.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::io::Errno;
use sbx_proto::tool::ERROR;

use super::pipe;
use crate::failure::{Failure, engine};
use crate::text;

/// A longer line is cut: who writes it is not trusted.
const MAX_LINE: usize = 4096;

/// What the other end said that is not for the user as it is.
#[derive(Debug, Default)]
pub(super) struct PeerError {
    pub(super) error: Option<String>,
}

/// This end of the stream, and what is to be undone.
pub(super) struct Redirected {
    pub(super) stream: OwnedFd,
    /// The caller's own.
    pub(super) stderr: OwnedFd,
    pub(super) restored: Saved,
}

/// The caller's streams.
pub(super) struct Saved {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: OwnedFd,
    listener: JoinHandle<PeerError>,
}

impl Redirected {
    /// What is written to the stream is this process's stdin.
    pub(super) fn stdin() -> Result<Self, Failure> {
        let (read, write) = pipe()?;
        let mut restored = Self::stderr()?;
        restored.stdin = Some(copy(rustix::stdio::stdin())?);
        rustix::stdio::dup2_stdin(&read).map_err(failed)?;
        Self::with(write, restored)
    }

    /// What is written to this process's stdout is in the stream.
    pub(super) fn stdout() -> Result<Self, Failure> {
        let (read, write) = pipe()?;
        let mut restored = Self::stderr()?;
        restored.stdout = Some(copy(rustix::stdio::stdout())?);
        rustix::stdio::dup2_stdout(&write).map_err(failed)?;
        Self::with(read, restored)
    }

    /// What is written to this process's stderr is shown line by line, fit for a terminal.
    pub(super) fn stderr() -> Result<Saved, Failure> {
        let (read, write) = pipe()?;
        let stderr = copy(rustix::stdio::stderr())?;
        let shown = File::from(copy(&stderr)?);
        let listener = std::thread::spawn(move || listen(File::from(read), shown));
        rustix::stdio::dup2_stderr(&write).map_err(failed)?;
        Ok(Saved {
            stdin: None,
            stdout: None,
            stderr,
            listener,
        })
    }

    fn with(stream: OwnedFd, restored: Saved) -> Result<Self, Failure> {
        Ok(Self {
            stream,
            stderr: copy(&restored.stderr)?,
            restored,
        })
    }
}

impl Saved {
    /// The caller's streams are this process's again; with that the pipes end.
    pub(super) fn restore(self) -> PeerError {
        // Errors: a stream that cannot be put back shows itself when it is used.
        if let Some(stdin) = &self.stdin {
            let _ = rustix::stdio::dup2_stdin(stdin);
        }
        if let Some(stdout) = &self.stdout {
            let _ = rustix::stdio::dup2_stdout(stdout);
        }
        let _ = rustix::stdio::dup2_stderr(&self.stderr);
        self.listener.join().unwrap_or_default()
    }
}

fn listen(from: File, mut to: File) -> PeerError {
    let mut said = PeerError::default();
    let mut lines = BufReader::new(from);
    loop {
        let mut line = Vec::new();
        let mut part = std::io::Read::take(&mut lines, MAX_LINE as u64);
        match part.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return said,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line);
        let line = text::one_line(line.trim_end_matches('\n'));
        match line.strip_prefix(ERROR) {
            Some(error) => said.error = Some(error.to_owned()),
            // The caller's stderr may be closed.
            None => drop(to.write_all(format!("{line}\n").as_bytes())),
        }
    }
}

fn copy(fd: impl AsFd) -> Result<OwnedFd, Failure> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(failed)
}

fn failed(errno: Errno) -> Failure {
    engine("cannot redirect a stream")(errno.into())
}

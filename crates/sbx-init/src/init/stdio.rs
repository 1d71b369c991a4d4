//! What a command's stdin, stdout and stderr are connected to, and the log of those that are detached.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode as FileMode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};
use rustix::termios::Winsize;
use sbx_proto::exec::Stdio as WantedStdio;
use sbx_proto::inside::{AGENT, TTY_GROUP};
use sbx_proto::plan::Mode;

use super::Init;
use super::streams::Streams;
use crate::spawn::{Failure, Stdio};

/// A pipe, or the terminal, of a detached command.
pub(super) struct Output {
    pub(super) id: u64,
    pub(super) kind: &'static str,
    pub(super) pipe: OwnedFd,
}

/// What a command's streams are connected to.
pub(super) struct Ends {
    pub(super) stdio: Stdio,
    /// Of a terminal that a client holds or may leave.
    pub(super) master: Option<OwnedFd>,
    /// Init's side, when the streams are frames of the client's connection.
    pub(super) streams: Option<Streams>,
}

impl Ends {
    fn of(stdio: Stdio) -> Self {
        Self {
            stdio,
            master: None,
            streams: None,
        }
    }
}

impl Init<'_> {
    /// What a command's streams are connected to.
    pub(super) fn stdio(
        &mut self,
        id: u64,
        wanted: &WantedStdio,
        fds: Vec<OwnedFd>,
    ) -> Result<Ends, Failure> {
        let no_pipe = |error: Errno| Failure::engine("make a pipe", error);
        match *wanted {
            WantedStdio::Pipes => {
                let stdio = <[OwnedFd; 3]>::try_from(fds).map_err(|_| {
                    Failure::bad_request("three descriptors must come with the request".into())
                })?;
                Ok(Ends::of(stdio))
            }
            WantedStdio::Tty { rows, cols } => self.tty(rows, cols).map_err(no_terminal),
            WantedStdio::FramedTty { rows, cols } => {
                let framed = || {
                    let mut ends = self.tty(rows, cols)?;
                    let master = ends.master.as_ref();
                    ends.streams = master.map(Streams::terminal).transpose()?;
                    Ok(ends)
                };
                framed().map_err(no_terminal)
            }
            WantedStdio::Framed { stdin, stderr } => {
                let (streams, stdio) = Streams::pipes(stdin, stderr).map_err(no_pipe)?;
                Ok(Ends {
                    streams: Some(streams),
                    ..Ends::of(stdio)
                })
            }
            WantedStdio::Log => {
                let input = no_input().map_err(no_pipe)?;
                let (out, out_end) = pipe_to_us().map_err(no_pipe)?;
                let (err, err_end) = pipe_to_us().map_err(no_pipe)?;
                // The last one is read first, and what was written to both most likely began with the output.
                for (kind, pipe) in [("err", err), ("out", out)] {
                    self.outputs.push(Output { id, kind, pipe });
                }
                Ok(Ends::of([input, out_end, err_end]))
            }
            WantedStdio::LogTty { rows, cols } => {
                let mut ends = self.tty(rows, cols).map_err(no_terminal)?;
                let kind = "out";
                let master = ends.master.take();
                self.outputs
                    .extend(master.map(|pipe| Output { id, kind, pipe }));
                Ok(ends)
            }
        }
    }

    fn tty(&self, rows: u16, cols: u16) -> Result<Ends, Errno> {
        let (master, slave) = self.terminal(rows, cols)?;
        let copy = || rustix::io::fcntl_dupfd_cloexec(&slave, 3);
        let stdio = [copy()?, copy()?, slave];
        Ok(Ends {
            master: Some(master),
            ..Ends::of(stdio)
        })
    }

    /// Made in init's own view of `/dev/pts`: what is mounted there inside does not matter.
    pub(super) fn terminal(&self, rows: u16, cols: u16) -> Result<(OwnedFd, OwnedFd), Errno> {
        // Non-blocking, because init reads it when its client has left, and inside can flush what was to be read.
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let master = rustix::fs::openat(&self.ptys, "ptmx", flags, FileMode::empty())?;
        rustix::pty::unlockpt(&master)?;
        let open = rustix::pty::OpenptFlags::RDWR
            | rustix::pty::OpenptFlags::NOCTTY
            | rustix::pty::OpenptFlags::CLOEXEC;
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, open)?;
        if self.surroundings.mode != Mode::Single {
            let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(TTY_GROUP));
            rustix::fs::fchown(&slave, Some(uid), Some(gid))?;
        }
        rustix::termios::tcsetwinsize(&master, winsize(rows, cols))?;
        Ok((master, slave))
    }

    pub(super) fn copy_output(&mut self, index: usize) {
        let Some(output) = self.outputs.get(index) else {
            return;
        };
        let mut buffer = [0; 32 << 10];
        match rustix::io::read(&output.pipe, &mut buffer) {
            // The process at the other end can take back what was there a moment ago.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => {
                self.outputs.remove(index);
            }
            Ok(count) => {
                let (id, kind) = (output.id, output.kind);
                self.log
                    .write(id, kind, buffer.get(..count).unwrap_or_default());
            }
        }
    }
}

/// The inodes of those that are pipes.
pub(super) fn pipes_of(stdio: &Stdio) -> Vec<u64> {
    let stats = stdio.iter().filter_map(|fd| rustix::fs::fstat(fd).ok());
    stats
        .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
        .map(|stat| stat.st_ino)
        .collect()
}

fn no_terminal(error: Errno) -> Failure {
    Failure::engine("make a terminal", error)
}

/// A copy of the command's terminal. It is init's alone: a spare process closes all that it has of init's, and the
/// copy is closed on exec.
pub(super) fn terminal_of(
    wanted: &WantedStdio,
    [input, ..]: &Stdio,
) -> Result<Option<OwnedFd>, Failure> {
    match wanted {
        WantedStdio::Tty { .. } | WantedStdio::LogTty { .. } | WantedStdio::FramedTty { .. } => {
            let copy = input.try_clone();
            copy.map(Some)
                .map_err(|e| Failure::engine("make a terminal", e))
        }
        WantedStdio::Pipes | WantedStdio::Framed { .. } | WantedStdio::Log => Ok(None),
    }
}

/// A pipe from a command to init: where init reads, and where the command writes.
///
/// The writer of a pipe can open it for reading (`/proc/self/fd`), and take the bytes back that init was woken for: init
/// must not block in `read`. The mode is that of its own end alone.
pub(super) fn pipe_to_us() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// A stdin that is at its end.
pub(super) fn no_input() -> Result<OwnedFd, Errno> {
    let (input, _) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(input)
}

pub(super) fn winsize(rows: u16, cols: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn init_does_not_wait_for_bytes_that_were_taken_back_and_the_command_may_wait() {
        let (ours, theirs) = pipe_to_us().unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        let path = format!("/proc/self/fd/{}", theirs.as_raw_fd());
        let thief = rustix::fs::open(path, OFlags::RDONLY, FileMode::empty()).unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(&thief, &mut byte).unwrap(), 1);
        assert_eq!(rustix::io::read(&ours, &mut byte), Err(Errno::AGAIN));
        let flags = rustix::fs::fcntl_getfl(&theirs).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
    }
}

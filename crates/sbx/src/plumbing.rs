//! Which descriptors a sandbox gets for a command's stdin, stdout and stderr.
//!
//! **Only an anonymous pipe of the caller is handed over, only as stdout or stderr, and only by root.** A process that
//! holds a descriptor can re-open it through `/proc/self/fd`: a file for writing, a directory to walk out of, a
//! terminal to read from. A pipe can be re-opened for reading by its owner, who is the agent inside when the caller is
//! an ordinary user: then what others write to it could be read. Everything else ends in a fresh pipe that we relay.
//!
//! What is handed over is the pipe opened anew, not the caller's descriptor: whether writing to it may wait is a matter
//! of the description behind a descriptor, and the other writers of the pipe share that with the caller.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use crate::relay::{Input, Output};

/// What the caller's stdin is to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    Empty,
    Attached,
}

/// Both sides of a command's standard streams.
#[derive(Debug)]
pub(crate) struct Plumbing {
    /// For the sandbox: stdin, stdout, stderr.
    remote: [End; 3],
    input: Option<Input>,
    outputs: Vec<Output>,
}

#[derive(Debug)]
enum End {
    Own(OwnedFd),
    /// The same pipe as stdout: the caller's two streams are one, and their order matters.
    AsStdout,
}

impl Plumbing {
    pub(crate) fn lay(stdin: Stdin) -> Result<Self, Errno> {
        let shared = Sharing::of_this_process();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        shared.open_to_sandbox(&read, 0o666);
        let input = match stdin {
            Stdin::Empty => None,
            Stdin::Attached => {
                set_nonblocking(&write)?;
                Some(Input::new(rustix::stdio::stdin(), write))
            }
        };
        let mut outputs = Vec::new();
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let first = shared.output(stdout, &mut outputs)?;
        let second = if same_file(stdout, stderr) {
            End::AsStdout
        } else {
            End::Own(shared.output(stderr, &mut outputs)?)
        };
        Ok(Self {
            remote: [End::Own(read), End::Own(first), second],
            input,
            outputs,
        })
    }

    /// The descriptors to send.
    pub(crate) fn remote(&self) -> [BorrowedFd<'_>; 3] {
        let [stdin, stdout, stderr] = &self.remote;
        let stdout = stdout.resolve(rustix::stdio::stdout());
        [
            stdin.resolve(rustix::stdio::stdin()),
            stdout,
            stderr.resolve(stdout),
        ]
    }

    /// The command has its own copies: with ours gone, each pipe ends when the command's side ends.
    pub(crate) fn sent(self) -> (Option<Input>, Vec<Output>) {
        (self.input, self.outputs)
    }
}

impl End {
    fn resolve<'a>(&'a self, stdout: BorrowedFd<'a>) -> BorrowedFd<'a> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::AsStdout => stdout,
        }
    }
}

/// Whether the command's uid differs from ours, so that its `/dev/stdout` needs a wider mode to be re-opened.
#[derive(Debug, Clone, Copy)]
struct Sharing {
    root: bool,
}

impl Sharing {
    fn of_this_process() -> Self {
        Self {
            // In a user namespace root may map to any user, also to the one that programs inside run as.
            root: rustix::process::geteuid().is_root()
                && !sbx_engine::machine::namespace::ids::is_confined(),
        }
    }

    fn open_to_sandbox(self, pipe: impl AsFd, mode: u32) {
        if self.root {
            // Without it `echo >/dev/stdout` fails inside; nothing else does.
            let _ = fchmod(pipe, Mode::from_raw_mode(mode));
        }
    }

    fn output(
        self,
        caller: BorrowedFd<'static>,
        outputs: &mut Vec<Output>,
    ) -> Result<OwnedFd, Errno> {
        let is_pipe = is_anonymous_output_pipe(caller);
        if is_pipe
            && self.keeps_to_writing(caller)
            && let Ok(anew) = open_to_write(caller)
        {
            widen(&anew);
            return Ok(anew);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&read)?;
        self.open_to_sandbox(&write, 0o622);
        outputs.push(if is_pipe {
            Output::from_pipe_to_pipe(read, caller)
        } else {
            Output::from_pipe(read, caller)
        });
        Ok(write)
    }

    /// Whether the sandbox could do nothing with the caller's pipe but write: no id inside is its owner's, and
    /// others may not read it.
    fn keeps_to_writing(self, pipe: BorrowedFd<'_>) -> bool {
        self.open_to_sandbox(pipe, 0o622);
        let closed = |stat: Stat| stat.st_mode & 0o044 == 0;
        self.root && fstat(pipe).is_ok_and(closed)
    }
}

/// The default of `/proc/sys/fs/pipe-max-size`: what a user without CAP_SYS_RESOURCE may ask for.
const WIDE: usize = 1 << 20;

/// A pipe of the usual size runs empty again and again when its writer is only a little slower than its reader, as one
/// behind a filter of system calls is, and each time a process has to be woken. In a wide one the two meet less often.
pub(crate) fn widen(pipe: impl AsFd) {
    widen_to(pipe, WIDE);
}

fn widen_to(pipe: impl AsFd, size: usize) {
    // What its owner has made wider still stays so. Refused to a user who has too many already: then it works as it is.
    if fcntl_getpipe_size(&pipe).is_ok_and(|now| now < size) {
        let _ = fcntl_setpipe_size(&pipe, size);
    }
}

pub(crate) fn set_nonblocking(fd: impl AsFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(&fd)?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
}

/// A pipe without a name whose write end this is, and nothing else.
fn is_anonymous_output_pipe(fd: BorrowedFd<'_>) -> bool {
    let is_fifo = file_type(fd) == Some(FileType::Fifo);
    let write_only = fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::WRONLY);
    is_fifo && write_only && link_of(fd).is_some_and(|link| link.starts_with(b"pipe:["))
}

/// Another description of the same pipe; refused when its reader has gone.
fn open_to_write(pipe: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(place_of(pipe), flags | OFlags::NONBLOCK, Mode::empty())?;
    fcntl_setfl(&opened, flags)?;
    Ok(opened)
}

fn place_of(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn link_of(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    rustix::fs::readlink(place_of(fd), Vec::new())
        .ok()
        .map(std::ffi::CString::into_bytes)
}

pub(crate) fn file_type(fd: BorrowedFd<'_>) -> Option<FileType> {
    fstat(fd)
        .ok()
        .map(|stat| FileType::from_raw_mode(stat.st_mode))
}

pub(crate) fn same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
    match (fstat(one), fstat(other)) {
        (Ok(one), Ok(other)) => identity(one) == identity(other),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pipe_is_made_wider_and_never_narrower() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let size = || fcntl_getpipe_size(&read).unwrap();
        fcntl_setpipe_size(&write, 4096).unwrap();
        widen_to(&write, 16 << 10);
        assert_eq!(size(), 16 << 10);
        widen_to(&write, 8 << 10);
        assert_eq!(size(), 16 << 10);
    }

    #[test]
    fn nothing_but_the_write_end_of_an_anonymous_pipe_is_handed_over() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        assert!(is_anonymous_output_pipe(write.as_fd()));
        assert!(!is_anonymous_output_pipe(read.as_fd()));

        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("pipe:[1]")).unwrap();
        assert!(!is_anonymous_output_pipe(file.as_fd()));
        let directory = std::fs::File::open(dir.path()).unwrap();
        assert!(!is_anonymous_output_pipe(directory.as_fd()));
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(!is_anonymous_output_pipe(socket.as_fd()));
        let null = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/null")
            .unwrap();
        assert!(!is_anonymous_output_pipe(null.as_fd()));

        let named = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &named,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let reader =
            rustix::fs::open(&named, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        let writer = std::fs::OpenOptions::new()
            .write(true)
            .open(&named)
            .unwrap();
        assert!(!is_anonymous_output_pipe(writer.as_fd()));
        drop(reader);

        let both = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&write)
            ))
            .unwrap();
        assert!(!is_anonymous_output_pipe(both.as_fd()));
    }
}

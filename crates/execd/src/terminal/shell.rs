//! The process of a session.
//!
//! A shell on a terminal must lead a session (`setsid`) and have the terminal as its controlling one. Both happen between
//! fork and execve, where only async-signal-safe code may run. So this program executes itself first, as
//! `execd --terminal-child`: there, ordinary code calls `setsid`, opens the terminal, which becomes the controlling one of a
//! session leader (`tty_ioctl(4)`, TIOCSCTTY), and executes the shell.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use execd_proto::command::Program;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};

use super::Terminal;
use super::history::History;
use crate::output::{self, ReaderHandle};
use crate::process::{Group, Invocation, read_env_file, shell};

pub(crate) const TERMINAL_CHILD: &str = "--terminal-child";

/// Messages on their way to the client. When they are full, output waits in the pipe or the terminal, and so does the shell.
const QUEUED_MESSAGES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streams {
    Terminal,
    Pipes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Stdout,
    Stderr,
}

pub(crate) type Messages = mpsc::Receiver<(Channel, Vec<u8>)>;

#[derive(Debug)]
pub(crate) struct Shell {
    streams: Streams,
    group: Mutex<Option<Group>>,
    feed: Mutex<Feed>,
    exit: watch::Sender<Option<i32>>,
    input: Input,
}

/// What was printed, and the client that gets what comes next.
#[derive(Debug, Default)]
struct Feed {
    history: History,
    client: Option<mpsc::Sender<(Channel, Vec<u8>)>>,
}

#[derive(Debug)]
enum Input {
    Terminal(pipe::Sender),
    Pipe(tokio::sync::Mutex<Option<ChildStdin>>),
}

impl Shell {
    pub(crate) fn start(
        terminal: &Terminal,
        streams: Streams,
        env_file: Option<&std::path::Path>,
    ) -> io::Result<Arc<Self>> {
        let mut invocation = Invocation::script(String::new());
        invocation.cwd.clone_from(&terminal.cwd);
        invocation.envs = read_env_file(env_file);
        let argv = match &terminal.command {
            Some(command) => vec![shell().into(), "-c".into(), command.clone()],
            None => vec![shell().into()],
        };
        match streams {
            Streams::Terminal => Self::on_terminal(invocation, argv),
            Streams::Pipes => Self::on_pipes(invocation, argv),
        }
    }

    fn on_terminal(mut invocation: Invocation, argv: Vec<String>) -> io::Result<Arc<Self>> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&controller)?;
        rustix::pty::unlockpt(&controller)?;
        let name = rustix::pty::ptsname(&controller, Vec::new())?;
        let name = OsString::from_vec(name.into_bytes());
        let name = name
            .into_string()
            .map_err(|_| io::Error::other("invalid terminal name"))?;
        let mut words = vec!["/proc/self/exe".to_owned(), TERMINAL_CHILD.to_owned(), name];
        words.extend(argv);
        invocation.program = Program::Argv(words);
        invocation
            .envs
            .entry("TERM".into())
            .or_insert("xterm-256color".into());
        let mut command = invocation.command()?;
        // `setsid` fails for a process group leader.
        reset_group(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let group = Group::of(&child)?;
        rustix::io::ioctl_fionbio(&controller, true)?;
        // Tokio has no type for terminals. Its pipes read, write and poll a descriptor and do nothing else.
        let stream = pipe::Receiver::from_owned_fd_unchecked(controller.try_clone()?)?;
        let input = Input::Terminal(pipe::Sender::from_owned_fd_unchecked(controller)?);
        let shell = Self::new(Streams::Terminal, group, input);
        let reader = shell.spawn_reader(stream, Channel::Stdout);
        tokio::spawn(Arc::clone(&shell).reap(child, vec![reader]));
        Ok(shell)
    }

    fn on_pipes(mut invocation: Invocation, argv: Vec<String>) -> io::Result<Arc<Self>> {
        invocation.program = Program::Argv(argv);
        let mut child = invocation
            .command()?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let group = Group::of(&child)?;
        let input = Input::Pipe(tokio::sync::Mutex::new(child.stdin.take()));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let shell = Self::new(Streams::Pipes, group, input);
        let mut readers = Vec::new();
        if let Some(pipe) = stdout {
            readers.push(shell.spawn_reader(pipe, Channel::Stdout));
        }
        if let Some(pipe) = stderr {
            readers.push(shell.spawn_reader(pipe, Channel::Stderr));
        }
        tokio::spawn(Arc::clone(&shell).reap(child, readers));
        Ok(shell)
    }

    fn new(streams: Streams, group: Group, input: Input) -> Arc<Self> {
        Arc::new(Self {
            streams,
            group: Mutex::new(Some(group)),
            feed: Mutex::default(),
            exit: watch::channel(None).0,
            input,
        })
    }

    pub(crate) fn streams(&self) -> Streams {
        self.streams
    }

    pub(crate) fn is_running(&self) -> bool {
        self.exit.borrow().is_none()
    }

    pub(crate) fn exit(&self) -> watch::Receiver<Option<i32>> {
        self.exit.subscribe()
    }

    /// The offset behind the last byte of output.
    pub(crate) fn output_offset(&self) -> u64 {
        self.feed().history.end()
    }

    pub(crate) fn has_client(&self) -> bool {
        let feed = self.feed();
        feed.client
            .as_ref()
            .is_some_and(|client| !client.is_closed())
    }

    /// Makes the caller the client: earlier output from `since` on, and the messages that follow it without a gap. The client
    /// before it sees its messages end.
    pub(crate) fn attach(&self, since: u64) -> ((u64, Vec<u8>), Messages) {
        let (sender, messages) = mpsc::channel(QUEUED_MESSAGES);
        let mut feed = self.feed();
        feed.client = Some(sender);
        (feed.history.since(since), messages)
    }

    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(&self, channel: Channel, bytes: &[u8]) {
        let client = {
            let mut feed = self.feed();
            feed.history.push(bytes);
            feed.client.clone()
        };
        if let Some(client) = client {
            // It fails where the client is gone: the history has the bytes.
            let _ = client.send((channel, bytes.to_vec())).await;
        }
    }

    fn spawn_reader<R>(self: &Arc<Self>, stream: R, channel: Channel) -> ReaderHandle
    where
        R: AsyncRead + Unpin + Send + 'static,
    {
        let (mut reader, handle, token) = output::reader(stream);
        let shell = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(bytes) = reader.next().await {
                shell.publish(channel, bytes).await;
            }
            drop((shell, token));
            reader.discard().await;
        });
        handle
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = *group {
            group.signal(signal);
        }
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let Input::Terminal(controller) = &self.input else {
            return Ok(());
        };
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(controller.as_fd(), size)?)
    }

    /// Writes input; none at all ends a pipe's input.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.input {
            Input::Terminal(controller) => write_all(controller, bytes).await,
            Input::Pipe(stdin) => {
                let mut stdin = stdin.lock().await;
                if bytes.is_empty() {
                    *stdin = None;
                }
                match stdin.as_mut() {
                    Some(pipe) => pipe.write_all(bytes).await,
                    None => Ok(()),
                }
            }
        }
    }

    async fn reap(self: Arc<Self>, mut child: Child, readers: Vec<ReaderHandle>) {
        let status = child.wait().await;
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = None;
        for reader in readers {
            reader.finish().await;
        }
        let code = status.map_or(-1, exit_code);
        self.exit.send_replace(Some(code));
    }
}

/// Without `&mut`, which [`AsyncWriteExt::write_all`] takes: resizing needs the descriptor at the same time.
async fn write_all(controller: &pipe::Sender, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        controller.writable().await?;
        match controller.try_write(bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn reset_group(command: &mut Command) {
    // Without a group of its own the child stays in the daemon's until it calls setsid, which makes it a leader.
    *command = {
        let std = command.as_std();
        let mut fresh = Command::new(std.get_program());
        fresh.args(std.get_args());
        for (name, value) in std.get_envs() {
            match value {
                Some(value) => fresh.env(name, value),
                None => fresh.env_remove(name),
            };
        }
        if let Some(directory) = std.get_current_dir() {
            fresh.current_dir(directory);
        }
        fresh
    };
}

/// `execd --terminal-child PTS PROGRAM ARG...`: never returns where it succeeds.
pub(crate) fn become_terminal_child(words: &[OsString]) -> io::Error {
    let [terminal, program, arguments @ ..] = words else {
        return io::Error::other("usage: execd --terminal-child TERMINAL PROGRAM [ARG...]");
    };
    let attach = || {
        rustix::process::setsid()?;
        let terminal = rustix::fs::open(terminal, OFlags::RDWR, Mode::empty())?;
        rustix::stdio::dup2_stdin(&terminal)?;
        rustix::stdio::dup2_stdout(&terminal)?;
        rustix::stdio::dup2_stderr(&terminal)
    };
    match attach() {
        Ok(()) => std::process::Command::new(program).args(arguments).exec(),
        Err(error) => error.into(),
    }
}

//! Starting a child, waiting for its end, and ending it when it may not go on.
//!
//! A child has a process group of its own, unless it needs the terminal. A time limit, too much output or a cancellation
//! sends SIGTERM to the group, and SIGKILL after a grace time. The child is reaped last: as long as it is a zombie, its
//! process id and that of its group cannot belong to anything else.

use std::io::{self, Cursor, IsTerminal, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::cancel::Woken;
use super::pump::{Event, Pump, feed};
use super::{
    Cancel, Captured, End, Heard, Limits, Output, ProcessError, Reason, Stdin, Stream, Streamed,
    Tool,
};

/// How long a killed child may take to be gone: one that is in uninterruptible sleep is left behind.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a child that said enough may take to end by itself.
const OUTPUT_COMPLETE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long output that no reader takes is waited for after a cancellation.
pub(super) const UNREAD_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

impl Tool {
    /// Runs it and takes what it writes. Any end is `Ok`: what an exit code means is the caller's business.
    pub fn capture(mut self, limits: &Limits, cancel: &Cancel) -> Result<Captured, ProcessError> {
        let heard = self.heard.take();
        let full = [Event::new(cancel), Event::new(cancel)];
        let [full_out, full_err] = full.clone();
        let mut running = Running::start(self, Stdio::piped(), Stdio::piped(), cancel)?;
        let from = running.child.stdout.take();
        let stdout = running.pump(from, Capped::new(limits.output, full_out))?;
        let from = running.child.stderr.take();
        let stderr = running.pump(from, Capped::new(limits.output, full_err).told(heard))?;

        running.watch()?;
        let followed = running.follow(limits, || full.iter().any(Event::happened));
        let end = running.settle(followed, || is_done(&stdout) && is_done(&stderr));
        // Too much may also have come from what was left in the pipe.
        for (stream, full) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&full) {
            if full.happened() {
                return Err(ProcessError::TooMuchOutput {
                    what: running.what.clone(),
                    stream,
                    limit: limits.output,
                });
            }
        }
        let end = running.end(end, limits)?;
        Ok(Captured {
            end,
            stdout: running.taken(stdout)?,
            stderr: running.taken(stderr)?,
            what: running.what.clone(),
        })
    }

    /// Runs it and passes on what it writes, in constant memory.
    pub fn stream(
        self,
        stdout: Output,
        stderr: Output,
        limits: &Limits,
        cancel: &Cancel,
    ) -> Result<Streamed, ProcessError> {
        self.stream_until(stdout, stderr, limits, cancel, &OutputComplete::new(cancel))
    }

    /// The same for a child that may go on although everything was heard: it has [`OUTPUT_COMPLETE_TIMEOUT`] to end by itself.
    pub fn stream_until(
        self,
        stdout: Output,
        stderr: Output,
        limits: &Limits,
        cancel: &Cancel,
        enough: &OutputComplete,
    ) -> Result<Streamed, ProcessError> {
        let mut running = Running::start(self, stdout.stdio(), stderr.stdio(), cancel)?;
        let from = running.child.stdout.take();
        let stdout = running.output(from, stdout)?;
        let from = running.child.stderr.take();
        let stderr = running.output(from, stderr)?;
        running.watch()?;
        let followed = running.follow(limits, || enough.is_set());
        let end = running.settle(followed, || is_done(&stdout) && is_done(&stderr));
        let end = running.end(end, limits)?;
        let mut broken = Vec::new();
        for (stream, pump) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
            if let Some(pump) = pump
                && let Err(error) = pump.finish().and_then(|(_, copied)| copied)
            {
                broken.push((stream, error));
            }
        }
        Ok(Streamed { end, broken })
    }
}

impl Output {
    fn stdio(&self) -> Stdio {
        match self {
            Self::Inherit => Stdio::inherit(),
            Self::Null => Stdio::null(),
            Self::To(_) | Self::Pass(_, _) => Stdio::piped(),
        }
    }
}

/// That no more of a child's output is wanted. Clones share it.
#[derive(Debug, Clone)]
pub struct OutputComplete(Event);

impl OutputComplete {
    /// With the cancellation that the child is run with.
    pub fn new(cancel: &Cancel) -> Self {
        Self(Event::new(cancel))
    }

    pub fn set(&self) {
        self.0.happen();
    }

    pub fn is_set(&self) -> bool {
        self.0.happened()
    }
}

/// What a signal goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// The child leads a group of its own, and all of it is ended.
    Own,
    /// The child shares ours, since it reads our terminal: it alone is ended.
    Ours,
}

/// Why a child was not let end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    Canceled(Reason),
    Late,
    /// The caller wants no more.
    OutputComplete,
}

struct Running {
    what: String,
    child: Child,
    pid: Pid,
    group: Group,
    started: Instant,
    exited: Event,
    /// Closed when the child has ended: then pumps stop waiting for more.
    ended: Option<(io::PipeReader, PipeWriter)>,
    cancel: Cancel,
}

impl Running {
    fn start(
        tool: Tool,
        stdout: Stdio,
        stderr: Stdio,
        cancel: &Cancel,
    ) -> Result<Self, ProcessError> {
        let what = tool.label();
        if let Some(reason) = cancel.reason() {
            return Err(ProcessError::Canceled { what, reason });
        }
        let mut command = Command::new(&tool.program);
        command.args(&tool.args).stdout(stdout).stderr(stderr);
        for (name, value) in &tool.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(cwd) = &tool.cwd {
            command.current_dir(cwd);
        }
        let (stdin, input) = split(tool.stdin);
        command.stdin(stdin);
        let group = match &input {
            Input::Terminal => Group::Ours,
            Input::Own | Input::Copied(_) => Group::Own,
        };
        if group == Group::Own {
            command.process_group(0);
        }
        let pipe = io::pipe().map_err(|source| ProcessError::Io {
            what: what.clone(),
            source,
        })?;
        let child = command
            .spawn()
            .map_err(|error| ProcessError::start(&tool.program, tool.cwd.as_deref(), error))?;
        let mut running = Self {
            what,
            pid: Pid::from_child(&child),
            child,
            group,
            started: Instant::now(),
            exited: Event::new(cancel),
            ended: Some(pipe),
            cancel: cancel.clone(),
        };
        if let (Input::Copied(from), Some(to)) = (input, running.child.stdin.take()) {
            feed(from, to).map_err(|source| running.io(source))?;
        }
        Ok(running)
    }

    fn output(
        &mut self,
        from: Option<impl io::Read + AsFd + Send + 'static>,
        output: Output,
    ) -> Result<Option<Pump<Box<dyn Write + Send>>>, ProcessError> {
        match output {
            Output::Inherit | Output::Null => Ok(None),
            Output::To(sink) => self.pump(from, sink),
            Output::Pass(to, listener) => self.carried(from, |from, ended, cancel| {
                Pump::pass(from, ended, to, listener, cancel)
            }),
        }
    }

    fn pump<S: Write + Send + 'static>(
        &mut self,
        from: Option<impl io::Read + AsFd + Send + 'static>,
        sink: S,
    ) -> Result<Option<Pump<S>>, ProcessError> {
        self.carried(from, |from, ended, cancel| {
            Pump::copy(from, ended, sink, cancel)
        })
    }

    fn carried<F, S>(
        &mut self,
        from: Option<F>,
        how: impl FnOnce(F, io::PipeReader, &Cancel) -> io::Result<Pump<S>>,
    ) -> Result<Option<Pump<S>>, ProcessError> {
        let (Some(from), Some((ended, _))) = (from, &self.ended) else {
            return Ok(None);
        };
        ended
            .try_clone()
            .and_then(|ended| how(from, ended, &self.cancel))
            .map(Some)
            .map_err(|source| self.io(source))
    }

    fn watch(&mut self) -> Result<(), ProcessError> {
        let pid = self.pid;
        self.exited
            .after(move || {
                // Not reaped: until it is, its pid cannot become another process's.
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
            })
            .map_err(|source| self.io(source))
    }

    /// Until the child ends, or has to.
    fn follow(&mut self, limits: &Limits, enough: impl Fn() -> bool) -> Option<Stopped> {
        let deadline = limits
            .timeout
            .and_then(|timeout| self.started.checked_add(timeout));
        let stopped = match self
            .cancel
            .wait(deadline, || self.exited.happened() || enough())
        {
            Woken::Done if self.exited.happened() => None,
            Woken::Done => Some(Stopped::OutputComplete),
            Woken::Canceled(reason) => Some(Stopped::Canceled(reason)),
            Woken::Late => Some(Stopped::Late),
        };
        if stopped == Some(Stopped::OutputComplete) {
            let deadline = Instant::now() + OUTPUT_COMPLETE_TIMEOUT;
            self.cancel.wait_anyway(deadline, || self.exited.happened());
        }
        if stopped.is_some() {
            self.stop(limits.grace);
        }
        self.ended = None;
        stopped
    }

    /// SIGTERM, then SIGKILL for what is left of the group.
    fn stop(&self, grace: Duration) {
        if !grace.is_zero() {
            self.signal(Signal::TERM);
            let deadline = Instant::now() + grace;
            self.cancel.wait_anyway(deadline, || {
                self.exited.happened() || self.cancel.is_hurried()
            });
        }
        self.signal(Signal::KILL);
        let deadline = Instant::now() + KILL_TIMEOUT;
        self.cancel.wait_anyway(deadline, || self.exited.happened());
    }

    /// An error means that no process is left.
    fn signal(&self, signal: Signal) {
        let _ = match self.group {
            Group::Own => kill_process_group(self.pid, signal),
            Group::Ours => kill_process(self.pid, signal),
        };
    }

    /// Lets the pumps write what is left. Output that no reader takes delays a canceled run by [`UNREAD_OUTPUT_TIMEOUT`] at
    /// most.
    fn settle(&self, stopped: Option<Stopped>, done: impl Fn() -> bool) -> Option<Stopped> {
        let stopped = match stopped {
            Some(stopped) => stopped,
            None => match self.cancel.wait(None, &done) {
                Woken::Done | Woken::Late => return None,
                Woken::Canceled(reason) => Stopped::Canceled(reason),
            },
        };
        self.cancel
            .wait_anyway(Instant::now() + UNREAD_OUTPUT_TIMEOUT, done);
        Some(stopped)
    }

    fn end(&mut self, stopped: Option<Stopped>, limits: &Limits) -> Result<End, ProcessError> {
        let what = self.what.clone();
        match stopped {
            None | Some(Stopped::OutputComplete) => match self.child.wait() {
                Ok(status) => Ok(End::of(status)),
                Err(source) => Err(ProcessError::Io { what, source }),
            },
            Some(Stopped::Canceled(reason)) => Err(ProcessError::Canceled { what, reason }),
            Some(Stopped::Late) => Err(ProcessError::TimedOut {
                what,
                after: limits.timeout.unwrap_or_default(),
            }),
        }
    }

    fn taken(&self, pump: Option<Pump<Capped>>) -> Result<Vec<u8>, ProcessError> {
        let Some(pump) = pump else {
            return Ok(Vec::new());
        };
        let (sink, copied) = pump.finish().map_err(|source| self.io(source))?;
        copied.map_err(|source| self.io(source))?;
        Ok(sink.bytes)
    }

    fn io(&self, source: io::Error) -> ProcessError {
        ProcessError::Io {
            what: self.what.clone(),
            source,
        }
    }
}

/// No way out leaves a child running or a zombie.
impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_some() {
            self.stop(Duration::ZERO);
        }
        drop(self.child.try_wait());
    }
}

/// Whether nothing is left to do for this stream.
fn is_done<S: Write + Send + 'static>(pump: &Option<Pump<S>>) -> bool {
    pump.as_ref().is_none_or(Pump::is_done)
}

/// How a child's stdin comes to it.
enum Input {
    /// It reads our terminal.
    Terminal,
    /// It has its own descriptor.
    Own,
    Copied(Box<dyn io::Read + Send>),
}

fn split(stdin: Stdin) -> (Stdio, Input) {
    match stdin {
        Stdin::Null => (Stdio::null(), Input::Own),
        Stdin::Inherit if io::stdin().is_terminal() => (Stdio::inherit(), Input::Terminal),
        Stdin::Inherit => (Stdio::inherit(), Input::Own),
        Stdin::File(file) => (file.into(), Input::Own),
        Stdin::Bytes(bytes) => (Stdio::piped(), Input::Copied(Box::new(Cursor::new(bytes)))),
        Stdin::Reader(reader) => (Stdio::piped(), Input::Copied(reader)),
    }
}

/// Takes so much and no more.
struct Capped {
    bytes: Vec<u8>,
    limit: usize,
    full: Event,
    heard: Option<Heard>,
    /// Where the line begins that is not whole yet.
    line: usize,
}

impl Capped {
    fn new(limit: usize, full: Event) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            full,
            heard: None,
            line: 0,
        }
    }

    fn told(self, heard: Option<Heard>) -> Self {
        Self { heard, ..self }
    }

    /// Each line that is whole by now, once.
    fn tell(&mut self) {
        let Some(heard) = &mut self.heard else {
            return;
        };
        while let Some(rest) = self.bytes.get(self.line..)
            && let Some(end) = rest.iter().position(|byte| *byte == b'\n')
        {
            let line = rest.get(..end).unwrap_or_default();
            heard(&String::from_utf8_lossy(line));
            self.line += end + 1;
        }
    }
}

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.full.happen();
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        self.tell();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

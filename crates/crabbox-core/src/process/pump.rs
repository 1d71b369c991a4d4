//! Threads that carry bytes between a child's pipes and our readers and writers.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Cancel;
use super::pass::{Listener, pass};

pub(super) const CHUNK: usize = 64 << 10;
/// After this much the child has a lot to say, and is woken less often with a bigger pipe. Not before, since the
/// kernel counts the pages of all of a user's pipes together.
const LARGE_OUTPUT_BYTES: u64 = 1 << 20;
const LARGE_PIPE_BYTES: usize = 1 << 20;
/// How long a grandchild that holds the pipe of an ended child may be silent, and how long its output is copied at all.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Something that happens once, and wakes the threads that wait with a [`Cancel`].
#[derive(Debug, Clone)]
pub(super) struct Event {
    happened: Arc<AtomicBool>,
    cancel: Cancel,
}

impl Event {
    pub(super) fn new(cancel: &Cancel) -> Self {
        Self {
            happened: Arc::default(),
            cancel: cancel.clone(),
        }
    }

    pub(super) fn happened(&self) -> bool {
        self.happened.load(Ordering::Acquire)
    }

    pub(super) fn happen(&self) {
        self.happened.store(true, Ordering::Release);
        self.cancel.nudge();
    }

    /// Runs `work` in a thread, and happens when that ends, by a panic too.
    pub(super) fn after(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        struct AtEnd(Event);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                self.0.happen();
            }
        }
        let at_end = AtEnd(self.clone());
        thread::Builder::new()
            .spawn(move || {
                let _at_end = at_end;
                work();
            })
            .map(drop)
    }
}

/// The thread that copies one stream of a child.
pub(super) struct Pump<S> {
    done: Event,
    result: Receiver<(S, io::Result<()>)>,
}

impl<S: Write + Send + 'static> Pump<S> {
    /// `ended` is readable (its other side closed) when the child has ended.
    pub(super) fn copy(
        from: impl Read + AsFd + Send + 'static,
        ended: PipeReader,
        mut sink: S,
        cancel: &Cancel,
    ) -> io::Result<Self> {
        Self::spawn(cancel, move || {
            let copied = copy(from, &ended, &mut sink);
            (sink, copied)
        })
    }

    fn spawn(
        cancel: &Cancel,
        carry: impl FnOnce() -> (S, io::Result<()>) + Send + 'static,
    ) -> io::Result<Self> {
        let (tell, result) = mpsc::sync_channel(1);
        let done = Event::new(cancel);
        done.after(move || drop(tell.send(carry())))?;
        Ok(Self { done, result })
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.happened()
    }

    /// The sink, and why copying ended early. Waits when the pump is not done.
    pub(super) fn finish(self) -> io::Result<(S, io::Result<()>)> {
        self.result
            .recv()
            .map_err(|_| io::Error::other("the thread of a stream failed"))
    }
}

impl Pump<Box<dyn Write + Send>> {
    /// To a descriptor of ours, by way of the kernel where that is possible.
    pub(super) fn pass(
        from: impl Read + AsFd + Send + 'static,
        ended: PipeReader,
        to: File,
        listener: Box<dyn Listener>,
        cancel: &Cancel,
    ) -> io::Result<Self> {
        Self::spawn(cancel, move || {
            let passed = pass(from, &ended, to, &*listener);
            (Box::new(io::sink()) as Box<dyn Write + Send>, passed)
        })
    }
}

/// Copies everything to the child, which may not want it. No thread waits for this one: it ends when the reader or the
/// child closes its side.
pub(super) fn feed(mut from: impl Read + Send + 'static, mut to: ChildStdin) -> io::Result<()> {
    thread::Builder::new()
        .spawn(move || {
            let mut buffer = vec![0; CHUNK];
            loop {
                match from.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        if to
                            .write_all(buffer.get(..count).unwrap_or_default())
                            .is_err()
                        {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        })
        .map(drop)
}

pub(super) fn copy(
    mut from: impl Read + AsFd,
    ended: &PipeReader,
    sink: &mut impl Write,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut moved: u64 = 0;
    let mut turns = Turns::new(ended);
    loop {
        match turns.next(&from)? {
            Turn::Again => continue,
            Turn::Over => return Ok(()),
            Turn::Read => {}
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        sink.write_all(buffer.get(..count).unwrap_or_default())?;
        sink.flush()?;
        turns.took(count as u64);
        if moved < LARGE_OUTPUT_BYTES && moved + count as u64 >= LARGE_OUTPUT_BYTES {
            widen(&from);
            buffer.resize(LARGE_PIPE_BYTES / 4, 0);
        }
        moved += count as u64;
    }
}

/// When to read from a child, and when to stop.
pub(super) struct Turns<'a> {
    ended: &'a PipeReader,
    rest: Option<Rest>,
}

pub(super) enum Turn {
    /// There is something to read, or the end of it.
    Read,
    Again,
    Over,
}

impl<'a> Turns<'a> {
    pub(super) fn new(ended: &'a PipeReader) -> Self {
        Self { ended, rest: None }
    }

    pub(super) fn next(&mut self, from: &impl AsFd) -> io::Result<Turn> {
        match &self.rest {
            None if ended_first(from, self.ended)? => {
                self.rest = Some(Rest::of(from));
                Ok(Turn::Again)
            }
            Some(rest) if !rest.more(from)? => Ok(Turn::Over),
            None | Some(_) => Ok(Turn::Read),
        }
    }

    pub(super) fn took(&mut self, count: u64) {
        if let Some(rest) = &mut self.rest {
            rest.owed = rest.owed.saturating_sub(count);
        }
    }
}

/// What is still copied after the child has ended.
struct Rest {
    /// What was in the pipe by then. The child wrote it, so it is copied however long our side takes.
    owed: u64,
    until: Instant,
}

impl Rest {
    fn of(from: &impl AsFd) -> Self {
        Self {
            owed: rustix::io::ioctl_fionread(from).unwrap_or(0),
            until: Instant::now() + DRAIN_TIMEOUT,
        }
    }

    fn more(&self, from: &impl AsFd) -> io::Result<bool> {
        if self.owed > 0 {
            return Ok(true);
        }
        let left = self.until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(from, PollFlags::IN)];
        wait(&mut fds, Some(left.min(IDLE_TIMEOUT)))
    }
}

/// Waits for bytes or for the child's end; true for the end, whatever else there is.
fn ended_first(from: &impl AsFd, ended: &PipeReader) -> io::Result<bool> {
    let mut fds = [
        PollFd::new(from, PollFlags::IN),
        PollFd::new(ended, PollFlags::IN),
    ];
    wait(&mut fds, None)?;
    let [_, ended] = fds;
    Ok(!ended.revents().is_empty())
}

/// False when the time is over. An interrupted wait begins anew: the time is only ever a bound for the silent.
fn wait(fds: &mut [PollFd<'_>], time: Option<Duration>) -> io::Result<bool> {
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    loop {
        match poll(fds, time.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Best effort: a user may be out of pipe pages.
#[cfg(target_os = "linux")]
pub(super) fn widen(pipe: &impl AsFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, LARGE_PIPE_BYTES);
}

#[cfg(not(target_os = "linux"))]
pub(super) fn widen(_pipe: &impl AsFd) {}

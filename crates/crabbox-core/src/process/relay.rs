//! Output that does not come from a child process: a provider that reads it from a connection writes it here.
//!
//! Each stream is a pipe, and a thread copies from it to the run's [`Output`] exactly as it would from a child's pipe: it
//! is recorded, bounded in memory, and a slow reader slows the provider down. The provider's end never blocks for longer
//! than a cancellation takes to be seen, also when no reader takes the output.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::cancel::Woken;
use super::outcome::lost;
use super::pass::pass;
use super::pump::{Event, copy};
use super::run::UNREAD_OUTPUT_TIMEOUT;
use super::{Cancel, Output, Stream};
use crate::{Code, Failure};

/// How often a writer that waits for room looks whether it is canceled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// The streams of one command. [`Self::finish`] waits until all output is written.
#[derive(Debug)]
pub struct Relay {
    streams: Vec<Relayed>,
    /// Closed by `finish`: a writer that is still open then is not waited for.
    open: PipeWriter,
    cancel: Cancel,
}

#[derive(Debug)]
struct Relayed {
    stream: Stream,
    done: Event,
    result: Receiver<io::Result<()>>,
}

/// Where the provider writes one stream.
#[derive(Debug)]
pub struct RelayWriter {
    pipe: PipeWriter,
    cancel: Cancel,
}

impl Relay {
    /// The writers are for stdout and stderr. Drop them, or what they were given to, before [`Self::finish`].
    pub fn open(
        stdout: Output,
        stderr: Output,
        cancel: &Cancel,
    ) -> Result<(Self, RelayWriter, RelayWriter), Failure> {
        let opened = || -> io::Result<_> {
            let (ended, open) = io::pipe()?;
            let (out, stdout) = relay(Stream::Stdout, stdout, ended.try_clone()?, cancel)?;
            let (err, stderr) = relay(Stream::Stderr, stderr, ended, cancel)?;
            let relay = Self {
                streams: vec![out, err],
                open,
                cancel: cancel.clone(),
            };
            Ok((relay, stdout, stderr))
        };
        opened().map_err(|error| Failure::new(Code::Local, "cannot pass output on").because(&error))
    }

    /// Fails if output was lost. After a cancellation, output that no reader takes is not waited for.
    pub fn finish(self) -> Result<(), Failure> {
        let Self {
            streams,
            open,
            cancel,
        } = self;
        drop(open);
        let done = || streams.iter().all(|relayed| relayed.done.happened());
        if let Woken::Canceled(_) = cancel.wait(None, done) {
            cancel.wait_anyway(Instant::now() + UNREAD_OUTPUT_TIMEOUT, done);
        }
        let mut broken = Vec::new();
        for relayed in &streams {
            if let Ok(Err(error)) = relayed.result.try_recv() {
                broken.push((relayed.stream, error));
            }
        }
        lost(&broken).map_or(Ok(()), Err)
    }
}

fn relay(
    stream: Stream,
    output: Output,
    ended: PipeReader,
    cancel: &Cancel,
) -> io::Result<(Relayed, RelayWriter)> {
    let (from, pipe) = io::pipe()?;
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
    let output = match output {
        Output::Inherit => Output::To(Box::new(inherited(stream)?)),
        other => other,
    };
    let (tell, result) = mpsc::sync_channel(1);
    let done = Event::new(cancel);
    done.after(move || {
        let copied = match output {
            Output::To(mut sink) => copy(from, &ended, &mut sink),
            Output::Pass(to, listener) => pass(from, &ended, to, &*listener),
            Output::Null | Output::Inherit => copy(from, &ended, &mut io::sink()),
        };
        // The receiver may not have waited.
        let _ = tell.send(copied);
    })?;
    let relayed = Relayed {
        stream,
        done,
        result,
    };
    let writer = RelayWriter {
        pipe,
        cancel: cancel.clone(),
    };
    Ok((relayed, writer))
}

fn inherited(stream: Stream) -> io::Result<File> {
    let own = match stream {
        Stream::Stdout => io::stdout().as_fd().try_clone_to_owned(),
        Stream::Stderr => io::stderr().as_fd().try_clone_to_owned(),
    };
    own.map(File::from)
}

impl RelayWriter {
    /// True when there is room, or the reader is gone.
    fn wait_for_room(&self) -> io::Result<bool> {
        let interval = Timespec::try_from(CANCEL_INTERVAL).ok();
        let mut fds = [PollFd::new(&self.pipe, PollFlags::OUT)];
        match poll(&mut fds, interval.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Write for RelayWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.pipe.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            while !self.wait_for_room()? {
                if let Some(reason) = self.cancel.reason() {
                    return Err(io::Error::other(format!("canceled: {reason}")));
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::process::{Listener, Reason};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Listener for Shared {
        fn hear(&self, bytes: &[u8]) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }

        fn miss(&self, _bytes: u64) {}
    }

    #[test]
    fn output_arrives_in_order_and_is_heard() {
        let (out, heard) = (Shared::default(), Shared::default());
        let mut file = tempfile::tempfile().unwrap();
        let pass = Output::Pass(file.try_clone().unwrap(), Box::new(heard.clone()));
        let to = Output::To(Box::new(out.clone()));
        let (relay, mut stdout, mut stderr) = Relay::open(to, pass, &Cancel::new()).unwrap();
        let much = vec![b'x'; 1 << 20];
        stdout.write_all(&much).unwrap();
        stdout.write_all(b"end").unwrap();
        stderr.write_all(b"error").unwrap();
        drop((stdout, stderr));
        relay.finish().unwrap();
        assert_eq!(out.0.lock().unwrap().len(), much.len() + 3);
        assert!(out.0.lock().unwrap().ends_with(b"xend"));
        assert_eq!(*heard.0.lock().unwrap(), b"error");
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert_eq!(text, "error");
    }

    #[test]
    fn a_reader_that_takes_nothing_does_not_outlast_a_cancellation() {
        let (_reader, full) = io::pipe().unwrap();
        let cancel = Cancel::new();
        let to = Output::To(Box::new(full));
        let (relay, mut stdout, stderr) = Relay::open(to, Output::Null, &cancel).unwrap();
        let stop = cancel.clone();
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            stop.set(Reason::Interrupt);
        });
        let error = stdout.write_all(&vec![0; 4 << 20]).unwrap_err();
        assert_eq!(error.to_string(), "canceled: interrupted");
        drop((stdout, stderr));
        relay.finish().unwrap();
        stopper.join().unwrap();
    }

    #[test]
    fn a_closed_reader_is_ignored_and_a_full_disk_reported() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        for (lost, to) in [
            (true, Output::To(Box::new(Full))),
            (false, Output::To(Box::new(writer))),
        ] {
            let (relay, mut stdout, _stderr) =
                Relay::open(to, Output::Null, &Cancel::new()).unwrap();
            stdout.write_all(b"x").unwrap();
            let end = Instant::now() + Duration::from_secs(30);
            // The pipe breaks as soon as the copy has failed.
            while stdout.write(b"y").is_ok() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(
                stdout.write(b"y").unwrap_err().kind(),
                io::ErrorKind::BrokenPipe
            );
            drop(stdout);
            assert_eq!(relay.finish().is_err(), lost);
        }
    }
}

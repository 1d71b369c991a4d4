//! How far a copy is: on a terminal, a line that is written over and over; else nothing.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sbx_copy::pack::Watch;

use crate::failure::{Failure, Kind};
use crate::text;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Copies that take less show nothing.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// For a stream that the other end has left: another process inside may hold it open.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Counters {
    files: AtomicU64,
    bytes: AtomicU64,
    over: AtomicBool,
}

pub(super) struct Progress {
    counters: Arc<Counters>,
    shown: Option<JoinHandle<()>>,
}

impl Progress {
    pub(super) fn start(stderr: &OwnedFd) -> Self {
        let counters = Arc::new(Counters::default());
        let terminal = rustix::termios::isatty(stderr).then(|| stderr.try_clone().ok());
        let shown = terminal.flatten().map(|terminal| {
            let counters = Arc::clone(&counters);
            std::thread::spawn(move || show(&counters, File::from(terminal)))
        });
        Self { counters, shown }
    }

    pub(super) fn watch(&self) -> Watching {
        Watching(Arc::clone(&self.counters))
    }

    /// For the thread that takes the stream, after the other end has exited: as long as something comes.
    pub(super) fn wait<T>(&self, taker: JoinHandle<T>) -> Result<T, Failure> {
        let mut last = (self.bytes(), Instant::now());
        while !taker.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
            let bytes = self.bytes();
            if bytes != last.0 {
                last = (bytes, Instant::now());
            }
            if last.1.elapsed() > SILENCE_TIMEOUT {
                let message = "the copy's stream does not end: a process in the sandbox holds it";
                return Err(Failure::new(Kind::Engine, message));
            }
        }
        taker.join().map_err(|_| Failure::failed("the copy failed"))
    }

    fn bytes(&self) -> u64 {
        self.counters.bytes.load(Ordering::Relaxed)
    }

    /// What was copied, in words.
    pub(super) fn end(self) -> String {
        self.counters.over.store(true, Ordering::Relaxed);
        if let Some(shown) = self.shown {
            // It only writes.
            let _ = shown.join();
        }
        words(&self.counters)
    }
}

fn words(counters: &Counters) -> String {
    let files = counters.files.load(Ordering::Relaxed);
    let size = size(counters.bytes.load(Ordering::Relaxed));
    format!("{files} file{}, {size}", if files == 1 { "" } else { "s" })
}

fn show(counters: &Counters, mut terminal: File) {
    let start = Instant::now();
    let mut any = false;
    while !counters.over.load(Ordering::Relaxed) {
        std::thread::sleep(REDRAW_INTERVAL);
        if start.elapsed() >= FIRST_DELAY {
            any = true;
            let line = format!("\rCopying: {}\u{1b}[K", words(counters));
            drop(terminal.write_all(line.as_bytes()));
        }
    }
    if any {
        drop(terminal.write_all(b"\r\x1b[K"));
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            let tenths = bytes / (unit / 10).max(1);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

pub(super) struct Watching(Arc<Counters>);

impl Watch for Watching {
    fn file(&mut self, bytes: u64) {
        self.0.files.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn skipped(&mut self, name: &str, reason: &str) {
        let line = format!("warning: skipped `{}`: {reason}\n", text::one_line(name));
        drop(std::io::stderr().lock().write_all(line.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (bytes, words) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(size(bytes), words);
        }
    }
}

//! A terminal for a command, and what it shows.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Longer than anything takes on a busy machine.
const SHOW_TIMEOUT: Duration = Duration::from_secs(120);

/// Both ends of a terminal.
pub(crate) struct Terminal {
    pub(crate) ours: OwnedFd,
    pub(crate) theirs: File,
}

impl Terminal {
    pub(crate) fn open() -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        Self { ours, theirs }
    }
}

/// A command whose three streams are one terminal.
pub(crate) struct OnTerminal {
    child: Child,
    keys: File,
    shows: Receiver<Vec<u8>>,
    pub(crate) shown: String,
}

/// Starts it.
pub(crate) fn on_terminal(mut command: Command) -> OnTerminal {
    let Terminal { ours, theirs } = Terminal::open();
    let child = command
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs)
        .spawn()
        .unwrap();
    drop(command);
    let keys = File::from(ours.try_clone().unwrap());
    let (show, shows) = mpsc::channel();
    std::thread::spawn(move || {
        let mut screen = File::from(ours);
        let mut bytes = [0; 4096];
        // The end of a terminal is an error.
        while let Ok(count @ 1..) = screen.read(&mut bytes) {
            if show.send(bytes[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    OnTerminal {
        child,
        keys,
        shows,
        shown: String::new(),
    }
}

impl OnTerminal {
    /// Waits until it shows this.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) {
        let end = Instant::now() + SHOW_TIMEOUT;
        while !self.shown.contains(text) {
            match self
                .shows
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("{error}: {text:?} is not in {:?}", self.shown),
            }
        }
    }

    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// Its exit code, and everything it showed.
    #[track_caller]
    pub(crate) fn end(mut self) -> (i32, String) {
        let end = Instant::now() + SHOW_TIMEOUT;
        loop {
            match self.shows.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) if self.child.try_wait().unwrap().is_none() => {
                    if Instant::now() > end {
                        self.child.kill().unwrap();
                        panic!("it does not end: {:?}", self.shown);
                    }
                }
                Err(_) => break,
            }
        }
        // Others may have the terminal open still.
        while let Ok(bytes) = self.shows.recv_timeout(Duration::from_secs(10)) {
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        (code, self.shown)
    }
}

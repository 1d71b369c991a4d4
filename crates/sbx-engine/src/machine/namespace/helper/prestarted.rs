//! The helper of the next boot, started ahead of it: by the time that a sandbox is asked for, the program has been
//! copied and loaded, and waits for its plan.
//!
//! Every boot has a copy of the program for itself: where the caller is an id inside, a program there can change the
//! mode or owner of what its own init was executed from, and must not reach another sandbox by that.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::SetupError;
use super::process::Process;
use crate::error::chain;
use crate::threads::lock;

/// When the next one is started: not during a boot, nor while its first command starts.
const PRESTART_DELAY: Duration = Duration::from_millis(15);

#[derive(Debug)]
pub(super) struct Prestarted {
    shared: Arc<Shared>,
    /// To the thread that waits for what has done its work, and starts the next. There is none before the first
    /// boot; where it cannot be started, every boot starts its own helper.
    used: OnceLock<Option<Sender<Process>>>,
}

#[derive(Debug)]
struct Shared {
    ready: Mutex<Option<Process>>,
    program: OwnedFd,
    log: Option<Arc<File>>,
}

impl Prestarted {
    pub(super) fn new(program: OwnedFd, log: Option<Arc<File>>) -> Self {
        let ready = Mutex::default();
        Self {
            shared: Arc::new(Shared {
                ready,
                program,
                log,
            }),
            used: OnceLock::new(),
        }
    }

    pub(super) fn take(&self) -> Result<Process, SetupError> {
        let ready = lock(&self.shared.ready).take();
        match ready.and_then(Process::still_waiting) {
            Some(process) => Ok(process),
            None => self.shared.start(),
        }
    }

    /// Its answer is here; no request has to wait for its end.
    pub(super) fn done_with(&self, process: Process) {
        let used = self.used.get_or_init(|| {
            let (used, from_boots) = mpsc::channel();
            let shared = Arc::clone(&self.shared);
            let keep = move || shared.keep_one_ready(&from_boots);
            let thread = std::thread::Builder::new()
                .name("prestart".into())
                .spawn(keep);
            thread.is_ok().then_some(used)
        });
        if let Some(used) = used {
            drop(used.send(process));
        }
    }

    /// There will be no other boot.
    pub(super) fn discard(&self) {
        drop(lock(&self.shared.ready).take());
    }
}

impl Shared {
    fn keep_one_ready(&self, from_boots: &Receiver<Process>) {
        while let Ok(process) = from_boots.recv() {
            let until = Instant::now() + PRESTART_DELAY;
            drop(process);
            loop {
                match from_boots.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(process) => drop(process),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            if lock(&self.ready).is_some() {
                continue;
            }
            match self.start() {
                Ok(process) => *lock(&self.ready) = Some(process),
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot prepare the next sandbox's start"
                    );
                }
            }
        }
    }

    fn start(&self) -> Result<Process, SetupError> {
        let program =
            sbx_sys::memfd::sealed_copy(self.program.as_fd()).map_err(SetupError::Spawn)?;
        Process::start(&program, self.log.as_deref())
    }
}

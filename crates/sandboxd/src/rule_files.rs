//! Notices when a person edits a file with rules, so that the edit holds from then on.
//!
//! What the API changes is reloaded by the API; this is for editors. A thread waits, nothing is polled.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::reload::PolicyReload;

const NAMES: [&[u8]; 2] = [b"policy.json", b"proxy-config.json"];
const STACK: usize = 256 << 10;

/// The directories in which the files lie.
#[derive(Debug)]
pub(crate) struct RuleFiles {
    inotify: OwnedFd,
}

impl RuleFiles {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC)?;
        Ok(Self { inotify })
    }

    /// Until the directory is gone.
    pub(crate) fn watch(&self, dir: &Path) -> io::Result<()> {
        // Editors write in place or put a new file in the place of the old one.
        let events = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        inotify::add_watch(&self.inotify, dir, events | WatchFlags::ONLYDIR)?;
        Ok(())
    }
}

/// Follows the files on a thread of its own, as long as the daemon lives.
pub(crate) fn follow(files: Arc<RuleFiles>, rules: Arc<dyn PolicyReload>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("rule-files".into())
        .stack_size(STACK)
        .spawn(move || {
            let error = wait(&files, rules.as_ref());
            tracing::warn!(%error, "edits of the rules' files go unnoticed");
        })
        .map(drop)
}

/// Returns why it cannot go on.
fn wait(files: &RuleFiles, rules: &dyn PolicyReload) -> Errno {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&files.inotify, &mut buffer);
    loop {
        let name = match reader.next() {
            Ok(event) => event.file_name().map(CStr::to_bytes).map(<[u8]>::to_vec),
            Err(Errno::INTR) => continue,
            Err(error) => return error,
        };
        if name.is_some_and(|name| NAMES.contains(&name.as_slice())) {
            rules.reload();
        }
    }
}

//! Notices when a person edits a file with rules or settings, so that the edit holds from then on, and when the state directory is
//! removed or moved.
//!
//! What the API changes is reloaded by the API; this is for editors. A thread waits, nothing is polled. It wakes when a rule
//! ends, too.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use sbx_engine::state::LOCK;

use crate::reload::PolicyReload;

const NAMES: [&[u8]; 2] = [b"policy.json", b"proxy-config.json"];
const SETTINGS: &[u8] = b"settings.json";
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
        // Editors write in place or put a new file in the place of the old one; people also move a file away, link
        // another one in, put a directory there, or take away the right to read it.
        let events = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE_SELF;
        inotify::add_watch(&self.inotify, dir, events | WatchFlags::ONLYDIR)?;
        Ok(())
    }
}

/// Follows the files on a thread of its own, as long as the daemon lives. `settings` is called when they changed, `moved` is called when the state directory may
/// not be where it was, and once to begin with: it may have gone before the watch began.
pub(crate) fn follow(
    files: Arc<RuleFiles>,
    rules: Arc<dyn PolicyReload>,
    settings: impl Fn() + Send + 'static,
    moved: impl Fn() + Send + 'static,
) -> io::Result<()> {
    std::thread::Builder::new()
        .name("rule-files".into())
        .stack_size(STACK)
        .spawn(move || {
            moved();
            let error = wait(&files, rules.as_ref(), &settings, &moved);
            tracing::warn!(%error, "edits of the rules' files go unnoticed");
        })
        .map(drop)
}

/// Returns why it cannot go on.
fn wait(
    files: &RuleFiles,
    rules: &dyn PolicyReload,
    settings: &dyn Fn(),
    moved: &dyn Fn(),
) -> Errno {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&files.inotify, &mut buffer);
    loop {
        if reader.is_buffer_empty()
            && let Err(error) = await_event(files, rules)
        {
            return error;
        }
        let name = match reader.next() {
            Ok(event) => event.file_name().map(CStr::to_bytes).map(<[u8]>::to_vec),
            Err(Errno::INTR) => continue,
            Err(error) => return error,
        };
        match name.as_deref() {
            Some(name) if NAMES.contains(&name) => rules.reload(),
            Some(SETTINGS) => settings(),
            Some(name) if name != LOCK.as_bytes() => {}
            // What has no name is about a directory itself.
            Some(_) | None => moved(),
        }
    }
}

/// Meanwhile rules may end.
fn await_event(files: &RuleFiles, rules: &dyn PolicyReload) -> Result<(), Errno> {
    loop {
        // A millisecond later, so that the time has passed.
        let left = rules
            .end_rules()
            .map(|left| left + Duration::from_millis(1));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(&files.inotify, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::mpsc::{Sender, channel};

    use sbx_policy::Scope;
    use sbx_proxy::Gate;

    use super::*;

    #[derive(Debug)]
    struct Told(Sender<()>);

    impl PolicyReload for Told {
        fn reload(&self) {
            // The test may be over.
            let _ = self.0.send(());
        }

        fn end_rules(&self) -> Option<Duration> {
            None
        }

        fn gate(&self, _: &Scope) -> Arc<Gate> {
            unreachable!("not asked for in this test")
        }
    }

    fn put(path: &Path) -> io::Result<()> {
        fs::File::create(path)?.write_all(b"{}")
    }

    #[test]
    fn whatever_happens_to_a_file_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, file) = (temp.path(), temp.path().join("policy.json"));
        let (other, away) = (dir.join("other"), dir.join("away"));
        put(&other).unwrap();
        // Each by a new watch, which knows of nothing that was before.
        let noticed = |what: &str, deed: &dyn Fn() -> io::Result<()>| {
            let files = Arc::new(RuleFiles::new().unwrap());
            files.watch(dir).unwrap();
            let (told, news) = channel();
            follow(files, Arc::new(Told(told)), || {}, || {}).unwrap();
            deed().unwrap();
            let heard = news.recv_timeout(Duration::from_secs(20));
            assert!(heard.is_ok(), "{what}");
        };
        noticed("written", &|| put(&file));
        noticed("unreadable", &|| {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o000))
        });
        noticed("moved away", &|| fs::rename(&file, &away));
        noticed("moved in", &|| fs::rename(&away, &file));
        noticed("removed", &|| fs::remove_file(&file));
        noticed("hard link", &|| fs::hard_link(&other, &file));
        fs::remove_file(&file).unwrap();
        noticed("link", &|| symlink(&other, &file));
        fs::remove_file(&file).unwrap();
        noticed("directory", &|| fs::create_dir(&file));
    }
    #[test]
    fn whatever_happens_to_the_state_directory_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("state");
        let noticed = |what: &str, deed: &dyn Fn() -> io::Result<()>| {
            fs::create_dir(&dir).unwrap();
            put(&dir.join(LOCK)).unwrap();
            let files = Arc::new(RuleFiles::new().unwrap());
            files.watch(&dir).unwrap();
            let ((told, _news), (gone_from, gone)) = (channel(), channel());
            let lock = dir.join(LOCK);
            let moved = move || {
                let _ = gone_from.send(lock.exists());
            };
            follow(files, Arc::new(Told(told)), || {}, moved).unwrap();
            let heard = || gone.recv_timeout(Duration::from_secs(20));
            assert_eq!(heard(), Ok(true), "{what}: to begin with");
            deed().unwrap();
            while heard().unwrap_or_else(|error| panic!("{what}: {error}")) {}
        };
        noticed("removed", &|| fs::remove_dir_all(&dir));
        noticed("moved", &|| fs::rename(&dir, temp.path().join("away")));
        noticed("its lock removed", &|| fs::remove_file(dir.join(LOCK)));
    }
}

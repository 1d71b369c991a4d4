//! Locks below `<state>/claim-locks`: flock(2) on files, which the kernel releases with the last process that has the
//! open file description.
//!
//! The lock files of a lease go with its claim. They are unlinked only by a process that holds them exclusively, and a
//! lock counts only if its path still leads to the locked file: one on an unlinked file would exclude no other process.
//! Lock order, so that two processes cannot wait for each other: the operation lock, then slug allocation, then the
//! claim. The holder's pid and command are written into the file for messages only; the lock does not depend on them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::creator::{Creator, Liveness};
use super::files;
use super::lease_id::LeaseId;
use super::problem::CLAIM_SUFFIX;
use crate::{Code, Failure};

const DIR: &str = "claim-locks";
const OPERATION_SUFFIX: &str = ".operation.lock";
const CLAIM_LOCK_SUFFIX: &str = ".json.lock";
/// How many lock files without a claim one sweep removes.
const SWEEP_LIMIT: usize = 64;
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// After so long people want to know what for.
const WAIT_NOTICE_DELAY: Duration = Duration::from_secs(1);
/// For locks that are held only while a file is written.
const SHORT_LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_HOLDER_BYTES: u64 = 300;

/// How long to wait for a lock.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    canceled: &'a dyn Fn() -> bool,
    until: Option<Instant>,
    notify: &'a dyn Fn(&str),
}

impl Wait<'static> {
    /// Take it now or not at all.
    pub fn none() -> Self {
        Self {
            canceled: &|| false,
            until: Some(Instant::now()),
            notify: &|_| {},
        }
    }
}

impl<'a> Wait<'a> {
    /// Until it is free, or `canceled` says yes.
    pub fn until_canceled(canceled: &'a dyn Fn() -> bool) -> Self {
        Self {
            canceled,
            until: None,
            notify: &|_| {},
        }
    }

    /// Says once who is waited for, when that takes longer than a moment.
    #[must_use]
    pub fn with_notice(self, notify: &'a dyn Fn(&str)) -> Self {
        Self { notify, ..self }
    }

    #[must_use]
    pub fn with_deadline(self, until: Instant) -> Self {
        Self {
            until: Some(until),
            ..self
        }
    }
}

/// Whether others may hold the same lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockMode {
    Exclusive,
    /// With others that share as well.
    Shared,
}

/// A lock file that is locked, until it is dropped.
#[derive(Debug)]
struct Locked {
    file: File,
    path: PathBuf,
    /// The claim that the lock file goes with.
    claim: Option<PathBuf>,
}

impl Drop for Locked {
    fn drop(&mut self) {
        let is_missing = |claim: &PathBuf| {
            let found = fs::symlink_metadata(claim);
            found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        if self.claim.as_ref().is_some_and(is_missing) {
            unlink_if_alone(&self.file, &self.path);
        }
    }
}

/// A file that another process holds or that is no longer at its path stays.
fn unlink_if_alone(file: &File, path: &Path) {
    if file.try_lock().is_ok() && is_at(file, path) {
        // One that cannot be removed now is swept later.
        drop(fs::remove_file(path));
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: &fs::Metadata| (meta.dev(), meta.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => id(&open) == id(&there),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// The right to run in, stop or clean up one lease, until it is dropped.
#[derive(Debug)]
pub struct OperationLock {
    locked: Locked,
}

impl OperationLock {
    /// The lock itself, for a child that makes the sandbox: it is held as long as either has it open. A child that
    /// outlives us may still make one, so until it ends no process may conclude that the sandbox was never created.
    pub fn share(&self) -> Option<File> {
        self.locked.file.try_clone().ok()
    }

    /// Exclusive to shared. flock(2) does not convert atomically: another process may hold it exclusively in between, so
    /// the caller must read the claim again.
    pub(super) fn downgrade(&mut self, what: &str, wait: Wait<'_>) -> Result<(), Failure> {
        lock_file(&mut self.locked.file, what, LockMode::Shared, wait)
    }

    /// Shared to exclusive, when the others that share it are done. The claim has to be read again.
    pub(super) fn upgrade(&mut self, what: &str, wait: Wait<'_>) -> Result<(), Failure> {
        lock_file(&mut self.locked.file, what, LockMode::Exclusive, wait)
    }
}

impl Drop for OperationLock {
    fn drop(&mut self) {
        // Only so that no message names an old holder. The lock itself is released when the file is closed.
        drop(self.locked.file.set_len(0));
    }
}

/// The right to write one claim, or to choose a slug.
#[derive(Debug)]
pub(super) struct ShortLock {
    _locked: Locked,
}

#[derive(Debug, Clone)]
pub(super) struct Locks {
    dir: PathBuf,
    claims: PathBuf,
}

impl Locks {
    /// `claims` is the directory of the claims that they are for.
    pub(super) fn new(state_dir: &Path, claims: &Path) -> Self {
        Self {
            dir: state_dir.join(DIR),
            claims: claims.to_path_buf(),
        }
    }

    pub(super) fn claim(&self, lease: &LeaseId) -> Result<ShortLock, Failure> {
        self.short(
            &format!("{lease}{CLAIM_LOCK_SUFFIX}"),
            &format!("the claim of lease {lease}"),
            Some(self.claim_file(lease.as_str())),
        )
    }

    pub(super) fn slugs(&self) -> Result<ShortLock, Failure> {
        self.short("slug-allocation.lock", "slug allocation", None)
    }

    fn claim_file(&self, lease: &str) -> PathBuf {
        self.claims.join(format!("{lease}{CLAIM_SUFFIX}"))
    }

    /// Removes lock files of leases that are gone, which killed processes and earlier versions left.
    pub(super) fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let is_left = |name: &String| {
            let suffixes = [OPERATION_SUFFIX, CLAIM_LOCK_SUFFIX];
            let lease = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            lease.is_some_and(|lease| !self.claim_file(lease).exists())
        };
        for name in names.filter(is_left).take(SWEEP_LIMIT) {
            let path = self.dir.join(name);
            let flags = OFlags::NOFOLLOW.bits().cast_signed();
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(&path);
            if let Ok(file) = opened {
                unlink_if_alone(&file, &path);
            }
        }
    }

    /// `command` is what the others are notified; it must not hold secrets.
    pub(super) fn operation(
        &self,
        lease: &LeaseId,
        command: &str,
        mode: LockMode,
        wait: Wait<'_>,
    ) -> Result<OperationLock, Failure> {
        let name = format!("{lease}{OPERATION_SUFFIX}");
        let claim = Some(self.claim_file(lease.as_str()));
        let mut locked = self.acquire(&name, &format!("lease {lease}"), mode, wait, claim)?;
        // The lock holds without it.
        drop(write_holder(&mut locked.file, command));
        Ok(OperationLock { locked })
    }

    fn short(&self, name: &str, what: &str, claim: Option<PathBuf>) -> Result<ShortLock, Failure> {
        let wait =
            Wait::until_canceled(&|| false).with_deadline(Instant::now() + SHORT_LOCK_TIMEOUT);
        let mut locked = self.acquire(name, what, LockMode::Exclusive, wait, claim)?;
        drop(write_holder(&mut locked.file, ""));
        Ok(ShortLock { _locked: locked })
    }

    fn acquire(
        &self,
        name: &str,
        what: &str,
        mode: LockMode,
        wait: Wait<'_>,
        claim: Option<PathBuf>,
    ) -> Result<Locked, Failure> {
        files::create_dir(&self.dir)?;
        let path = self.dir.join(name);
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(&path)
                .map_err(|e| files::io_failure("open lock", &path, &e))?;
            lock_file(&mut file, what, mode, wait)?;
            // Otherwise the last holder has removed it, and the lock is on a file that no other process will find.
            if is_at(&file, &path) {
                return Ok(Locked { file, path, claim });
            }
        }
    }
}

fn lock_file(file: &mut File, what: &str, mode: LockMode, wait: Wait<'_>) -> Result<(), Failure> {
    let started = Instant::now();
    let mut notified = false;
    let mut pause = FIRST_POLL_INTERVAL;
    loop {
        let tried = match mode {
            LockMode::Exclusive => file.try_lock(),
            LockMode::Shared => file.try_lock_shared(),
        };
        match tried {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(
                    Failure::new(Code::State, format!("cannot lock {what}")).because(&error)
                );
            }
        }
        if (wait.canceled)() {
            let message = format!("canceled while waiting for {what}");
            return Err(Failure::new(Code::Canceled, message));
        }
        let now = Instant::now();
        let left = wait.until.map(|until| until.saturating_duration_since(now));
        if left == Some(Duration::ZERO) {
            let message = format!("{what} is in use by {}", holder(file));
            return Err(Failure::new(Code::Timeout, message));
        }
        if !notified && now.duration_since(started) >= WAIT_NOTICE_DELAY {
            notified = true;
            (wait.notify)(&format!("waiting for {what}, in use by {}", holder(file)));
        }
        thread::sleep(left.map_or(pause, |left| left.min(pause)));
        pause = (pause * 2).min(MAX_POLL_INTERVAL);
    }
}

fn write_holder(file: &mut File, command: &str) -> std::io::Result<()> {
    file.set_len(0)?;
    file.write_all(format!("{} {command}\n", std::process::id()).as_bytes())
}

/// Who has the lock, as it says of itself.
fn holder(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(MAX_HOLDER_BYTES).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default();
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    let (pid, command) = line.split_once(' ').unwrap_or((&line, ""));
    let (Ok(_), Ok(pid)) = (read, pid.parse::<u32>()) else {
        return "another process".to_owned();
    };
    let process = match command {
        "" => format!("process {pid}"),
        command => format!("process {pid} ({command})"),
    };
    match is_dead(pid) {
        true => format!("a child left behind by {process}"),
        false => process,
    }
}

/// The lock goes with the last process that has it open, which is not always the one that signed.
fn is_dead(pid: u32) -> bool {
    let signed = Creator {
        pid,
        start_time: None,
        ..Creator::current()
    };
    signed.liveness() == Liveness::Dead
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    use super::*;

    fn locks_in(state: &Path) -> Locks {
        // All leases of these tests have a claim.
        let claims = state.join("claims");
        fs::create_dir_all(&claims).unwrap();
        for lease in ["x_1", "x_2"] {
            super::super::tests::write(&claims.join(format!("{lease}.json")), b"{}");
        }
        Locks::new(state, &claims)
    }

    fn lease(text: &str) -> LeaseId {
        LeaseId::parse(text).unwrap()
    }

    fn alone(locks: &Locks, id: &str, command: &str) -> Result<OperationLock, Failure> {
        locks.operation(&lease(id), command, LockMode::Exclusive, Wait::none())
    }

    #[test]
    fn the_holder_of_a_lock_is_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let locks = locks_in(dir.path());
        let _held = alone(&locks, "x_1", "crabbox run").unwrap();
        let told = std::cell::RefCell::new(Vec::new());
        let polls = Cell::new(0);
        // Some time after the first words.
        let canceled = || {
            polls.set(polls.get() + usize::from(!told.borrow().is_empty()));
            polls.get() > 3
        };
        let tell = |line: &str| told.borrow_mut().push(line.to_owned());
        let wait = Wait::until_canceled(&canceled).with_notice(&tell);
        let failure = locks
            .operation(&lease("x_1"), "crabbox stop", LockMode::Exclusive, wait)
            .unwrap_err();
        assert_eq!(failure.code, Code::Canceled);
        let me = std::process::id();
        let expected = format!("waiting for lease x_1, in use by process {me} (crabbox run)");
        assert_eq!(*told.borrow(), [expected]);
    }

    #[test]
    fn a_lock_that_was_held_alone_can_be_shared() {
        let dir = tempfile::tempdir().unwrap();
        let locks = locks_in(dir.path());
        let shared = || {
            let mode = LockMode::Shared;
            locks.operation(&lease("x_1"), "run", mode, Wait::none())
        };
        let mut held = alone(&locks, "x_1", "make").unwrap();
        assert!(shared().is_err());
        held.downgrade("lease x_1", Wait::none()).unwrap();
        let other = shared().unwrap();
        assert!(alone(&locks, "x_1", "stop").is_err());
        drop(other);
        drop(held);
        alone(&locks, "x_1", "stop").unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// Gap of the original: one provider had no operation lock at all.
    #[test]
    fn a_stop_waits_for_a_run() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let run = alone(&locks, "x_1", "crabbox run").unwrap();
        let (tell, told) = mpsc::channel();
        let (waits, waiting) = mpsc::channel();
        let waiter = {
            let locks = locks.clone();
            thread::spawn(move || {
                let canceled = || {
                    waits.send(()).ok();
                    false
                };
                let wait = Wait::until_canceled(&canceled);
                let lock =
                    locks.operation(&lease("x_1"), "crabbox stop", LockMode::Exclusive, wait);
                tell.send(()).unwrap();
                lock.unwrap();
            })
        };
        // Asked twice whether it is canceled: it came to the lock and did not get it.
        waiting.recv().unwrap();
        waiting.recv().unwrap();
        assert!(told.try_recv().is_err());
        // Another lease is another matter.
        alone(&locks, "x_2", "crabbox stop").unwrap();
        drop(run);
        told.recv().unwrap();
        waiter.join().unwrap();
    }

    #[test]
    fn runs_share_a_lease_and_a_stop_waits_for_all_of_them() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let take = |mode| locks.operation(&lease("x_1"), "crabbox", mode, Wait::none());
        let (one, two) = (
            take(LockMode::Shared).unwrap(),
            take(LockMode::Shared).unwrap(),
        );
        drop(one);
        assert_eq!(take(LockMode::Exclusive).unwrap_err().code, Code::Timeout);
        drop(two);
        let stop = take(LockMode::Exclusive).unwrap();
        assert_eq!(take(LockMode::Shared).unwrap_err().code, Code::Timeout);
        drop(stop);
        take(LockMode::Shared).unwrap();
    }

    #[test]
    fn the_error_names_the_holder() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let pid = std::process::id();
        let run = locks
            .operation(
                &lease("x_1"),
                "crabbox run\x1b[2J\n",
                LockMode::Exclusive,
                Wait::none(),
            )
            .unwrap();
        let failure = alone(&locks, "x_1", "crabbox stop").unwrap_err();
        assert_eq!(failure.code, Code::Timeout);
        assert_eq!(
            failure.message,
            format!("lease x_1 is in use by process {pid} (crabbox run[2J)")
        );
        drop(run);
        let path = state.path().join("claim-locks/x_1.operation.lock");
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }

    #[test]
    fn a_holder_that_died_is_not_named_as_the_one() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let _held = alone(&locks, "x_1", "crabbox run").unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let path = state.path().join("claim-locks/x_1.operation.lock");
        super::super::tests::write(&path, format!("{pid} crabbox run\n").as_bytes());
        let failure = alone(&locks, "x_1", "crabbox stop").unwrap_err();
        assert_eq!(
            failure.message,
            format!("lease x_1 is in use by a child left behind by process {pid} (crabbox run)")
        );
    }

    #[test]
    fn a_lock_file_with_any_content_works() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let _held = alone(&locks, "x_1", "crabbox run").unwrap();
        let path = state.path().join("claim-locks/x_1.operation.lock");
        super::super::tests::write(&path, &[0xff; 5000]);
        let failure = alone(&locks, "x_1", "crabbox stop").unwrap_err();
        assert_eq!(failure.message, "lease x_1 is in use by another process");
    }

    #[test]
    fn waiting_ends_when_canceled() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let _run = alone(&locks, "x_1", "crabbox run").unwrap();
        let asked = Cell::new(0);
        let canceled = || {
            asked.set(asked.get() + 1);
            asked.get() == 3
        };
        let wait = Wait::until_canceled(&canceled);
        let failure = locks
            .operation(&lease("x_1"), "crabbox stop", LockMode::Exclusive, wait)
            .unwrap_err();
        assert_eq!(failure.code, Code::Canceled);
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn waiting_ends_at_its_deadline() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let _run = alone(&locks, "x_1", "crabbox run").unwrap();
        let until = Instant::now() + Duration::from_millis(20);
        let wait = Wait::until_canceled(&|| false).with_deadline(until);
        let failure = locks
            .operation(&lease("x_1"), "crabbox stop", LockMode::Exclusive, wait)
            .unwrap_err();
        assert_eq!(failure.code, Code::Timeout);
        assert!(Instant::now() >= until);
    }

    #[test]
    fn a_lock_that_is_a_link_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        files::create_dir(&locks.dir).unwrap();
        let target = state.path().join("target");
        std::os::unix::fs::symlink(&target, locks.dir.join("x_1.json.lock")).unwrap();
        assert_eq!(locks.claim(&lease("x_1")).unwrap_err().code, Code::State);
        assert!(!target.exists());
    }

    fn names(locks: &Locks) -> Vec<String> {
        let entries = fs::read_dir(&locks.dir).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn lock_files_go_with_their_claim() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        drop(locks.claim(&lease("x_1")).unwrap());
        drop(alone(&locks, "x_1", "crabbox run").unwrap());
        assert_eq!(names(&locks), ["x_1.json.lock", "x_1.operation.lock"]);
        let held = alone(&locks, "x_1", "crabbox stop").unwrap();
        let claim = locks.claim(&lease("x_1")).unwrap();
        fs::remove_file(locks.claim_file("x_1")).unwrap();
        drop(claim);
        drop(held);
        assert_eq!(names(&locks), [""; 0]);
        // Slugs are allocated for ever.
        drop(locks.slugs().unwrap());
        assert_eq!(names(&locks), ["slug-allocation.lock"]);
    }

    #[test]
    fn a_lock_that_others_share_stays_until_the_last_of_them() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let share =
            || locks.operation(&lease("x_1"), "crabbox run", LockMode::Shared, Wait::none());
        let (one, two) = (share().unwrap(), share().unwrap());
        fs::remove_file(locks.claim_file("x_1")).unwrap();
        drop(one);
        assert_eq!(names(&locks), ["x_1.operation.lock"]);
        drop(two);
        assert_eq!(names(&locks), [""; 0]);
    }

    /// Two processes that each lock a file of their own would both go on.
    #[test]
    fn a_waiting_process_gets_the_file_that_is_there() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        let held = alone(&locks, "x_1", "crabbox stop").unwrap();
        let (waits, waiting) = mpsc::channel();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let canceled = || {
                    waits.send(()).ok();
                    false
                };
                let wait = Wait::until_canceled(&canceled);
                let lock = locks
                    .operation(&lease("x_1"), "crabbox run", LockMode::Exclusive, wait)
                    .unwrap();
                assert!(is_at(&lock.locked.file, &lock.locked.path));
                assert!(alone(&locks, "x_1", "crabbox run").is_err());
                lock
            });
            waiting.recv().unwrap();
            fs::remove_file(locks.claim_file("x_1")).unwrap();
            drop(held);
            drop(waiter.join().unwrap());
        });
        assert_eq!(names(&locks), [""; 0]);
    }

    #[test]
    fn what_earlier_versions_left_is_swept() {
        let state = tempfile::tempdir().unwrap();
        let locks = locks_in(state.path());
        drop(locks.slugs().unwrap());
        drop(locks.claim(&lease("x_1")).unwrap());
        for name in ["x_8.json.lock", "x_8.operation.lock", "other"] {
            super::super::tests::write(&locks.dir.join(name), b"");
        }
        // One that is about to be claimed.
        let held = alone(&locks, "x_9", "crabbox run").unwrap();
        locks.sweep();
        let kept = [
            "other",
            "slug-allocation.lock",
            "x_1.json.lock",
            "x_9.operation.lock",
        ];
        assert_eq!(names(&locks), kept);
        drop(held);
    }
}

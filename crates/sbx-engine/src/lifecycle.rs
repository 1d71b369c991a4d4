//! How a sandbox is started, watched, stopped and deleted. Whoever calls holds its operation lock.

pub(crate) mod auto_stop;
mod create;
pub(crate) mod entry;
pub(crate) mod hand_over;
pub(crate) mod recovery;
pub(crate) mod reset;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sbx_api::{Network, Status};
use sbx_proto::exec::Role;
use sbx_sys::process::{pidfd_kill, start_time, wait_pidfd};

use crate::engine::Shared;
use crate::error::{EngineError, chain};
use crate::lifecycle::entry::{Entry, Live};
use crate::lifecycle::hand_over::{BRIEF, PATIENT};
use crate::lifecycle::recovery::silence_unknown;
use crate::machine::control::{ControlError, Event, Link, Sender};
use crate::machine::egress::{Certificate, Redirect};
use crate::machine::namespace::helper::{BootFiles, Booted};
use crate::machine::namespace::ids;
use crate::machine::namespace::plan::{BUNDLES, Place, Sudo, Trust, boot_plan, mounts};
use crate::machine::namespace::template::HostLayout;
use crate::machine::namespace::{limits, template};
use crate::sandbox::git_identity as git;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{InitProcess, Record};
use crate::state::remove_tree::remove_tree;
use crate::state::socket::bind_unix;
use crate::state::{EXEC_SOCKET, RECORD, SandboxDir, make_private_dirs, private};
use crate::threads::lock;
use crate::workspace;

/// Why a sandbox ends that is removed.
pub(crate) const REMOVED: &str = "removed";
/// Why one ends that has had no command for long enough.
const IDLE: &str = "idle";
/// How long processes inside have between SIGTERM and SIGKILL.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
/// How long init has beyond that before it is killed itself.
const BEYOND_GRACE: Duration = Duration::from_secs(2);
/// The kernel ends what was killed; a process in an unresponsive file system may take longer.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// The same where nobody can be told.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Records are written when nothing has happened for that long: a command per millisecond must not cost a
/// write per millisecond.
const QUIET: Duration = Duration::from_millis(250);
/// Seconds between attempts to remove what a failed create left.
const REMOVAL_PAUSES: &[u64] = &[1, 2, 5, 10, 30, 60, 300, 900];
const WATCH_STACK: usize = 256 << 10;
const MOUNT_LOST: &str = "a read-only part of a writable workspace was replaced on the host";
const GARBAGE: &str = "init answered garbage";
const CHANGED: &str =
    "the host's files changed since this sandbox was made; hint: `sbx rm` it and create it again";

impl Shared {
    /// Starts the init of a sandbox that has none. A new one has asked git something. Returns what the user should know.
    pub(crate) fn boot(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        asked: Option<git::Question>,
    ) -> Result<Vec<String>, EngineError> {
        self.hand_over(entry, BRIEF);
        let record = entry.record();
        let found = workspace::resolve_again(&record.workspaces, self.config.state.root())?;
        let layout = self.layout(entry)?;
        let mut warnings = layout.warnings.clone();
        warnings.extend(found.warnings);
        let made_with = record.template.fingerprint.as_ref();
        if made_with.is_some_and(|made_with| *made_with != layout.fingerprint) {
            warnings.push(CHANGED.into());
        }
        let identity = asked.map(git::Question::answer);
        let record = {
            let record = &mut entry.state().record;
            if let Some(git::Identity { name, email }) = identity {
                record.caller.git_name = name;
                record.caller.git_email = email;
            }
            record.workspaces = found.workspaces;
            record.mounts = mounts(record, &layout);
            let sources = layout.sources.iter();
            record.sources = sources
                .map(|(path, real)| (path.as_path().into(), real.as_path().into()))
                .collect();
            record
                .template
                .fingerprint
                .get_or_insert(layout.fingerprint.clone());
            for warning in &warnings {
                if !record.warnings.contains(warning) {
                    record.warnings.push(warning.clone());
                }
            }
            record.clone()
        };
        let sudo = if self.config.helper.has_sudo() {
            Sudo::Install
        } else {
            Sudo::Absent
        };
        let place = prepare(&entry.dir, &record, &layout, sudo)?;
        let files = boot_files(&entry.dir).map_err(|e| prepare_error(entry.dir.path(), e))?;
        let authority = self.config.egress.authority(&record.id, &entry.dir);
        let plan = boot_plan(
            &record,
            &layout,
            &place,
            &trust(authority.map_err(EngineError::Egress)?),
            limits::current(),
        );
        let booted = self
            .config
            .helper
            .boot(&plan, &files)
            .inspect_err(|_| remove_socket(&entry.dir))?;
        // The init has its own copies; with ours a connect would never be refused.
        drop(files);
        self.take_up(entry, booted)?;
        Ok(warnings)
    }

    fn take_up(self: &Arc<Self>, entry: &Arc<Entry>, booted: Booted) -> Result<(), EngineError> {
        let id = entry.record().id;
        let taken = identify(booted.pid)
            .map_err(|error| ControlError::Io(error).into())
            .and_then(|init| {
                let mut link = Link::connect(entry.dir.path(), &id, Role::Daemon)?;
                self.serve_network(entry, &mut link)?;
                Ok((init, link))
            });
        let (init, link) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                end(&booted.pidfd);
                remove_socket(&entry.dir);
                return Err(error);
            }
        };
        // In memory before it is watched: the init may end at once, and that has to be the last word.
        entry.state().record.set_running(init, Timestamp::now());
        self.watch(entry, link, booted.pidfd, 0)?;
        if let Err(error) = entry.update(|_| {}) {
            self.halt(entry, "its record could not be written")?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Has the sandbox's network served, before anybody is told that it runs.
    pub(crate) fn serve_network(&self, entry: &Entry, link: &mut Link) -> Result<(), EngineError> {
        let listeners = link.listeners()?;
        let redirect = match listeners.redirect {
            Redirect::Nft => sbx_api::Redirect::Nft,
            Redirect::Ports => sbx_api::Redirect::Ports,
        };
        let attached = self.config.egress.attach(&entry.name, listeners);
        attached.map_err(EngineError::Egress)?;
        entry.state().record.network = Some(Network { redirect });
        Ok(())
    }

    /// Makes the sandbox live, with `running` commands: from here on a thread follows what its init says.
    pub(crate) fn watch(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        link: Link,
        pidfd: OwnedFd,
        running: u32,
    ) -> Result<(), EngineError> {
        let pidfd = Arc::new(pidfd);
        let failed = |source| {
            end(&pidfd);
            self.config.egress.detach(&entry.name);
            remove_socket(&entry.dir);
            let mut state = entry.state();
            state.live = None;
            let reason = "the daemon could not follow it".into();
            state.record.set_stopped(reason, Timestamp::now());
            prepare_error(entry.dir.path(), source)
        };
        let sender = link.sender().map_err(failed)?;
        let (shared, watched, process) = (Arc::clone(self), Arc::clone(entry), Arc::clone(&pidfd));
        let mut state = entry.state();
        state.stopping = None;
        state.set_sessions(running, Timestamp::now(), self.config.settings.auto_stop);
        state.live = Some(Live {
            sender,
            pidfd: Arc::clone(&pidfd),
        });
        drop(state);
        self.alarm.ring();
        let spawned = std::thread::Builder::new()
            .name("watch".into())
            .stack_size(WATCH_STACK)
            .spawn(move || shared.follow(&watched, link, &process));
        spawned.map(drop).map_err(failed)
    }

    fn follow(self: &Arc<Self>, entry: &Arc<Entry>, mut link: Link, pidfd: &OwnedFd) {
        let reason = self.listen(entry, &mut link);
        // Whoever comes from here on has to wait for its end, which may take a while.
        entry.set_ending(reason);
        // One that closes the connection properly is ending by itself.
        let ended = reason != GARBAGE && wait_briefly(pidfd, BEYOND_GRACE);
        if !ended && let Err(error) = pidfd_kill(pidfd, Signal::KILL) {
            tracing::error!(sandbox = %entry.name, %error, "cannot kill the init");
        }
        if let Err(error) = wait_pidfd(pidfd) {
            tracing::error!(sandbox = %entry.name, %error, "cannot wait for the init");
        }
        self.config.egress.detach(&entry.name);
        // One that lies in the place of a sandbox that was abandoned is another's.
        if !entry.state().removed {
            remove_socket(&entry.dir);
        }
        // Whoever removes it has its own limit for that.
        if entry.state().stopping.as_deref() != Some(REMOVED) {
            self.hand_over(entry, PATIENT);
        }
        if let Err(error) = entry.set_gone() {
            tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
        }
        let record = entry.record();
        tracing::info!(sandbox = %entry.name, reason = record.stop_reason, "stopped");
        if record.temporary {
            self.remove_temporary(entry);
        }
    }

    /// Until the init ends or misbehaves; says which.
    fn listen(&self, entry: &Entry, link: &mut Link) -> &'static str {
        let grace = self.config.settings.auto_stop;
        // What create or start wrote is made durable here, where nobody waits for the disk.
        let mut unwritten = true;
        loop {
            match link.next(unwritten.then_some(QUIET)) {
                Ok(Event::Commands { running }) => {
                    entry.state().set_sessions(running, Timestamp::now(), grace);
                    self.alarm.ring();
                    unwritten = true;
                }
                Ok(Event::Busy) => {
                    entry.go_on(grace);
                    self.alarm.ring();
                }
                Ok(Event::MountLost) => entry.set_ending(MOUNT_LOST),
                Ok(Event::HandedOver) => entry.state().record.hand_over_due = false,
                Ok(Event::Quiet) => {
                    if let Err(error) = entry.flush() {
                        tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
                    }
                    unwritten = false;
                }
                Ok(Event::Gone) => return "crashed",
                Err(error) => {
                    tracing::error!(sandbox = %entry.name, error = chain(&error), "the init misbehaves");
                    return GARBAGE;
                }
            }
        }
    }

    /// Stops it if it runs. `reason` is what `inspect` says afterwards.
    pub(crate) fn halt(&self, entry: &Entry, reason: &str) -> Result<(), EngineError> {
        self.halt_within(entry, reason, GRACE)
    }

    /// The same, with this much time for processes inside between SIGTERM and SIGKILL.
    pub(crate) fn halt_within(
        &self,
        entry: &Entry,
        reason: &str,
        grace: Duration,
    ) -> Result<(), EngineError> {
        {
            let mut state = entry.state();
            if state.live.is_none() {
                return Ok(());
            }
            state.end(reason);
        }
        let Some(pidfd) = ask(entry, |sender| sender.shutdown(grace)) else {
            return Ok(());
        };
        if entry.wait_gone(grace + BEYOND_GRACE) {
            return Ok(());
        }
        self.kill(entry, &pidfd)
    }

    /// Stops it unless a command runs in it, which its init knows; false when it goes on for that.
    pub(crate) fn halt_if_idle(&self, entry: &Entry, reason: &str) -> Result<bool, EngineError> {
        let ends_anyway = {
            let mut state = entry.state();
            if state.live.is_none() {
                return Ok(true);
            }
            let ends_anyway = state.stopping.is_some();
            state.end(reason);
            ends_anyway
        };
        let Some(pidfd) = ask(entry, |sender| sender.shutdown_if_idle(GRACE)) else {
            return Ok(true);
        };
        if !entry.wait_settled(GRACE + BEYOND_GRACE) {
            // Its init may be slow, or stopped: what is known to run is not killed on suspicion.
            let mut state = entry.state();
            if state.sessions > 0 && !ends_anyway && !has_ended(&pidfd) {
                state.stopping = None;
                return Ok(false);
            }
            drop(state);
            self.kill(entry, &pidfd)?;
        }
        Ok(entry.state().live.is_none())
    }

    fn kill(&self, entry: &Entry, pidfd: &OwnedFd) -> Result<(), EngineError> {
        // One that has ended may still have its files handed over.
        if !has_ended(pidfd) {
            tracing::warn!(sandbox = %entry.name, "the init does not stop; killing it");
            if let Err(error) = pidfd_kill(pidfd, Signal::KILL) {
                tracing::error!(sandbox = %entry.name, %error, "cannot kill the init");
            }
        }
        if entry.wait_gone(KILL_LIMIT + PATIENT) {
            return Ok(());
        }
        entry.state().stopping = None;
        Err(EngineError::Unstoppable(entry.name.clone()))
    }

    /// Removes everything of a sandbox that does not run; the record goes last, so that a crash leaves
    /// something that says what has to be removed. `limit` is for handing over what is left in the workspaces.
    pub(crate) fn delete(&self, entry: &Entry, limit: Duration) -> Result<(), EngineError> {
        if entry.state().removed {
            return Ok(());
        }
        if let Err(error) = entry.update(|state| state.record.status = Status::Removing) {
            // A disk that is full is no reason to keep what fills it.
            tracing::warn!(sandbox = %entry.name, error = chain(&error), "cannot note the removal");
        }
        self.hand_over(entry, limit);
        self.delete_files(&entry.dir, &entry.record().ids)?;
        self.forget(entry);
        Ok(())
    }

    /// After a create that failed where even removing fails: without descriptors, for one.
    pub(crate) fn delete_later(self: &Arc<Self>, entry: Arc<Entry>) {
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new()
            .name("clean-up".into())
            .spawn(move || {
                for pause in REMOVAL_PAUSES {
                    std::thread::sleep(Duration::from_secs(*pause));
                    let _operation = entry.operate();
                    if entry.state().removed || shared.delete(&entry, BRIEF).is_ok() {
                        return;
                    }
                }
                tracing::error!(sandbox = %entry.name, "what a failed create left cannot be removed");
            });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread");
        }
    }

    pub(crate) fn remove_damaged(&self, name: &SandboxName) -> Result<(), EngineError> {
        // One at a time, and looked for again: the name may be another sandbox's by now.
        let _one = lock(&self.damaged);
        if !lock(&self.registry).damaged.contains_key(name) {
            return Err(EngineError::NotFound(name.to_string()));
        }
        let dir = self.config.state.sandbox(name);
        if !silence_unknown(&dir) {
            return Err(EngineError::Unstoppable(name.clone()));
        }
        let ids = ids::maps(&self.config.facts, self.mode, ids::Used::default())?;
        self.delete_files(&dir, &ids)?;
        self.forget_rules(name);
        lock(&self.registry).damaged.remove(name);
        Ok(())
    }

    fn delete_files(
        &self,
        dir: &SandboxDir,
        ids: &sbx_proto::plan::Ids,
    ) -> Result<(), EngineError> {
        let helper = &self.config.helper;
        helper.remove_tree(&dir.layers(), || Ok(ids.clone()))?;
        let failed = |e| prepare_error(dir.path(), e);
        let files = match fs::read_dir(dir.path()) {
            // Somebody was quicker.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            files => files.map_err(failed)?,
        };
        for file in files {
            let file = file.map_err(failed)?;
            if file.file_name() != RECORD {
                remove_tree(&file.path())?;
            }
        }
        Ok(remove_tree(dir.path())?)
    }

    /// Stops what has been idle for long enough, for ever.
    pub(crate) fn run_timer(self: &Arc<Self>) {
        loop {
            let now = Timestamp::now();
            let mut next: Option<Timestamp> = None;
            for entry in self.entries() {
                let mut state = entry.state();
                match state.due_at() {
                    Some(at) if at <= now => {
                        state.stopping = Some(IDLE.into());
                        drop(state);
                        self.stop_idle(&entry);
                    }
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {}
                }
            }
            self.alarm
                .sleep(next.map(|next| auto_stop::until(now, next)));
        }
    }

    fn stop_idle(self: &Arc<Self>, entry: &Arc<Entry>) {
        let (shared, stopped) = (Arc::clone(self), Arc::clone(entry));
        let spawned = std::thread::Builder::new()
            .name("auto-stop".into())
            .spawn(move || {
                let _operation = stopped.operate();
                // Somebody else may have been first, and a new one may run by now.
                if stopped.state().stopping.as_deref() != Some(IDLE) {
                    return;
                }
                if let Err(error) = shared.halt_if_idle(&stopped, IDLE) {
                    tracing::error!(sandbox = %stopped.name, error = chain(&error), "cannot stop");
                    shared.put_off(&stopped);
                }
            });
        if let Err(error) = spawned {
            tracing::error!(sandbox = %entry.name, %error, "cannot stop");
            self.put_off(entry);
        }
    }

    fn put_off(&self, entry: &Entry) {
        let mut state = entry.state();
        state.stopping = None;
        state.touch(Timestamp::now(), self.config.settings.auto_stop);
        drop(state);
        self.alarm.ring();
    }
}

/// Asks the init of one that is to end; `None` when nothing is live.
fn ask(
    entry: &Entry,
    question: impl FnOnce(&mut Sender) -> Result<(), ControlError>,
) -> Option<Arc<OwnedFd>> {
    let (sender, pidfd) = {
        let state = entry.state();
        let live = state.live.as_ref()?;
        (live.sender.try_clone(), Arc::clone(&live.pidfd))
    };
    let asked = sender
        .map_err(ControlError::Io)
        .and_then(|mut sender| question(&mut sender));
    if let Err(error) = asked {
        tracing::warn!(sandbox = %entry.name, error = chain(&error), "cannot ask the init to stop");
    }
    Some(pidfd)
}

/// Which process this pid is, now.
pub(crate) fn identify(pid: i32) -> io::Result<InitProcess> {
    Ok(InitProcess {
        pid,
        start_time: start_time(pid)?,
        boot_id: boot_id()?,
    })
}

pub(crate) fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// Kills and waits, as long as that makes sense: one that hangs in a dead file system must not keep a daemon from starting.
pub(crate) fn end(pidfd: &OwnedFd) {
    let ended = pidfd_kill(pidfd, Signal::KILL).and_then(|()| {
        if wait_briefly(pidfd, END_LIMIT) {
            wait_pidfd(pidfd)
        } else {
            Err(io::ErrorKind::TimedOut.into())
        }
    });
    if let Err(error) = ended {
        tracing::error!(%error, "cannot end an init");
    }
}

pub(crate) fn remove_socket(dir: &SandboxDir) {
    match fs::remove_file(dir.path().join(EXEC_SOCKET)) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(%error, dir = %dir.path().display(), "cannot remove a socket"),
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    wait_briefly(pidfd, Duration::ZERO)
}

/// True when the process has ended within the limit.
fn wait_briefly(pidfd: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut fds, limit.as_ref()), Ok(1))
}

/// The directories and files that a plan refers to.
fn prepare(
    dir: &SandboxDir,
    record: &Record,
    layout: &HostLayout,
    sudo: Sudo,
) -> Result<Place, EngineError> {
    let layers = dir.layers();
    let made = || {
        make_private_dirs(&layers)?;
        // Root of the user namespace makes the layers in it.
        let base = ids::base(&record.ids);
        chown(&layers, base, base)?;
        let mut files = Vec::new();
        for (target, content) in
            template::etc_files(record.name.as_str(), &layout.env, &record.caller)
        {
            let source = dir.path().join(target);
            write_shown(&source, content.as_bytes())?;
            files.push((source, Path::new("/").join(target)));
        }
        Ok(Place {
            layers: layers.clone(),
            files,
            sudo,
        })
    };
    made().map_err(|e| prepare_error(dir.path(), e))
}

fn trust(certificate: Certificate) -> Trust {
    let mut bundles = BUNDLES.iter().copied();
    let first = bundles.clone().next().unwrap_or_default();
    Trust {
        certificate: certificate.pem,
        certificate_base64: certificate.base64,
        // The host's own kind of system is the sandbox's.
        bundle: bundles
            .find(|bundle| Path::new(bundle).is_file())
            .unwrap_or(first),
    }
}

/// A file that everybody inside may read.
fn write_shown(path: &PathBuf, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    if let Some(parent) = path.parent() {
        make_private_dirs(parent)?;
    }
    let mut file = private().create(true).truncate(true).open(path)?;
    file.write_all(content)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

fn boot_files(dir: &SandboxDir) -> io::Result<BootFiles> {
    let open = |path: &PathBuf| {
        fs::OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
    };
    let [first, second] = dir.outputs();
    Ok(BootFiles {
        outputs: [open(&first)?, open(&second)?],
        listener: bind_unix(dir.path(), EXEC_SOCKET)?,
    })
}

pub(crate) fn prepare_error(path: &Path, source: io::Error) -> EngineError {
    EngineError::Prepare {
        path: path.display().to_string(),
        source,
    }
}

//! The engine as the daemon sees it: every operation on sandboxes, callable from any thread.
//!
//! Operations on one sandbox wait for each other; on different ones they do not, and reading never waits.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use sbx_api::{
    Caller, ClearCaches, ClearedCaches, CreateRequest, KeepRequest, RemovedTemplate, Sandbox,
    SaveTemplate, SavedNow, SavedTemplate, Started, Status, Summary, Usage, WorkspaceRequest,
};
use sbx_policy::Pattern;
use sbx_proto::plan::Ids;

use crate::error::{EngineError, chain, prepare_error};
use crate::lifecycle::REMOVED;
use crate::lifecycle::auto_stop::{Alarm, ClockTimes};
use crate::lifecycle::create::Interface;
use crate::lifecycle::entry::{Entry, State};
use crate::lifecycle::hand_over::{HAND_OVER_TIMEOUT, SHORT_HAND_OVER_TIMEOUT, left_behind};
use crate::lifecycle::trash::Trash;
use crate::machine::egress::Egress;
use crate::machine::ingress::Ingress;
use crate::machine::process::boot_id;
use crate::machine::{self, Backend, Machines};
use crate::policy::{PolicyBook, ProxyFile, parse_resources};
use crate::sandbox::git_identity;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{Record, RecordError, WorkspaceRecord};
use crate::sandbox::tag::Tag;
use crate::sandbox::view;
use crate::saved;
use crate::state::settings::Settings;
use crate::state::{EXEC_SOCKET, SandboxDir, StateDir};
use crate::threads::{at_once, lock};
use crate::workspace::Writable;
use crate::workspace::hints::Mounts;
use crate::workspace::untrusted::{UntrustedPaths, UntrustedRoot};

#[derive(Debug)]
pub struct Config {
    /// Claimed, and locked by this process.
    pub state: StateDir,
    /// To begin with.
    pub settings: Settings,
    /// The backends.
    pub machines: Machines,
    /// The network rules.
    pub book: Arc<PolicyBook>,
    /// Serves the sandboxes' networks.
    pub egress: Arc<dyn Egress>,
    /// Serves their published ports.
    pub ingress: Arc<dyn Ingress>,
}

#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// As of now.
    settings: Mutex<Settings>,
    pub(crate) registry: Mutex<Registry>,
    pub(crate) alarm: Alarm,
    pub(crate) trash: Trash,
    /// Held while a sandbox without a readable record is removed.
    pub(crate) damaged: Mutex<()>,
    /// Held while it is decided which sandbox has which build cache.
    pub(crate) caches: Mutex<()>,
    /// Held while it is decided which saved template has which name.
    pub(crate) saved: Mutex<()>,
    /// Held while some are removed.
    pub(crate) saved_removal: Mutex<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) entries: BTreeMap<SandboxName, Arc<Entry>>,
    /// Directories whose record cannot be read.
    pub(crate) damaged: BTreeMap<SandboxName, RecordError>,
    /// All of them are being stopped for good: nothing is started any more.
    pub(crate) closed: bool,
}

/// What protects a sandbox from removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    WhenIdle,
    Forced,
    /// Only while it is stopped, and has been since then.
    StoppedSince(Timestamp),
}

impl Engine {
    pub fn new(config: Config) -> Self {
        Self {
            shared: Arc::new(Shared {
                settings: Mutex::new(config.settings.clone()),
                config,
                registry: Mutex::default(),
                alarm: Alarm::default(),
                trash: Trash::default(),
                damaged: Mutex::default(),
                caches: Mutex::default(),
                saved: Mutex::default(),
                saved_removal: Mutex::default(),
            }),
        }
    }

    /// Makes a sandbox and starts it. When anything fails, nothing is left, the name included.
    pub fn create(&self, request: CreateRequest) -> Result<Sandbox, EngineError> {
        self.create_by(request, Interface::Current)
    }

    /// The same for `/vm`: the agent may have any name, and a sandbox's name that is taken gets a number.
    pub fn create_vm(
        &self,
        agent: String,
        workspace: String,
        caller: Caller,
    ) -> Result<Sandbox, EngineError> {
        let request = CreateRequest {
            agent,
            workspaces: vec![WorkspaceRequest {
                path: workspace,
                given: None,
                readonly: false,
                target: None,
            }],
            caller,
            ..CreateRequest::default()
        };
        self.create_by(request, Interface::Vm)
    }

    fn create_by(
        &self,
        request: CreateRequest,
        interface: Interface,
    ) -> Result<Sandbox, EngineError> {
        let shared = &self.shared;
        let denied = parse_resources(&request.deny_network)?;
        let mut record = shared.draft(request, interface)?;
        shared.config.machines.prepare_ids(record.backend);
        let mut registry = match interface {
            Interface::Current => shared.with_free_name(&record)?,
            Interface::Vm => shared.with_numbered_name(&mut record)?,
        };
        let name = record.name.clone();
        let dir = shared.config.state.sandbox(&name);
        let ids = shared.free_ids(&registry, record.backend, &dir)?;
        let entry = Arc::new(Entry::new(Record { ids, ..record }, dir));
        let _operation = entry.operate();
        registry.entries.insert(name.clone(), Arc::clone(&entry));
        drop(registry);

        if let Err(error) = shared.make_dir(&entry) {
            shared.forget(&entry);
            return Err(error);
        }
        let asked = shared.ask_git(&entry.record());
        let file = match interface {
            Interface::Current => ProxyFile::Copied,
            Interface::Vm => ProxyFile::Always,
        };
        match shared.write_and_boot(&entry, denied, file, asked) {
            Ok(_) => Ok(shown(&entry)),
            Err(error) => {
                if let Err(left) = shared.delete(&entry, SHORT_HAND_OVER_TIMEOUT) {
                    tracing::error!(sandbox = %name, error = chain(&left), "cannot clean up after a failed create");
                    shared.delete_later(Arc::clone(&entry));
                }
                Err(error)
            }
        }
    }

    /// Makes a template from what a sandbox that does not run changed of its own.
    pub fn save_template(&self, request: &SaveTemplate) -> Result<SavedNow, EngineError> {
        let tag = Tag::parse(&request.tag)?;
        let entry = self.shared.entry(&request.sandbox)?;
        // It cannot be started meanwhile.
        let _operation = entry.operate();
        is_meant(&entry, request.id.as_deref())?;
        self.shared.still_there(&entry)?;
        self.shared.save(&entry, tag)
    }

    /// All saved templates, by name.
    pub fn templates(&self) -> Result<Vec<SavedTemplate>, EngineError> {
        let state = &self.shared.config.state;
        saved::list(state).map_err(|source| prepare_error(&state.saved_templates(), source))
    }

    /// Takes the name of one away. Its files are kept for as long as sandboxes are made from them.
    pub fn remove_template(&self, wanted: &str) -> Result<RemovedTemplate, EngineError> {
        self.shared.remove_template(wanted)
    }

    /// From now on. Returns those that only another daemon will follow.
    pub fn change_settings(&self, settings: Settings) -> Vec<&'static str> {
        let began_with = &self.shared.config.settings;
        let restart_needed = began_with.needs_restart_for(&settings);
        *lock(&self.shared.settings) = settings;
        restart_needed
    }

    /// Removes the build cache of one workspace or all, but for those that sandboxes write to.
    pub fn clear_caches(&self, request: &ClearCaches) -> Result<ClearedCaches, EngineError> {
        let workspace = request.workspace.as_deref().map(Path::new);
        self.shared.clear_caches(workspace)
    }

    /// The answer of [`Engine::start`] for a sandbox that runs, without ever waiting.
    pub fn running(&self, name: &str) -> Option<Started> {
        let entry = self.shared.entry(name).ok()?;
        entry
            .use_now(self.shared.settings().auto_stop)
            .then(|| started(&entry, false, Vec::new()))
    }

    /// Starts it if it is not running.
    pub fn start(&self, name: &str) -> Result<Started, EngineError> {
        let entry = self.shared.entry(name)?;
        let grace = self.shared.settings().auto_stop;
        if entry.use_now(grace) {
            return Ok(started(&entry, false, Vec::new()));
        }
        let _operation = entry.operate();
        self.shared.still_there(&entry)?;
        if entry.use_now(grace) {
            return Ok(started(&entry, false, Vec::new()));
        }
        self.shared.make_startable(&entry)?;
        let booted = self.shared.boot(&entry, None);
        let warnings = booted.map_err(|error| Shared::with_port_hint(&entry, error))?;
        Ok(started(&entry, true, warnings))
    }

    pub fn stop(&self, name: &str) -> Result<Sandbox, EngineError> {
        let entry = self.shared.entry(name)?;
        let _operation = entry.operate();
        self.shared.still_there(&entry)?;
        self.shared.halt(&entry, "user")?;
        let stopped = shown(&entry);
        if stopped.temporary {
            // Under the same lock, so that no other request can start it: it is gone when this answers.
            self.shared.delete(&entry, HAND_OVER_TIMEOUT)?;
        }
        Ok(stopped)
    }

    /// Stops all of them at once; `reason` is what `inspect` says afterwards.
    pub fn stop_all(&self, reason: &str) {
        self.shared.halt_all(&self.shared.entries(), reason);
    }

    /// The same for good, because the daemon stops: nothing is created or started from here on.
    pub fn stop_for_good(&self) {
        lock(&self.shared.registry).closed = true;
        self.stop_all("daemon stop");
    }

    /// Ends all of them, because the state directory is gone. Nothing is written: what lies there by now is another
    /// daemon's.
    pub fn abandon(&self) {
        let entries = self.shared.entries();
        for entry in &entries {
            entry.state().removed = true;
        }
        self.shared
            .halt_all(&entries, "its state directory is gone");
    }

    /// What is kept ready for the next sandbox ends, and files of removed ones are deleted; the sandboxes stay.
    pub fn close(&self) {
        self.shared.trash.wait_empty();
        self.shared.config.machines.close();
    }

    /// The one with this id, if that is said. Returns what the user should know: the workspaces are still there.
    pub fn remove(
        &self,
        name: &str,
        id: Option<&str>,
        removal: Removal,
    ) -> Result<Vec<String>, EngineError> {
        let entry = match self.shared.entry(name) {
            Err(EngineError::Damaged { name, .. }) if id.is_none() => {
                self.shared.remove_damaged(&name)?;
                return Ok(Vec::new());
            }
            other => other?,
        };
        let _operation = entry.operate();
        is_meant(&entry, id)?;
        let limit = match removal {
            Removal::WhenIdle => {
                if !self.shared.halt_if_idle(&entry, REMOVED)? {
                    let sessions = entry.state().sessions.max(1);
                    let name = entry.name.clone();
                    return Err(EngineError::Busy { name, sessions });
                }
                HAND_OVER_TIMEOUT
            }
            // As docker does it: a forced removal does not wait for processes that ignore SIGTERM.
            Removal::Forced => {
                self.shared.halt_within(&entry, REMOVED, Duration::ZERO)?;
                SHORT_HAND_OVER_TIMEOUT
            }
            // The operation lock is held: it is not started before it is gone.
            Removal::StoppedSince(time) => {
                let state = entry.state();
                if state.live.is_some() || state.record.stopped_at != Some(time) {
                    return Err(EngineError::UsedSince(entry.name.clone()));
                }
                HAND_OVER_TIMEOUT
            }
        };
        self.shared.delete(&entry, limit)?;
        Ok(left_behind(&entry.record()))
    }

    /// Whether it stays up without a command, and whether anything of it stays when it stops.
    pub fn keep(&self, name: &str, request: &KeepRequest) -> Result<Sandbox, EngineError> {
        let entry = self.shared.entry(name)?;
        // A stop removes a temporary one: without the lock this could promise to keep what is being removed.
        let _operation = entry.operate();
        is_meant(&entry, request.id.as_deref())?;
        self.shared.still_there(&entry)?;
        let grace = self.shared.settings().auto_stop;
        let stopped = entry.state().live.is_none();
        let keep = |state: &mut State, keep_alive, temporary| {
            state.record.keep_alive = keep_alive;
            state.record.temporary = temporary;
            if state.live.is_some() {
                state.set_deadline(ClockTimes::now(), grace);
            }
        };
        let before = entry.record();
        if let Err(error) = entry.update(|state| keep(state, request.keep_alive, request.temporary))
        {
            // One that the caller was not told is temporary must not go with its next stop.
            keep(&mut entry.state(), before.keep_alive, before.temporary);
            return Err(error.into());
        }
        if request.temporary && stopped {
            // The stop came before this request, and so did not remove it.
            self.shared.remove_temporary(&entry);
        }
        self.shared.alarm.ring();
        Ok(shown(&entry))
    }

    pub fn list(&self) -> Vec<Sandbox> {
        let registry = lock(&self.shared.registry);
        let entries: Vec<_> = registry.entries.values().cloned().collect();
        let damaged = registry.damaged.iter();
        let mut sandboxes: Vec<_> = damaged
            .map(|(name, error)| {
                let dir = self.shared.config.state.sandbox(name);
                view::damaged(name.clone(), &dir, error)
            })
            .collect();
        drop(registry);
        let mounts = Mounts::now();
        sandboxes.extend(entries.iter().map(|entry| shown_among(entry, &mounts)));
        sandboxes.sort_by(|a, b| a.name.cmp(&b.name));
        sandboxes
    }

    /// The same in short.
    pub fn summaries(&self) -> Vec<Summary> {
        let registry = lock(&self.shared.registry);
        let entries: Vec<_> = registry.entries.values().cloned().collect();
        let damaged = registry.damaged.iter();
        let mut summaries: Vec<Summary> = damaged
            .map(|(name, error)| {
                let dir = self.shared.config.state.sandbox(name);
                view::damaged(name.clone(), &dir, error).into()
            })
            .collect();
        drop(registry);
        let mounts = Mounts::now();
        summaries.extend(entries.iter().map(|entry| {
            let (summary, workspaces) = {
                let state = entry.state();
                let summary = view::summary(&state.record, state.sessions);
                (summary, state.record.workspaces.clone())
            };
            Summary {
                workspaces: view::workspaces(summary.status, &workspaces, &mounts),
                ..summary
            }
        }));
        summaries.sort_by(|a, b| a.name.cmp(&b.name));
        summaries
    }

    /// What it uses now; with what its own files take on disk, which may take a while to find out.
    pub fn usage(&self, name: &str, with_disk: bool) -> Result<Usage, EngineError> {
        let entry = self.shared.entry(name)?;
        let (record, machines) = (entry.record(), &self.shared.config.machines);
        let usage = machines.usage(&record, &entry.dir);
        let disk_bytes = match with_disk {
            true => Some(machines.disk_usage(&record, &entry.dir)?),
            false => None,
        };
        Ok(Usage {
            disk_bytes,
            ..usage
        })
    }

    pub fn inspect(&self, name: &str) -> Result<Sandbox, EngineError> {
        let shared = &self.shared;
        match shared.entry(name) {
            Ok(entry) => Ok(shown(&entry)),
            Err(EngineError::Damaged { name, source }) => {
                let dir = shared.config.state.sandbox(&name);
                Ok(view::damaged(name, &dir, &source))
            }
            Err(error) => Err(error),
        }
    }
}

/// That it is still there, and the one with this id if that is said.
fn is_meant(entry: &Entry, id: Option<&str>) -> Result<(), EngineError> {
    let state = entry.state();
    if state.removed || id.is_some_and(|id| state.record.id != id) {
        return Err(EngineError::NotFound(entry.name.to_string()));
    }
    Ok(())
}

impl Shared {
    pub(crate) fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        lock(&self.registry).entries.values().cloned().collect()
    }

    fn halt_all(&self, entries: &[Arc<Entry>], reason: &str) {
        at_once(entries, |entry| {
            let _operation = entry.operate();
            if let Err(error) = self.halt(entry, reason) {
                tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot stop");
            }
        });
    }

    pub(crate) fn entry(&self, name: &str) -> Result<Arc<Entry>, EngineError> {
        let not_found = || EngineError::NotFound(name.to_owned());
        // What cannot be a name cannot be a sandbox.
        let name = SandboxName::parse(name).map_err(|_| not_found())?;
        let registry = lock(&self.registry);
        if registry.damaged.contains_key(&name) {
            let dir = self.config.state.sandbox(&name);
            return match Record::read(&dir) {
                Err(source) => Err(EngineError::Damaged { name, source }),
                Ok(_) => Err(EngineError::Repaired(name)),
            };
        }
        registry.entries.get(&name).cloned().ok_or_else(not_found)
    }

    /// The registry, with nothing of that name in it. A request for a name that is being removed, perhaps by
    /// the sweep of a create that a killed daemon did not finish, waits until that is done.
    fn with_free_name(&self, wanted: &Record) -> Result<MutexGuard<'_, Registry>, EngineError> {
        let name = &wanted.name;
        loop {
            let registry = lock(&self.registry);
            if registry.closed {
                return Err(EngineError::Closed);
            }
            if registry.damaged.contains_key(name) {
                return Err(EngineError::Exists(name.clone()));
            }
            let Some(entry) = registry.entries.get(name).cloned() else {
                return Ok(registry);
            };
            drop(registry);
            let known = entry.record();
            match known.status {
                Status::Removing => self.finish_removal(&entry)?,
                Status::Creating | Status::Running | Status::Stopped => {
                    return Err(taken(&known, wanted));
                }
            }
        }
    }

    /// The registry, with `wanted` under the first of its numbered names that is free. Two requests at the same time get
    /// different ones, because the lock is held from here to the entry in the registry.
    fn with_numbered_name(
        &self,
        wanted: &mut Record,
    ) -> Result<MutexGuard<'_, Registry>, EngineError> {
        let mut number = 1;
        loop {
            let name = SandboxName::of_vm(&wanted.agent, number)?;
            let registry = lock(&self.registry);
            if registry.closed {
                return Err(EngineError::Closed);
            }
            let Some(entry) = registry.entries.get(&name).cloned() else {
                // What is in the way of a name takes it as well.
                let dir = self.config.state.sandbox(&name);
                let in_the_way = std::fs::symlink_metadata(dir.path()).is_ok();
                if registry.damaged.contains_key(&name) || in_the_way {
                    number += 1;
                    continue;
                }
                wanted.name = name;
                return Ok(registry);
            };
            drop(registry);
            match entry.record().status {
                Status::Removing => self.finish_removal(&entry)?,
                Status::Creating | Status::Running | Status::Stopped => number += 1,
            }
        }
    }

    pub(crate) fn still_there(&self, entry: &Entry) -> Result<(), EngineError> {
        let state = entry.state();
        if state.removed {
            return Err(EngineError::NotFound(entry.name.to_string()));
        }
        match state.record.status {
            Status::Removing => Err(EngineError::Removing(entry.name.clone())),
            Status::Creating | Status::Running | Status::Stopped => Ok(()),
        }
    }

    fn free_ids(
        &self,
        registry: &Registry,
        backend: Backend,
        dir: &SandboxDir,
    ) -> Result<Ids, EngineError> {
        let mut used: Vec<_> = registry
            .entries
            .values()
            .filter_map(|entry| machine::id_range(&entry.state().record))
            .collect();
        used.extend(self.trash.id_ranges());
        self.config.machines.assign_ids(backend, &used, dir)
    }

    fn make_dir(&self, entry: &Entry) -> Result<(), EngineError> {
        use std::os::unix::fs::DirBuilderExt;
        let path = entry.dir.path();
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => Ok(()),
            // Of a sandbox it would be in the registry.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(EngineError::InTheWay {
                name: entry.name.clone(),
                path: path.to_owned(),
            }),
            Err(source) => Err(EngineError::Prepare {
                path: path.display().to_string(),
                source,
            }),
        }
    }

    fn write_and_boot(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        denied: Vec<Pattern>,
        file: ProxyFile,
        asked: Option<git_identity::Question>,
    ) -> Result<Vec<String>, EngineError> {
        entry.update(|_| {})?;
        let book = &self.config.book;
        book.begin_sandbox(&entry.name, denied, file, Timestamp::now())?;
        self.boot(entry, asked)
    }

    /// Who the caller is to git, unless the request says so.
    fn ask_git(&self, record: &Record) -> Option<git_identity::Question> {
        let Caller {
            git_name: None,
            git_email: None,
            ..
        } = record.caller
        else {
            return None;
        };
        let path = |workspace: &WorkspaceRecord| workspace.path.to_path_buf();
        let primary = record.primary().map(path)?;
        // Its own read-only ones as well: an earlier sandbox may have been able to write there.
        let own = record.workspaces.iter().map(path);
        let writable = self.writable();
        let untrusted = UntrustedPaths::new(
            own.map(UntrustedRoot::from)
                .chain(writable.iter().map(UntrustedRoot::from)),
        );
        Some(git_identity::ask(&record.caller, &primary, &untrusted))
    }

    /// What programs inside can write, in any sandbox, running or not.
    pub(crate) fn writable(&self) -> Vec<Writable> {
        let boot_id = boot_id().ok();
        let entries = self.entries();
        let workspaces = entries.iter().flat_map(|entry| {
            let shared = entry.state().record.shared_directories();
            let writable = shared.into_iter().filter(|workspace| !workspace.readonly);
            let boot_id = boot_id.clone();
            writable.map(move |workspace| Writable {
                sandbox: entry.name.clone(),
                path: workspace.path.to_path_buf(),
                // Devices are numbered anew at every boot.
                node: workspace
                    .identity
                    .filter(|identity| Some(&identity.boot_id) == boot_id.as_ref())
                    .map(|identity| (identity.device, identity.inode)),
            })
        });
        workspaces.collect()
    }

    /// Versions of templates that any sandbox was created or started with.
    pub(crate) fn fingerprints(&self) -> BTreeSet<String> {
        let entries = self.entries();
        entries
            .iter()
            .flat_map(|entry| {
                let template = entry.state().record.template.clone();
                [template.fingerprint, template.started_with]
            })
            .flatten()
            .collect()
    }

    /// Nothing is left of it.
    pub(crate) fn forget(&self, entry: &Entry) {
        // While the name is still taken: the rules of the next one that has it are its own.
        self.forget_rules(&entry.name);
        entry.state().removed = true;
        lock(&self.registry).entries.remove(&entry.name);
    }

    /// Rules that cannot be removed now are removed when the name is used again.
    pub(crate) fn forget_rules(&self, name: &SandboxName) {
        if let Err(error) = self.config.book.forget_sandbox(name) {
            tracing::warn!(sandbox = %name, error = chain(&error), "its network rules stay for now");
        }
    }
}

fn started(entry: &Entry, started: bool, warnings: Vec<String>) -> Started {
    Started {
        exec_socket: format!("vm/{}/{EXEC_SOCKET}", entry.name),
        started,
        warnings,
        notices: Vec::new(),
    }
}

fn shown(entry: &Entry) -> Sandbox {
    shown_among(entry, &Mounts::now())
}

fn shown_among(entry: &Entry, mounts: &Mounts) -> Sandbox {
    let (record, sessions) = {
        let state = entry.state();
        (state.record.clone(), state.sessions)
    };
    view::sandbox(record, sessions, mounts)
}

/// Why `wanted` cannot be made: who follows the advice must not end up in the sandbox of another project.
fn taken(known: &Record, wanted: &Record) -> EngineError {
    let primary = |record: &Record| Some(record.primary()?.path.to_path_buf());
    let name = known.name.clone();
    match primary(known) {
        Some(workspace) if primary(wanted).as_ref() != Some(&workspace) => {
            EngineError::ExistsElsewhere {
                name,
                workspace: workspace.display().to_string(),
            }
        }
        _ => EngineError::Exists(name),
    }
}

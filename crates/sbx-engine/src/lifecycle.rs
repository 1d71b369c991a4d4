//! How a sandbox is started and watched. [`stop`], [`remove`] and [`recovery`] have the rest of its life. The caller holds
//! the operation lock of the sandbox.
//!
//! From the start to the end of its machine a thread per sandbox ([`Shared::follow`]) reads what init reports. It alone
//! declares a machine gone, after the process has been waited for: a stop asks or kills, and waits for that.

pub(crate) mod auto_stop;
mod cache;
pub(crate) mod create;
pub(crate) mod entry;
pub(crate) mod hand_over;
pub(crate) mod mounts;
pub(crate) mod ports;
mod recovery;
mod remove;
pub(crate) mod reset;
mod save;
mod stop;
pub(crate) mod trash;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sbx_api::Network;

use crate::engine::Shared;
use crate::error::{EngineError, chain, prepare_error};
use crate::machine::control::{Event, Link};
use crate::machine::egress::Redirect;
use crate::machine::ingress::HostSocket;
use crate::machine::process::Process;
use crate::machine::{Booted, Machine, Surroundings, remove_exec_socket};
use crate::sandbox::git_identity::{Identity, Question};
use crate::sandbox::ports::PortRecord;
use crate::threads::lock;
use crate::workspace::{self, worktree};
use auto_stop::ClockTimes;
use entry::{Entry, Live};
use hand_over::{HAND_OVER_TIMEOUT, SHORT_HAND_OVER_TIMEOUT};

/// Stop reason of a sandbox that is removed.
pub(crate) const REMOVED: &str = "removed";
/// How long init has to end by itself, after the processes inside, before it is killed.
const INIT_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// A record is written when nothing has happened for that long: a command per millisecond must not cost a
/// write per millisecond.
const RECORD_WRITE_DELAY: Duration = Duration::from_millis(250);
const WATCH_STACK: usize = 256 << 10;
const MOUNT_LOST: &str = "a read-only part of a writable workspace was replaced on the host";
const PROTOCOL_VIOLATION: &str = "init violated the protocol";
const TEMPLATE_CHANGED: &str = "the host's files changed since this sandbox was created; hint: `sbx rm` it and create it again";

impl Shared {
    /// Before a start on request: not while the daemon ends, and after what is about to end has ended.
    pub(crate) fn make_startable(&self, entry: &Entry) -> Result<(), EngineError> {
        // Asked with the operation lock held: `stop_for_good` sets `closed` first and takes that lock afterwards.
        if lock(&self.registry).closed {
            return Err(EngineError::Closed);
        }
        self.halt(entry, "restarted")
    }

    /// Starts the machine of a sandbox that has none. A new sandbox has asked git something. Returns what the user
    /// should know.
    pub(crate) fn boot(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        asked: Option<Question>,
    ) -> Result<Vec<String>, EngineError> {
        self.hand_over(entry, SHORT_HAND_OVER_TIMEOUT);
        self.take_cache(entry)?;
        self.boot_with_cache(entry, asked)
            .inspect_err(|_| self.release_cache(entry))
    }

    fn boot_with_cache(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        asked: Option<Question>,
    ) -> Result<Vec<String>, EngineError> {
        let (state, machines) = (&self.config.state, &self.config.machines);
        let mut record = entry.record();
        mounts::settle(&mut record);
        let found = workspace::resolve_again(&record.workspaces, state.root())?;
        let git = worktree::find_again(&record.git, &found.workspaces, state.root())?;
        record.git.clone_from(&git.shares);
        let surroundings = Surroundings {
            writable: &|| self.writable(),
            go_build_cache: self.settings().go_build_cache,
            set_started_with: &|fingerprint| {
                entry.state().record.template.started_with = Some(fingerprint.to_owned());
            },
            fingerprints: &|| self.fingerprints(),
        };
        let mut prepared = machines.prepare(state, &record, &found.workspaces, &surroundings)?;
        let mut warnings = std::mem::take(&mut prepared.warnings);
        warnings.extend(found.warnings);
        warnings.extend(git.warnings);
        let made_with = record.template.fingerprint.as_ref();
        if made_with.is_some_and(|made_with| *made_with != prepared.fingerprint) {
            warnings.push(TEMPLATE_CHANGED.into());
        }
        let identity = asked.map(Question::answer);
        let record = {
            let record = &mut entry.state().record;
            if let Some(Identity { name, email }) = identity {
                record.caller.git_name = name;
                record.caller.git_email = email;
            }
            record.workspaces = found.workspaces;
            record.git = git.shares;
            record.mounts = std::mem::take(&mut prepared.mounts);
            record.sources = std::mem::take(&mut prepared.sources);
            record
                .template
                .fingerprint
                .get_or_insert_with(|| prepared.fingerprint.clone());
            for warning in &warnings {
                if !record.warnings.contains(warning) {
                    record.warnings.push(warning.clone());
                }
            }
            record.clone()
        };
        // Before anything runs: a port that is taken is the most likely thing to fail.
        let ports = self.bind_ports(entry)?;
        let authority = self.config.egress.authority(&record.id, &entry.dir);
        let authority = authority.map_err(EngineError::Egress)?;
        entry
            .dir
            .link_docker_socket()
            .map_err(|e| prepare_error(&entry.dir.docker_socket(), e))?;
        let booted = machines.boot(&record, &entry.dir, &prepared, authority)?;
        self.take_up(entry, booted, ports)?;
        Ok(warnings)
    }

    fn take_up(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        booted: Booted,
        ports: Vec<(PortRecord, HostSocket)>,
    ) -> Result<(), EngineError> {
        let Booted { mut machine, init } = booted;
        let published = ports.iter().map(|(port, _)| port.clone()).collect();
        let served = self
            .serve_network(entry, &mut machine.link)
            .and_then(|()| self.serve_ports(entry, ports));
        if let Err(error) = served {
            self.close_network(entry);
            machine.process.end();
            remove_exec_socket(&entry.dir);
            return Err(error);
        }
        // In memory before it is watched: init may end at once, and that has to be the last word.
        {
            let record = &mut entry.state().record;
            record.set_running(init, Timestamp::now());
            record.ports = published;
        }
        self.watch(entry, machine, 0)?;
        if let Err(error) = entry.update(|_| {}) {
            self.halt(entry, "its record could not be written")?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Has the sandbox's network served, before any client is told that it runs.
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

    /// Nothing goes in or out any more.
    fn close_network(&self, entry: &Entry) {
        self.config.ingress.detach(&entry.name);
        self.config.egress.detach(&entry.name);
    }

    /// Makes the sandbox live, with `running` commands: from here on a thread follows what its init reports.
    pub(crate) fn watch(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        machine: Machine,
        running: u32,
    ) -> Result<(), EngineError> {
        let Machine { link, process } = machine;
        let failed = |source: io::Error| {
            process.end();
            self.close_network(entry);
            remove_exec_socket(&entry.dir);
            let mut state = entry.state();
            state.live = None;
            let reason = "the daemon could not follow it".into();
            state.record.set_stopped(reason, Timestamp::now());
            prepare_error(entry.dir.path(), source)
        };
        let sender = link.sender().map_err(failed)?;
        let (shared, watched, followed) = (Arc::clone(self), Arc::clone(entry), process.clone());
        let mut state = entry.state();
        state.stopping = None;
        state.set_sessions(running, ClockTimes::now(), self.settings().auto_stop);
        state.live = Some(Live {
            sender,
            process: process.clone(),
        });
        drop(state);
        self.alarm.ring();
        let spawned = std::thread::Builder::new()
            .name("watch".into())
            .stack_size(WATCH_STACK)
            .spawn(move || shared.follow(&watched, link, &followed));
        spawned.map(drop).map_err(failed)
    }

    fn follow(self: &Arc<Self>, entry: &Arc<Entry>, mut link: Link, process: &Process) {
        let reason = self.listen(entry, &mut link);
        // A start or stop from here on has to wait for its end, which may take a while.
        entry.set_ending(reason);
        // An init that closes the connection properly is ending by itself.
        let ended = reason != PROTOCOL_VIOLATION && process.wait_timeout(INIT_EXIT_TIMEOUT);
        if !ended && let Err(error) = process.kill() {
            tracing::error!(sandbox = %entry.name, %error, "cannot kill init");
        }
        if let Err(error) = process.wait() {
            tracing::error!(sandbox = %entry.name, %error, "cannot wait for init");
        }
        self.close_network(entry);
        // In the place of an abandoned state directory there may be another daemon's by now.
        if !entry.state().removed {
            remove_exec_socket(&entry.dir);
        }
        // A removal hands over by itself, with a timeout of its own.
        if entry.state().stopping.as_deref() != Some(REMOVED) {
            self.hand_over(entry, HAND_OVER_TIMEOUT);
        }
        let cache = entry.state().record.held_cache().map(str::to_owned);
        if let Err(error) = entry.set_gone() {
            tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
        }
        let record = entry.record();
        tracing::info!(sandbox = %entry.name, reason = record.stop_reason, "stopped");
        if let Some(cache) = cache {
            self.trim_caches(cache);
        }
        if record.temporary {
            self.remove_temporary(entry);
        }
    }

    /// Reads what init reports until it ends or violates the protocol; says which.
    fn listen(&self, entry: &Entry, link: &mut Link) -> &'static str {
        // What create or start wrote is made durable (fsync) here, where no client waits for the disk.
        let mut unwritten = true;
        loop {
            let event = link.next(unwritten.then_some(RECORD_WRITE_DELAY));
            // The settings may have changed since.
            let grace = self.settings().auto_stop;
            match event {
                Ok(Event::Commands { running }) => {
                    entry
                        .state()
                        .set_sessions(running, ClockTimes::now(), grace);
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
                    tracing::error!(sandbox = %entry.name, error = chain(&error), "init violated the protocol");
                    return PROTOCOL_VIOLATION;
                }
            }
        }
    }
}

//! The boot half of a sandbox's life: the template and the files that its plan refers to, then the helper.
//!
//! Templates are shared by sandboxes and removed when no sandbox was started with them. The lock on `template` covers
//! finding or building one, recording its fingerprint and retiring the unused, so that no start loses its template to
//! another. The listening socket and the log files are opened here, outside, and passed to init as descriptors: init has
//! no way to the state directory.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sbx_api::Limits;
use sbx_proto::OsBytes;
use sbx_proto::plan::{Ids, Mode, Task};

use super::helper::BootFiles;
use super::limits::{self, LimitError};
use super::plan::{BUNDLES, SandboxFiles, Sudo, Trust, boot_plan, mounts};
use super::template::{self, HostLayout, LayoutRequest};
use super::{Namespace, cgroup, disk, groups_of, ids};
use crate::cache::CacheStore;
use crate::error::{EngineError, chain, prepare_error};
use crate::machine::egress::Certificate;
use crate::machine::process::{Process, identify};
use crate::machine::{Disk, Prepared, Surroundings, remove_exec_socket};
use crate::sandbox::record::{InitProcess, Record, WorkspaceRecord};
use crate::state::remove_tree::remove_tree;
use crate::state::socket::bind_unix;
use crate::state::{EXEC_SOCKET, SandboxDir, StateDir, make_private_dirs, private};
use crate::threads::{lock, spawn};
use crate::workspace::untrusted::UntrustedPaths;

impl Namespace {
    pub(in crate::machine) fn prepare(
        self: &Arc<Self>,
        state: &StateDir,
        record: &Record,
        workspaces: &[WorkspaceRecord],
        surroundings: &Surroundings<'_>,
    ) -> Result<Prepared, EngineError> {
        let (_, lacking) =
            limits::enforceable(&record.limits, &record.limits_required, &self.support())?;
        let mut layout = self.layout(state, record, surroundings)?;
        let primary = workspaces.first().filter(|first| !first.added);
        if let (Some(id), Some(primary)) = (record.held_cache(), primary) {
            let layers = CacheStore::new(state).layers(id);
            layout.keep_caches(layers, (primary.uid, primary.gid));
        }
        self.add_saved(state, record, &mut layout)?;
        let sources = layout.sources.iter();
        Ok(Prepared {
            fingerprint: layout.fingerprint.clone(),
            sources: sources
                .map(|(path, real)| (path.as_path().into(), real.as_path().into()))
                .collect(),
            mounts: mounts(workspaces, record, &layout),
            warnings: std::mem::take(&mut layout.warnings)
                .into_iter()
                .chain(lacking)
                .collect(),
            disk: Disk::Namespace(layout),
        })
    }

    /// The template for a start. The version that the sandbox starts with is noted before templates that are not in use
    /// are removed, so that a start at the same time keeps its own.
    fn layout(
        self: &Arc<Self>,
        state: &StateDir,
        record: &Record,
        surroundings: &Surroundings<'_>,
    ) -> Result<HostLayout, EngineError> {
        let _template = lock(&self.template);
        let store = state.templates();
        let remove = |path: &Path| self.remove_template(&record.ids, path);
        let build = |path: &Path, spec: &str| {
            let spec = spec.to_owned();
            self.perform(
                &record.ids,
                Task::BuildTemplate {
                    path: path.into(),
                    spec,
                },
            )
        };
        let progress = |text: &str| tracing::info!(sandbox = %record.name, "{text}");
        let path = |path: &OsBytes| path.to_path_buf();
        let shared = record.shared_directories();
        let workspaces: Vec<_> = shared.iter().map(|w| w.place().to_path_buf()).collect();
        let sources = record.sources.iter().map(|(a, b)| (path(a), path(b)));
        let layout = template::ensure(
            &store,
            LayoutRequest {
                caller: &record.caller,
                workspaces: &workspaces,
                untrusted: &UntrustedPaths::new(&(surroundings.writable)()),
                sources: &sources.collect(),
                go_build_cache: surroundings.go_build_cache,
            },
            record.ids.mode,
            &build,
            &remove,
            &progress,
        )?;
        (surroundings.set_started_with)(&layout.fingerprint);
        match template::retire_unused(&store, &(surroundings.fingerprints)()) {
            Ok(retired) if retired.is_empty() => {}
            Ok(retired) => self.remove_retired(retired, record.ids.clone()),
            Err(error) => tracing::warn!(error = chain(&error), "cannot retire old templates"),
        }
        Ok(layout)
    }

    /// In the background: tens of thousands of files, which takes a minute on some disks.
    fn remove_retired(self: &Arc<Self>, retired: Vec<PathBuf>, ids: Ids) {
        let backend = Arc::clone(self);
        spawn("clean-up", move || {
            let _one_at_a_time = lock(&backend.template_removal);
            for path in retired {
                // Another thread may have removed it while this one waited for the lock.
                if path.exists()
                    && let Err(error) = backend.remove_template(&ids, &path)
                {
                    tracing::warn!(error, "cannot remove an old template");
                }
            }
        });
    }

    fn remove_template(&self, ids: &Ids, path: &Path) -> Result<(), String> {
        self.perform(ids, Task::RemoveTree { path: path.into() })
    }

    fn perform(&self, ids: &Ids, task: Task) -> Result<(), String> {
        self.helper.perform(ids, task).map_err(|e| chain(&e))
    }

    /// Starts init; with it which process that is, if that can be told.
    pub(in crate::machine) fn boot(
        &self,
        record: &Record,
        dir: &SandboxDir,
        layout: &HostLayout,
        authority: Certificate,
    ) -> Result<(io::Result<InitProcess>, Process), EngineError> {
        let sudo = if self.helper.has_sudo() {
            Sudo::Install
        } else {
            Sudo::Absent
        };
        let (limits, _) =
            limits::enforceable(&record.limits, &record.limits_required, &self.support())?;
        let own = sandbox_files(dir, record, layout, sudo, limits.disk_bytes)?;
        let files = boot_files(dir).map_err(|e| prepare_error(dir.path(), e))?;
        let plan_limits = limits::current(&limits);
        let plan = boot_plan(record, layout, &own, &trust(authority), plan_limits);
        let groups = self.groups(record, dir, &limits)?;
        let booted = self
            .helper
            .boot(&plan, &files, &groups)
            .inspect_err(|_| remove_exec_socket(dir))?;
        // Init has its own copies. While ours of the listener is open, connecting to a dead init would hang instead of
        // being refused.
        drop(files);
        Ok((identify(booted.pid), Process::new(booted.pidfd)))
    }

    /// Files of the sandbox's control groups, which are noted before they are made.
    fn groups(
        &self,
        record: &Record,
        dir: &SandboxDir,
        limits: &Limits,
    ) -> Result<Vec<fs::File>, EngineError> {
        let controllers = self.controllers();
        let mut groups = groups_of(dir);
        let known = groups.len();
        for group in controllers.groups(&record.id) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        if groups.len() > known {
            let mut list = Vec::new();
            for group in &groups {
                list.extend_from_slice(group.as_os_str().as_bytes());
                list.push(b'\n');
            }
            let file = private().create(true).truncate(true).open(dir.groups());
            let written = file.and_then(|mut file| file.write_all(&list));
            written.map_err(|e| prepare_error(&dir.groups(), e))?;
        }
        let prepared = controllers.prepare(&record.id, limits);
        Ok(prepared.map_err(LimitError::Group)?)
    }
}

/// The directories and files that a plan refers to.
fn sandbox_files(
    dir: &SandboxDir,
    record: &Record,
    layout: &HostLayout,
    sudo: Sudo,
    disk_bytes: Option<u64>,
) -> Result<SandboxFiles, EngineError> {
    let layers = dir.layers();
    let disk = match disk_bytes.zip(ids::base(&record.ids)) {
        Some((bytes, base)) => Some(disk::ensure(dir, bytes, base)?),
        None => None,
    };
    let made = || {
        make_private_dirs(&layers)?;
        // Root of the user namespace creates the upper and work directories in it.
        let base = ids::base(&record.ids);
        chown(&layers, base, base)?;
        if let Some(kept) = &layout.kept {
            open_kept(&kept.layers, base)?;
        }
        let mut files = Vec::new();
        for (target, content) in
            template::etc_files(record.name.as_str(), &layout.env, &record.caller)
        {
            let source = dir.path().join(target);
            write_readable(&source, content.as_bytes())?;
            files.push((source, Path::new("/").join(target)));
        }
        Ok(SandboxFiles {
            layers: layers.clone(),
            disk,
            files,
            shown_group: match record.ids.mode {
                Mode::Root => cgroup::shown(),
                // Their groups are in the user's own, beside other processes of the user.
                Mode::Subordinate | Mode::Single => None,
            },
            sudo,
        })
    };
    made().map_err(|e| prepare_error(dir.path(), e))
}

/// Makes the layers of a build cache those of this sandbox, whose ids are not those of the one before in root mode: the
/// files in the upper directories belong to the owner of the repository, but what is around them to root inside.
fn open_kept(layers: &Path, base: Option<u32>) -> io::Result<()> {
    if base.is_none() {
        return Ok(());
    }
    chown(layers, base, base)?;
    for dir in fs::read_dir(layers)? {
        let dir = dir?.path();
        chown(&dir, base, base)?;
        remove_tree(&dir.join("work")).map_err(io::Error::other)?;
    }
    Ok(())
}

fn trust(certificate: Certificate) -> Trust {
    let mut bundles = BUNDLES.iter().copied();
    let first = bundles.clone().next().unwrap_or_default();
    Trust {
        certificate: certificate.pem,
        certificate_base64: certificate.base64,
        // The sandbox has the host's own distribution.
        bundle: bundles
            .find(|bundle| Path::new(bundle).is_file())
            .unwrap_or(first),
    }
}

/// A file that every user inside may read.
fn write_readable(path: &PathBuf, content: &[u8]) -> io::Result<()> {
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

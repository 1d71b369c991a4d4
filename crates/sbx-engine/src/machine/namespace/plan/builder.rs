//! The steps of a boot plan, in the order in which the helper applies them.
//!
//! The order is what the result depends on. Layers come first, so that later mounts cover them; links to workspaces before
//! the workspaces, while nothing that programs inside can write is mounted; masks after what they cover; and directories
//! are closed last, when everything below them is mounted. A [`Source`] is opened on the host side by its number, and a
//! [`Step`] names it by that number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sbx_proto::OsBytes;
use sbx_proto::plan::{Access, GitWorktree, Mode, Owner, Source, SourceIds, Step};

use super::pins::{masks, pins};
use super::{BUNDLES, CA_FILE, SUDO, SandboxFiles, Sudo, Trust, owner_ids, shared_source};
use crate::machine::namespace::devices;
use crate::machine::namespace::template::{HostBind, HostLayout, OverlayDir, SavedLayers};
use crate::sandbox::record::{GitDirectory, Identity, Record, WorkspaceRecord};
use crate::workspace::in_mount_order;

/// An unmasked proc and sysfs lie here, where no program can look: the kernel refuses both to nested user
/// namespaces unless a whole instance is mounted somewhere.
const HIDDEN: &str = "/run/.visible";
/// For tidiness; what protects is that no id inside is the host's root.
pub(super) const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
];

/// Where programs look for control groups.
const GROUPS: &str = "/sys/fs/cgroup";

pub(super) struct Builder {
    mode: Mode,
    pub(super) sources: Vec<Source>,
    pub(super) steps: Vec<Step>,
    /// Those among the steps, by their numbers.
    whiteouts: Vec<Step>,
    /// Of the template that the sandbox is made from, if that was saved.
    saved: Vec<SavedLayers>,
    /// Whether the sandbox goes when it stops.
    temporary: bool,
    /// The layers that outlive it all the same.
    kept: Option<usize>,
}

impl Builder {
    pub(super) fn new(mode: Mode, temporary: bool) -> Self {
        Self {
            mode,
            temporary,
            kept: None,
            sources: Vec::new(),
            steps: Vec::new(),
            whiteouts: Vec::new(),
            saved: Vec::new(),
        }
    }

    /// The root file system, the host's directories in it, and the caller's tools.
    pub(super) fn root(&mut self, layout: &HostLayout, files: &SandboxFiles) {
        let upper = match &files.disk {
            Some(image) => self.disk(image),
            None => self.layer(&files.layers, SourceIds::Plain),
        };
        let template = layout.root_lower.parent().unwrap_or(&layout.root_lower);
        self.saved.clone_from(&layout.saved);
        self.overlay(
            &OverlayDir {
                target: "/".into(),
                lowers: vec![layout.root_lower.clone()],
                dir: "root".into(),
                agents: BTreeSet::new(),
                as_owner: None,
                hidden: BTreeSet::new(),
            },
            upper,
            template,
        );
        for dir in &layout.overlays {
            self.overlay(dir, upper, template);
        }
        for bind in &layout.system {
            self.host_bind(bind);
        }
        for target in &layout.masked {
            self.steps.push(Step::Mask {
                target: target.as_path().into(),
            });
        }
        for root in &layout.roots {
            self.steps.push(Step::Tmpfs {
                target: root.as_path().into(),
                mode: 0o755,
            });
        }
        for bind in &layout.binds {
            self.host_bind(bind);
        }
        for (target, to) in &layout.links {
            self.steps.push(Step::Symlink {
                target: target.as_path().into(),
                to: to.as_path().into(),
            });
        }
        for dir in &layout.dirs {
            self.steps.push(Step::Dir {
                target: dir.as_path().into(),
                mode: 0o755,
                owner: Owner::Agent,
            });
        }
        self.caches(layout, upper, template);
        for (source, target) in &files.files {
            self.bind(
                target,
                Source {
                    path: source.as_path().into(),
                    ids: SourceIds::Plain,
                    access: Access::ReadOnly,
                    recursive: false,
                    node: None,
                },
            );
        }
        self.dir("/tmp", 0o1777);
        match (self.mode, files.sudo) {
            (Mode::Root | Mode::Subordinate, Sudo::Install) => self.steps.push(Step::Install {
                target: SUDO.into(),
            }),
            // With one id there is no other that a setuid program could change to.
            (Mode::Single, _) | (_, Sudo::Absent) => {}
        }
    }

    fn caches(&mut self, layout: &HostLayout, own: usize, template: &Path) {
        let kept = layout.kept.as_ref().map(|kept| {
            // The next sandbox has other ids; the files are the owner's to all of them.
            let ids = owner_ids(self.mode, kept.owner.0, kept.owner.1);
            (&kept.dirs, self.layer(&kept.layers, ids))
        });
        self.kept = kept.map(|(_, layer)| layer);
        for dir in &layout.caches {
            let upper = match kept {
                Some((dirs, layer)) if dirs.contains(&dir.dir) => layer,
                Some(_) | None => own,
            };
            self.overlay(dir, upper, template);
        }
    }

    pub(super) fn trust(&mut self, trust: &Trust) {
        self.steps.push(Step::Trust {
            certificate: trust.certificate.clone(),
            file: CA_FILE.into(),
            bundles: BUNDLES.iter().map(|bundle| (*bundle).into()).collect(),
        });
    }

    /// What every Linux system has beside its files.
    pub(super) fn system(&mut self) {
        self.tmpfs("/run", 0o755);
        // Where `/var/lock` leads.
        self.dir("/run/lock", 0o1777);
        self.proc_and_sys("");
        self.tmpfs("/dev", 0o755);
        for name in devices::NAMES {
            let path = Path::new(devices::DIRECTORY).join(name);
            self.bind(
                &path,
                Source {
                    path: path.as_path().into(),
                    ids: SourceIds::Plain,
                    access: Access::Device,
                    recursive: false,
                    node: None,
                },
            );
        }
        self.steps.push(Step::Devpts {
            target: "/dev/pts".into(),
        });
        self.tmpfs("/dev/shm", 0o1777);
        self.dir("/dev/mqueue", 0o755);
        for (target, to) in [
            ("/dev/ptmx", "pts/ptmx"),
            ("/dev/fd", "/proc/self/fd"),
            ("/dev/stdin", "/proc/self/fd/0"),
            ("/dev/stdout", "/proc/self/fd/1"),
            ("/dev/stderr", "/proc/self/fd/2"),
        ] {
            self.steps.push(Step::Symlink {
                target: target.into(),
                to: to.into(),
            });
        }
        self.proc_and_sys(HIDDEN);
        // Closed only after the mounts below it are there.
        self.dir(HIDDEN, 0);
        for target in MASKED {
            self.steps.push(Step::Mask {
                target: (*target).into(),
            });
        }
    }

    /// Programs that start containers look at the file system type there, and take an empty directory of sysfs for an error.
    pub(super) fn groups(&mut self, files: &SandboxFiles) {
        let Some(group) = &files.shown_group else {
            return self.steps.push(Step::Mask {
                target: GROUPS.into(),
            });
        };
        self.bind(
            Path::new(GROUPS),
            Source {
                path: group.as_path().into(),
                ids: SourceIds::Plain,
                access: Access::ReadOnly,
                recursive: false,
                node: None,
            },
        );
    }

    /// Before the workspaces are mounted: a link that programs inside have planted leads to the sandbox's own layer then.
    /// A name in a workspace is there already, with the link that it leads by.
    pub(super) fn aliases(&mut self, workspaces: &[WorkspaceRecord]) {
        for workspace in workspaces {
            let (Some(given), None) = (&workspace.given, &workspace.target) else {
                continue;
            };
            let mut around = workspaces.iter().map(WorkspaceRecord::place);
            if !around.any(|outer| given.as_path().starts_with(outer)) {
                self.steps.push(Step::Alias {
                    target: given.clone(),
                    to: workspace.path.clone(),
                });
            }
        }
    }

    pub(super) fn workspaces(&mut self, workspaces: &[WorkspaceRecord]) {
        let mut all = workspaces.to_vec();
        all.extend(pins(workspaces));
        for workspace in in_mount_order(&all) {
            let source = shared_source(workspace, self.mode);
            self.bind(workspace.place(), source);
        }
        for target in masks(workspaces) {
            self.steps.push(Step::Mask {
                target: target.as_path().into(),
            });
        }
    }

    /// The worktree's own directory and the reflogs are private to the sandbox: git makes lock files in them and renames
    /// these, so that no single file can be shared, and all that may lie beside the index (rebase todo lists, `gitdir`,
    /// `config.worktree`, links) would act on the host. Init publishes the index, HEAD and lines of reflogs from there.
    pub(super) fn git(&mut self, record: &Record, files: &SandboxFiles) -> Vec<GitWorktree> {
        let upper = self.layer(&files.layers, SourceIds::Plain);
        let mut worktrees = Vec::new();
        let mut logs_of: BTreeMap<OsBytes, OsBytes> = BTreeMap::new();
        for (number, share) in record.shared_git().enumerate() {
            if !share.write {
                continue;
            }
            let logs = share.common.as_path().join("logs");
            let admin = &share.admin;
            if !logs_of.contains_key(&share.common) {
                self.private_copy(&logs, admin, upper, format!("git-{number}-logs"));
                logs_of.insert(share.common.clone(), logs.as_path().into());
            }
            self.private_copy(admin.path.as_path(), admin, upper, format!("git-{number}"));
            let host = self.unattached(admin.path.as_path(), admin, admin.identity.as_ref());
            let logs_directory = share
                .directories
                .iter()
                .find(|it| it.path.as_path() == logs);
            let identity = logs_directory.and_then(|it| it.identity.as_ref());
            let host_logs = self.unattached(&logs, admin, identity);
            worktrees.push(GitWorktree {
                directory: admin.path.clone(),
                host,
                logs: logs.as_path().into(),
                host_logs,
            });
        }
        worktrees
    }

    /// What is there on the host, with a layer of the sandbox's own above it.
    fn private_copy(&mut self, path: &Path, owner: &GitDirectory, upper: usize, dir: String) {
        let overlay = OverlayDir {
            target: path.to_path_buf(),
            lowers: vec![path.to_path_buf()],
            dir,
            agents: BTreeSet::new(),
            as_owner: Some((owner.uid, owner.gid)),
            hidden: BTreeSet::new(),
        };
        // No template has it.
        self.overlay(&overlay, upper, Path::new("/dev/null"));
    }

    /// A source for init alone: it is mounted nowhere.
    fn unattached(
        &mut self,
        path: &Path,
        owner: &GitDirectory,
        identity: Option<&Identity>,
    ) -> usize {
        self.sources.push(Source {
            path: path.into(),
            ids: owner_ids(self.mode, owner.uid, owner.gid),
            access: Access::ReadWrite,
            recursive: false,
            node: identity.map(Identity::node),
        });
        self.sources.len() - 1
    }

    /// Last: a workspace may lie in one of them.
    pub(super) fn close(&mut self, layout: &HostLayout) {
        let close = layout.roots.iter().map(|root| Step::Close {
            target: root.as_path().into(),
        });
        self.steps.extend(close);
    }

    fn overlay(&mut self, dir: &OverlayDir, upper: usize, template: &Path) {
        let ids = |lower: &Path| match (self.mode, dir.as_owner) {
            (Mode::Root, Some((uid, gid))) if !lower.starts_with(template) => {
                SourceIds::Owner { uid, gid }
            }
            // What the template holds belongs to root inside; the host's own files keep the host's ids, so
            // that the kernel decides who reads them.
            (Mode::Root, _) if lower.starts_with(template) => SourceIds::Shifted,
            (Mode::Root, _) | (Mode::Subordinate | Mode::Single, _) => SourceIds::Plain,
        };
        let lowers: Vec<_> = dir.lowers.iter().map(|lower| (lower, ids(lower))).collect();
        let lowers = lowers
            .into_iter()
            .map(|(lower, ids)| self.layer(lower, ids))
            .collect();
        let owner = match dir.as_owner {
            Some(_) => Owner::Agent,
            None => Owner::Root,
        };
        let saved = self.saved_layers(&dir.dir);
        let whiteouts =
            (!dir.hidden.is_empty()).then(|| self.whiteout_layer(&dir.hidden, &dir.agents, owner));
        self.steps.push(Step::Overlay {
            target: dir.target.as_path().into(),
            lowers,
            whiteouts,
            saved,
            upper,
            dir: dir.dir.clone(),
            owner,
            volatile: self.temporary && self.kept != Some(upper),
        });
    }

    fn saved_layers(&mut self, dir: &str) -> Vec<usize> {
        let with_it = self.saved.iter().filter(|saved| saved.dirs.contains(dir));
        let layers: Vec<_> = with_it
            .map(|saved| {
                let ids = match (self.mode, saved.base) {
                    (Mode::Root, Some(base)) => SourceIds::Range { base },
                    (Mode::Root | Mode::Subordinate | Mode::Single, _) => SourceIds::Plain,
                };
                (saved.layers.join(dir), ids)
            })
            .collect();
        layers
            .iter()
            .map(|(path, ids)| self.layer(path, *ids))
            .collect()
    }

    fn proc_and_sys(&mut self, below: &str) {
        self.steps.push(Step::Proc {
            target: format!("{below}/proc").into(),
        });
        self.steps.push(Step::Sysfs {
            target: format!("{below}/sys").into(),
        });
    }

    fn tmpfs(&mut self, target: &str, mode: u32) {
        self.steps.push(Step::Tmpfs {
            target: target.into(),
            mode,
        });
    }

    fn dir(&mut self, target: &str, mode: u32) {
        self.steps.push(Step::Dir {
            target: target.into(),
            mode,
            owner: Owner::Root,
        });
    }

    fn host_bind(&mut self, bind: &HostBind) {
        let source = Source {
            path: bind.source.as_path().into(),
            ids: SourceIds::Plain,
            access: Access::ReadOnly,
            recursive: !bind.layered,
            node: None,
        };
        if !bind.layered {
            return self.bind(&bind.target, source);
        }
        self.sources.push(source);
        let whiteouts = self.whiteout_layer(&bind.hidden, &BTreeSet::new(), Owner::Root);
        self.steps.push(Step::BindHidden {
            target: bind.target.as_path().into(),
            source: self.sources.len() - 1,
            whiteouts,
        });
    }

    /// The number of the whiteout layer that hides these paths. Most tool chains hide the same.
    fn whiteout_layer(
        &mut self,
        hidden: &BTreeSet<PathBuf>,
        agents: &BTreeSet<PathBuf>,
        owner: Owner,
    ) -> usize {
        let list = |paths: &BTreeSet<PathBuf>| {
            let paths = paths.iter().map(|path| path.as_path().into());
            paths.collect()
        };
        let whiteouts = Step::Whiteouts {
            hidden: list(hidden),
            agents: list(agents),
            owner,
        };
        if let Some(known) = self.whiteouts.iter().position(|known| *known == whiteouts) {
            return known;
        }
        self.whiteouts.push(whiteouts.clone());
        self.steps.push(whiteouts);
        self.whiteouts.len() - 1
    }

    /// Every bind has a source of its own: a mount can be put in one place only.
    fn bind(&mut self, target: &Path, source: Source) {
        self.sources.push(source);
        self.steps.push(Step::Bind {
            target: target.into(),
            source: self.sources.len() - 1,
        });
    }

    fn disk(&mut self, image: &Path) -> usize {
        self.sources.push(Source {
            path: image.into(),
            ids: SourceIds::Plain,
            access: Access::Disk,
            recursive: false,
            node: None,
        });
        self.sources.len() - 1
    }

    /// A layer can be part of several overlays.
    fn layer(&mut self, path: &Path, ids: SourceIds) -> usize {
        let source = Source {
            path: path.into(),
            ids,
            access: Access::Layer,
            recursive: false,
            node: None,
        };
        if let Some(index) = self.sources.iter().position(|other| *other == source) {
            return index;
        }
        self.sources.push(source);
        self.sources.len() - 1
    }
}

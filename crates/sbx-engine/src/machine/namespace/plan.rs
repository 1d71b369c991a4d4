//! The boot plan of a sandbox: pure code from the record and the template's layout to the data that the setup
//! helper applies without deciding anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sbx_api::{Mount, MountKind};
use sbx_proto::net::{GATEWAY, PROXY_PORT};
use sbx_proto::plan::{
    Access, Attach, Boot, Detach, GitWorktree, HandOver, Job, Limits, Mode, Owner, Plan, Source,
    SourceIds, Step, Task,
};
use sbx_proto::{OsBytes, PROTOCOL};

use crate::machine::namespace::devices;
use crate::machine::namespace::template::etc_files;
use crate::machine::namespace::template::{HostBind, HostLayout, OverlayDir, SavedLayers};
use crate::sandbox::record::{GitDirectory, Identity, Record, WorkspaceKind, WorkspaceRecord};
use crate::workspace::{StillShared, in_mount_order};

/// The variables of the caller that are carried in as they are.
const CARRIED: &[&str] = &["LANG", "LANGUAGE", "TZ"];
/// Ours, since the host may have none and its own would not know our users.
const SUDO: &str = "/usr/bin/sudo";
/// Where commands of a sandbox without workspaces begin.
const WORKDIR: &str = "/home/agent/workspace";
/// An unmasked proc and sysfs lie here, where no program can look: the kernel refuses both to nested user
/// namespaces unless a whole instance is mounted somewhere.
const HIDDEN: &str = "/run/.visible";
/// For tidiness; what protects is that no id inside is the host's root.
const MASKED: &[&str] = &[
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

/// The sandbox's own files on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFiles {
    /// Holds the upper and work directories of every overlay.
    pub layers: PathBuf,
    /// An image of a file system that holds them instead.
    pub disk: Option<PathBuf>,
    /// Files of the sandbox's own that are shown read-only: source and target.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// A control group without processes, to be shown where programs look for control groups.
    pub shown_group: Option<PathBuf>,
    pub sudo: Sudo,
}

/// The authority of the sandbox's proxy, as programs inside know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    pub certificate: String,
    pub certificate_base64: String,
    /// The one of [`BUNDLES`] that programs are pointed to.
    pub bundle: &'static str,
}

/// Whether a program for [`Step::Install`] comes with the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sudo {
    Install,
    Absent,
}

/// Where distributions keep the certificates that programs trust; the first is made where none is.
pub const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Beside those of [`etc_files`]. Containers are not part of what is saved.
const OWN_FILES: &[&str] = &[
    SUDO,
    CA_FILE,
    "/etc/machine-id",
    "/var/lib/dbus/machine-id",
    "/var/lib/docker",
];
const CA_FILE: &str = "/usr/local/share/ca-certificates/proxy-ca.crt";

pub fn boot_plan(
    record: &Record,
    layout: &HostLayout,
    files: &SandboxFiles,
    trust: &Trust,
    limits: Limits,
) -> Plan {
    let mut steps = Builder::new(record.ids.mode, record.temporary);
    steps.root(layout, files);
    steps.trust(trust);
    steps.system();
    steps.groups(files);
    steps.aliases(&record.workspaces);
    let shared = record.shared_directories();
    steps.workspaces(&shared);
    let git = steps.git(record, files);
    if record.primary().is_none() {
        steps.steps.push(Step::Dir {
            target: WORKDIR.into(),
            mode: 0o755,
            owner: Owner::Agent,
        });
    }
    steps.close(layout);
    let writable = shared.iter().filter(|w| !w.readonly);
    Plan {
        protocol: PROTOCOL,
        ids: record.ids.clone(),
        mappers: None,
        job: Job::Boot(Box::new(Boot {
            id: record.id.clone(),
            hostname: record.name.to_string(),
            sources: steps.sources,
            steps: steps.steps,
            env: environment(record, layout, trust),
            workdir: record
                .primary()
                .map_or_else(|| WORKDIR.into(), |primary| primary.place().into()),
            workspaces: writable.map(|w| w.place().into()).collect(),
            git,
            made_at: made_at(record),
            limits,
        })),
    }
}

/// Paths inside of what is one sandbox's alone, and of what is mounted there: no part of a saved template.
pub(crate) fn of_one_sandbox(record: &Record) -> Vec<OsBytes> {
    let files = etc_files(record.name.as_str(), &BTreeMap::new(), &record.caller);
    let files = files.iter().map(|(path, _)| Path::new("/").join(path));
    let fixed = OWN_FILES.iter().map(PathBuf::from);
    let shared = record.shared_directories();
    let places = shared.iter().map(|it| it.place().to_path_buf());
    let aliases = shared
        .iter()
        .filter_map(|it| Some(it.given.as_ref()?.to_path_buf()));
    let all = files.chain(fixed).chain(places).chain(aliases);
    all.map(|path| path.as_path().into()).collect()
}

pub fn task_plan(record_ids: &sbx_proto::plan::Ids, task: Task) -> Plan {
    Plan {
        protocol: PROTOCOL,
        ids: record_ids.clone(),
        mappers: None,
        job: Job::Task(task),
    }
}

pub(crate) fn hand_over_plan(record: &Record, found: &StillShared, limit: Duration) -> Plan {
    let writable = found.writable.iter();
    let workspaces = writable.map(|(workspace, node)| Source {
        node: Some(*node),
        ..shared_source(workspace, record.ids.mode)
    });
    Plan {
        protocol: PROTOCOL,
        ids: record.ids.clone(),
        mappers: None,
        job: Job::HandOver(HandOver {
            workspaces: workspaces.collect(),
            excluded: found.excluded(),
            made_at: made_at(record),
            limit_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
        }),
    }
}

/// Mounts a workspace into the sandbox that runs with this init.
pub(crate) fn attach_plan(record: &Record, workspace: &WorkspaceRecord, init: i32) -> Plan {
    let attach = Attach {
        source: shared_source(workspace, record.ids.mode),
        target: workspace.place().into(),
        init,
    };
    running_plan(record, Job::Attach(Box::new(attach)))
}

/// Takes it away.
pub(crate) fn detach_plan(record: &Record, workspace: &WorkspaceRecord, init: i32) -> Plan {
    let detach = Detach {
        target: workspace.place().into(),
        node: shared_source(workspace, record.ids.mode).node,
        init,
    };
    running_plan(record, Job::Detach(detach))
}

fn running_plan(record: &Record, job: Job) -> Plan {
    Plan {
        protocol: PROTOCOL,
        ids: record.ids.clone(),
        mappers: None,
        job,
    }
}

fn made_at(record: &Record) -> i64 {
    i64::try_from(record.created_at.as_nanosecond()).unwrap_or(0)
}

/// A workspace as the host gives it. A file may be another one at any time: every editor makes it so.
fn shared_source(workspace: &WorkspaceRecord, mode: Mode) -> Source {
    Source {
        path: workspace.path.clone(),
        ids: match mode {
            Mode::Root => SourceIds::Owner {
                uid: workspace.uid,
                gid: workspace.gid,
            },
            Mode::Subordinate | Mode::Single => SourceIds::Plain,
        },
        access: if workspace.readonly {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        },
        recursive: true,
        node: match workspace.kind {
            WorkspaceKind::Directory => workspace.identity.as_ref().map(Identity::node),
            WorkspaceKind::File => None,
        },
    }
}

/// What of the host is visible, for `inspect`.
pub fn mounts(workspaces: &[WorkspaceRecord], record: &Record, layout: &HostLayout) -> Vec<Mount> {
    let mount = |target: &Path, source: &Path, readonly, kind| Mount {
        target: target.to_string_lossy().into_owned(),
        source: source.to_string_lossy().into_owned(),
        readonly,
        kind,
    };
    let overlay = |dir: &OverlayDir, kind| {
        let lowest = dir.lowers.last().unwrap_or(&dir.target);
        mount(&dir.target, lowest, false, kind)
    };
    let masked = masks(workspaces);
    let masked = masked
        .iter()
        .map(|target| mount(target, Path::new("none"), true, MountKind::Mask));
    let workspaces = workspaces.iter().map(workspace_mount);
    let git = record.git_directories().into_iter().map(|directory| {
        let path = directory.path.as_path();
        mount(path, path, directory.readonly, MountKind::Git)
    });
    let root = mount(
        Path::new("/"),
        &layout.root_lower,
        false,
        MountKind::Template,
    );
    let overlays = layout
        .overlays
        .iter()
        .map(|d| overlay(d, MountKind::Template));
    let binds = layout.system.iter().chain(&layout.binds);
    let binds = binds.map(|b| mount(&b.target, &b.source, true, b.kind));
    let caches = layout.caches.iter().map(|d| overlay(d, MountKind::Cache));
    workspaces
        .chain(git)
        .chain(masked)
        .chain([root])
        .chain(overlays)
        .chain(binds)
        .chain(caches)
        .collect()
}

/// The same of a workspace.
pub(crate) fn workspace_mount(workspace: &WorkspaceRecord) -> Mount {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Mount {
        target: text(workspace.place()),
        source: text(workspace.path.as_path()),
        readonly: workspace.readonly,
        kind: MountKind::Workspace,
    }
}

fn environment(record: &Record, layout: &HostLayout, trust: &Trust) -> Vec<(OsBytes, OsBytes)> {
    let mut env = BTreeMap::new();
    let proxy = format!("http://{GATEWAY}:{PROXY_PORT}");
    let no_proxy = format!("localhost,127.0.0.1,::1,{GATEWAY}");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        env.insert(name, proxy.as_str());
    }
    let bundle = trust.bundle;
    env.extend([
        ("NO_PROXY", no_proxy.as_str()),
        ("no_proxy", no_proxy.as_str()),
        ("NODE_USE_ENV_PROXY", "1"),
        ("SSL_CERT_FILE", bundle),
        ("REQUESTS_CA_BUNDLE", bundle),
        ("NODE_EXTRA_CA_CERTS", bundle),
        ("PROXY_CA_CERT_B64", trust.certificate_base64.as_str()),
    ]);
    for (name, value) in &record.caller.env {
        if CARRIED.contains(&name.as_str()) || name.starts_with("LC_") {
            env.insert(name.as_str(), value.as_str());
        }
    }
    env.extend(layout.env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    env.insert("SBX_SANDBOX", record.name.as_str());
    env.extend(record.env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    env.into_iter().map(|(k, v)| (k.into(), v.into())).collect()
}

struct Builder {
    mode: Mode,
    sources: Vec<Source>,
    steps: Vec<Step>,
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
    fn new(mode: Mode, temporary: bool) -> Self {
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
    fn root(&mut self, layout: &HostLayout, files: &SandboxFiles) {
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
            let ids = match self.mode {
                Mode::Root => SourceIds::Owner {
                    uid: kept.owner.0,
                    gid: kept.owner.1,
                },
                Mode::Subordinate | Mode::Single => SourceIds::Plain,
            };
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

    fn trust(&mut self, trust: &Trust) {
        self.steps.push(Step::Trust {
            certificate: trust.certificate.clone(),
            file: CA_FILE.into(),
            bundles: BUNDLES.iter().map(|bundle| (*bundle).into()).collect(),
        });
    }

    /// What every Linux system has beside its files.
    fn system(&mut self) {
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
    fn groups(&mut self, files: &SandboxFiles) {
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
    fn aliases(&mut self, workspaces: &[WorkspaceRecord]) {
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

    fn workspaces(&mut self, workspaces: &[WorkspaceRecord]) {
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
    fn git(&mut self, record: &Record, files: &SandboxFiles) -> Vec<GitWorktree> {
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
            ids: match self.mode {
                Mode::Root => SourceIds::Owner {
                    uid: owner.uid,
                    gid: owner.gid,
                },
                Mode::Subordinate | Mode::Single => SourceIds::Plain,
            },
            access: Access::ReadWrite,
            recursive: false,
            node: identity.map(Identity::node),
        });
        self.sources.len() - 1
    }

    /// Last: a workspace may lie in one of them.
    fn close(&mut self, layout: &HostLayout) {
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

/// The directories between a writable workspace and a read-only one below it, each a mount of its own. A mount
/// point cannot be renamed by a process whose mount namespace has the mount, and the system-call profile sees to it that
/// commands have no other; without them `mv` of a directory in between would take the read-only files out from
/// under their mount, to a place where the next start shows them writable.
fn pins(workspaces: &[WorkspaceRecord]) -> Vec<WorkspaceRecord> {
    let mut pins: Vec<WorkspaceRecord> = Vec::new();
    // One with a place of its own lies in no other, inside or on the host.
    let (elsewhere, usual): (Vec<_>, Vec<_>) =
        workspaces.iter().partition(|it| it.target.is_some());
    for outer in elsewhere.into_iter().filter(|outer| !outer.readonly) {
        pins.extend(pins_elsewhere(outer));
    }
    let readonly = usual.iter().filter(|workspace| workspace.readonly);
    let mut held: Vec<PathBuf> = readonly.map(|it| it.path.to_path_buf()).collect();
    held.extend(usual.iter().flat_map(|it| masks(std::slice::from_ref(*it))));
    for inner in &held {
        for between in inner.ancestors().skip(1) {
            // In a read-only one nothing can be renamed.
            let Some(outer) = innermost(workspaces, between).filter(|outer| !outer.readonly) else {
                continue;
            };
            let mut known = workspaces.iter().chain(&pins);
            if known.all(|known| known.path.as_path() != between) {
                pins.push(WorkspaceRecord {
                    path: between.into(),
                    given: None,
                    // Its inode has not been looked up.
                    identity: None,
                    masked: Vec::new(),
                    ..outer.clone()
                });
            }
        }
    }
    pins
}

/// The directories between a workspace at a place of its own and what is masked in it.
fn pins_elsewhere(outer: &WorkspaceRecord) -> Vec<WorkspaceRecord> {
    let masked = outer.masked.iter();
    let between: BTreeSet<&Path> = masked
        .flat_map(|below| below.as_path().ancestors().skip(1))
        .filter(|between| !between.as_os_str().is_empty())
        .collect();
    let pin = |between: &Path| WorkspaceRecord {
        path: outer.path.as_path().join(between).as_path().into(),
        target: Some(outer.place().join(between).as_path().into()),
        identity: None,
        masked: Vec::new(),
        ..outer.clone()
    };
    between.into_iter().map(pin).collect()
}

/// Where inside something is masked.
fn masks(workspaces: &[WorkspaceRecord]) -> Vec<PathBuf> {
    let of_one = |workspace: &WorkspaceRecord| {
        let place = workspace.place().to_path_buf();
        let masked = workspace.masked.clone().into_iter();
        masked.map(move |below| place.join(below.as_path()))
    };
    workspaces.iter().flat_map(of_one).collect()
}

/// The workspace that a directory lies in, as programs inside see it.
fn innermost<'a>(workspaces: &'a [WorkspaceRecord], path: &Path) -> Option<&'a WorkspaceRecord> {
    let outer = workspaces
        .iter()
        .filter(|outer| outer.target.is_none())
        .filter(|outer| path != outer.path.as_path() && path.starts_with(outer.path.as_path()));
    outer.max_by_key(|outer| outer.path.as_bytes().len())
}

#[cfg(test)]
mod tests;

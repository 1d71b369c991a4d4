//! The boot plan of a sandbox: pure code from the record and the template's layout to the data that the setup
//! helper applies without deciding anything.

mod builder;
mod pins;
mod shown_mounts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sbx_proto::net::{GATEWAY, PROXY_PORT};
use sbx_proto::plan::{
    Access, Attach, Boot, Detach, HandOver, Job, Limits, Mode, Owner, Plan, Source, SourceIds,
    Step, Task,
};
use sbx_proto::{OsBytes, PROTOCOL};

use crate::machine::namespace::template::{HostLayout, etc_files};
use crate::sandbox::record::{Identity, Pending, Record, WorkspaceKind, WorkspaceRecord};
use crate::workspace::StillShared;

pub use shown_mounts::mounts;
pub(crate) use shown_mounts::workspace_mount;

use builder::Builder;

/// The variables of the caller that are carried in as they are.
const CARRIED: &[&str] = &["LANG", "LANGUAGE", "TZ"];
/// Ours, since the host may have none and its own would not know our users.
const SUDO: &str = "/usr/bin/sudo";
/// Where commands of a sandbox without workspaces begin.
const WORKDIR: &str = "/home/agent/workspace";
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
        again: workspace.pending == Some(Pending::Unmount),
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

/// How files of one owner are shown: only in root mode are ids inside other ones than outside.
fn owner_ids(mode: Mode, uid: u32, gid: u32) -> SourceIds {
    match mode {
        Mode::Root => SourceIds::Owner { uid, gid },
        Mode::Subordinate | Mode::Single => SourceIds::Plain,
    }
}

/// A workspace as the host gives it. A file may be another one at any time: every editor makes it so.
fn shared_source(workspace: &WorkspaceRecord, mode: Mode) -> Source {
    Source {
        path: workspace.path.clone(),
        ids: owner_ids(mode, workspace.uid, workspace.gid),
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

#[cfg(test)]
mod tests;
